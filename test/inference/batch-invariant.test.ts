// batch_invariant: recorded log-probabilities have the bits of the training forward, for any batch.
import { initInference, nn, seed } from '../../lib/index.js';
import type { GenerateRequest, Generation, InferenceConfig } from '../../lib/inference/index.js';
import type { CausalLM } from '../../lib/models/index.js';
import { testOnCpu } from '../support/jest-cases.js';
import { refusal } from '../support/refusal.js';
import { cases } from './batch-invariant.cases.js';
import { recordedOf, scoresOf } from './batch-invariant-scores.js';

testOnCpu('batch_invariant', cases);

const sizes = { vocabSize: 97, maxSeq: 128, layers: 2, heads: 4 };
const models: Record<string, () => CausalLM> = {
  GPT2: () => new nn.models.GPT2({ ...sizes, channels: 72 }),
  Llama: () => new nn.models.Llama({ ...sizes, kvHeads: 2, channels: 88, hidden: 150 }),
  Qwen3: () =>
    new nn.models.Qwen3({ ...sizes, kvHeads: 2, headDim: 24, channels: 72, hidden: 130 }),
};

/** Prompts share prefixes of up to 42 tokens; `n` requests end at different lengths. */
const requestsOf = (n: number, temperature = 0.8): GenerateRequest[] =>
  Array.from({ length: n }, (_, i) => ({
    prompt: Array.from({ length: 3 + ((i * 7) % 40) }, (_, k) => (k * 13 + (i % 3) * 5 + 1) % 97),
    maxNewTokens: 1 + ((i * 5) % 30),
    seed: i,
    temperature,
    logprobs: 0,
    ignoreEos: true,
  }));

async function compare(
  model: CausalLM,
  n: number,
  config: InferenceConfig,
): Promise<{ preemptions: number; prefixHits: number }> {
  const engine = await initInference(model, {
    device: 'cpu',
    max_out_tokens: 80,
    batch_invariant: true,
    ...config,
  });
  const requests = requestsOf(n);
  const result = (await engine.generateBatch(requests)).map(([one]) => one as Generation);
  const prompts = requests.map(({ prompt }) => prompt as number[]);
  expect(recordedOf(result)).toEqual(scoresOf(model, prompts, result));
  const stats = engine.stats();
  await engine.destroy();
  return stats;
}

const chunked = { max_ragged_batch_size: 24, kv_cache: { block_size: 16, blocks: 60 } };

describe.each(Object.keys(models))('%s', (name) => {
  test.each(['fp32', 'bf16', 'fp16'] as const)('%s: 1, 7 and 64 sequences', async (dtype) => {
    seed(1);
    const model = (models[name] as () => CausalLM)();
    model.to('cpu', { fp32: 'f32', bf16: 'bf16', fp16: 'f16' }[dtype] as 'f32');
    for (const n of [1, 7, 64]) {
      const { prefixHits } = await compare(model, n, chunked);
      if (n === 64) expect(prefixHits).toBeGreaterThan(0);
    }
  });
});

test('preempted and recomputed sequences', async () => {
  seed(1);
  const model = (models.Llama as () => CausalLM)();
  const few = { kv_cache: { block_size: 16, blocks: 7 }, max_ragged_sequence_count: 16 };
  expect((await compare(model, 32, few)).preemptions).toBeGreaterThan(0);
});

test('temperatures of requests do not change raw log-probabilities', async () => {
  seed(1);
  const model = (models.GPT2 as () => CausalLM)();
  const engine = await initInference(model, { device: 'cpu', batch_invariant: true });
  const requests = requestsOf(5).map((request, i) => ({ ...request, temperature: i / 4 }));
  const result = (await engine.generateBatch(requests)).map(([one]) => one as Generation);
  const prompts = requests.map(({ prompt }) => prompt as number[]);
  expect(recordedOf(result)).toEqual(scoresOf(model, prompts, result));
  await engine.destroy();
});

test('a model with operations that are not batch-invariant is refused', async () => {
  const moe = { experts: 4, perToken: 2, hidden: 16 };
  const mixture = new nn.models.Mixtral({ ...sizes, channels: 32, hidden: 16, moe });
  const config = { device: 'cpu', batch_invariant: true };
  const error = await refusal(() => initInference(mixture, config));
  expect(error.message).toMatch(
    /experts in batch-invariant mode: expected dense layers, got a mixture/,
  );
});

test('layers in 8 bits and several adapters are refused', async () => {
  const model = (models.Llama as () => CausalLM)();
  const config = { device: 'cpu', batch_invariant: true };
  const coded = await refusal(() => initInference(model, { ...config, dtype: 'int8' }));
  expect(coded.message).toMatch(/a linear layer in batch-invariant mode: .* got quantized ones/);
  const many = await refusal(() => initInference(model, config, { maxAdapters: 1 }));
  expect(many.message).toMatch(/batch_invariant: expected .* without the option adapters/);
});
