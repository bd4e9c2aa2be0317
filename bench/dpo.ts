// Measures the speed of DPO updates with Llama's shapes and random weights.
// bench/peers/post_training_torch.py does the same in PyTorch.
import { dpo } from '../lib/index.js';
import type { PairSample } from '../lib/text/index.js';
import type { Options } from './main.js';
import { datasetOf, seededModel, timedUpdates, tokensOf, trainingConfig } from './timed-updates.js';

/** Updates of dpo() with a second model as the reference; --lora: the model without adapters. */
export async function dpoBench(options: Options): Promise<object> {
  const { model: name = 'llama-1B', precision = 'bf16', device = 'cuda', lora } = options;
  const [batch, seq] = [Number(options.batch ?? 8), Number(options.seq ?? 1024)];
  const prompt = Number(options.prompt ?? seq / 4);
  const [steps, warmUp] = [Number(options.steps ?? 6), Number(options['warm-up'] ?? 3)];
  const named = { ...options, model: name };
  const model = seededModel(named, seq);
  const reference = lora === undefined ? seededModel(named, seq) : undefined;
  const train = datasetOf((steps + warmUp) * batch, (row): PairSample => {
    const [chosen, rejected] = [2 * row, 2 * row + 1].map((side) => {
      const localValues = tokensOf(side, seq, model.vocabSize);
      localValues.set(tokensOf(row, prompt, model.vocabSize));
      return localValues;
    }) as [Int32Array, Int32Array];
    return { chosen, rejected, prompt, reference: null, margin: null };
  });
  const found = await timedUpdates(
    {
      model,
      train: train as never,
      batchSize: batch,
      deepspeed: trainingConfig(precision) as never,
      method: dpo(reference ? { reference } : {}),
    },
    { steps, warmUp, place: device },
  );
  const { mean, ...rest } = found;
  return {
    model: name,
    params: model.numParameters(),
    precision,
    pairs: batch,
    seq,
    prompt,
    reference: reference ? 'a second model' : 'without adapters',
    step_ms: mean,
    tokens_per_second: (2 * batch * seq * 1000) / mean,
    ...rest,
  };
}
