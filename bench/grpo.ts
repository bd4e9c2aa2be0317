// Measures the speed of GRPO updates with Llama's shapes and random weights.
// bench/peers/post_training_torch.py does the same in PyTorch.
import { grpo } from '../lib/index.js';
import type { PromptSample } from '../lib/text/index.js';
import type { Options } from './main.js';
import { datasetOf, seededModel, timedUpdates, tokensOf, trainingConfig } from './timed-updates.js';

/** Updates of grpo(): a generation each, its rewards, and training on all of it. */
export async function grpoBench(options: Options): Promise<object> {
  const { model: name = 'llama-1B', precision = 'bf16', device = 'cuda' } = options;
  const prompts = Number(options.prompts ?? 64);
  const generations = Number(options.generations ?? 8);
  const length = Number(options.prompt ?? 128);
  const fresh = Number(options.new ?? 256);
  const batchSize = Number(options.batch ?? 32);
  const [steps, warmUp] = [Number(options.steps ?? 1), Number(options['warm-up'] ?? 1)];
  const model = seededModel({ ...options, model: name }, length + fresh);
  const completions = prompts * generations;
  const train = datasetOf(prompts * (steps + warmUp), (index): PromptSample => {
    const promptIds = tokensOf(index, length, model.vocabSize);
    return { index, prompt: '', promptIds, columns: {}, location: `row ${index}` };
  });
  const found = await timedUpdates(
    {
      model,
      train: train as never,
      batchSize,
      accumulation: completions / batchSize,
      deepspeed: trainingConfig(precision) as never,
      method: grpo({
        rewards: function even({ completions: all }) {
          return all.map(
            ({ tokens }) => tokens.filter((token) => token % 2 === 0).length / tokens.length,
          );
        },
        generations,
        sampling: { maxNewTokens: fresh },
        offloadStates: options['offload-states'] === 'true',
        exactRollouts: options.exact === 'true',
      }),
    },
    { steps, warmUp, place: device },
  );
  const { mean, processor, phases, ...rest } = found;
  const seconds = (phases?.generate ?? Number.NaN) / steps;
  return {
    model: name,
    params: model.numParameters(),
    precision,
    prompts,
    generations,
    prompt: length,
    new: fresh,
    micro_batch: batchSize,
    step_ms: mean,
    processor_ms: processor,
    generate_ms: 1000 * seconds,
    share_of_generation: (1000 * seconds) / mean,
    generated_tokens_per_second: (completions * fresh) / seconds,
    tokens_per_second: (completions * fresh * 1000) / mean,
    offload_states: options['offload-states'] === 'true',
    exact_rollouts: options.exact === 'true',
    ...rest,
  };
}
