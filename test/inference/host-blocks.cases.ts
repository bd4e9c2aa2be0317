// Prefixes that come back from host memory give the same bits as prefixes that stayed.
import assert from 'node:assert/strict';
import { type InferenceConfig, initInference } from '../../lib/inference/index.js';
import { GPT2, Llama } from '../../lib/models/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/random.js';
import type { Case } from '../support/case.js';

const MAX = 64;
const TEXTS = 6;

const models = {
  llama: () =>
    new Llama({
      vocabSize: 90,
      maxSeq: MAX,
      layers: 2,
      heads: 4,
      kvHeads: 2,
      channels: 64,
      hidden: 96,
      ropeTheta: 1e4,
      eps: 1e-5,
    }),
  gpt2: () => new GPT2({ vocabSize: 90, maxSeq: MAX, layers: 3, heads: 2, channels: 64 }),
};

/** The prompt of text `i`: three blocks that no other text has, and an end. */
const promptOf = (i: number, round: number): number[] =>
  Array.from({ length: 50 }, (_, at) => (at < 49 ? (11 * i + 3 * at) % 80 : round));

/** Tokens and logprobs of all texts in `rounds`, and the counters of the engine. */
async function run(make: () => Llama | GPT2, inferenceConfig: InferenceConfig, isMixed: boolean) {
  seed(5);
  const engine = await initInference(make(), { max_out_tokens: MAX, ...inferenceConfig });
  const answers: unknown[] = [];
  try {
    for (let round = 0; round < 3; ++round) {
      const requests = Array.from({ length: TEXTS }, (_, i) => ({
        prompt: promptOf(i, round),
        maxNewTokens: 6,
        temperature: 0,
        logprobs: 2,
        ignoreEos: true,
      }));
      // Texts one by one have one order of batches, with and without hits.
      if (isMixed) answers.push(...(await engine.generateBatch(requests)).flat());
      else for (const one of requests) answers.push(...(await engine.generate(one)));
    }
    const stats = engine.stats();
    assert.equal(stats.blocksUsed, 0);
    return { answers: answers as { tokens: number[]; cachedTokens: number }[], stats };
  } finally {
    await engine.destroy();
  }
}

async function equal(name: keyof typeof models, kind: 'fp32' | 'bf16' | 'fp8', device: Device) {
  const isFp8 = kind === 'fp8';
  const dtype = isFp8 ? 'bf16' : kind;
  const config = (kv_cache: InferenceConfig['kv_cache']): InferenceConfig => ({
    dtype,
    device: device.name,
    max_ragged_sequence_count: 4,
    kv_cache: { block_size: 16, ...(isFp8 && { dtype: 'fp8' as const }), ...kv_cache },
  });
  const kept = await run(models[name], config({ blocks: 64 }), false);
  const restored = await run(models[name], config({ blocks: 8, host_memory: 2 ** 22 }), false);
  assert.equal(kept.stats.hostHits, 0);
  assert.equal(restored.stats.hostHits, 2 * TEXTS * 48);
  // The same tokens were cached, so the same steps ran: all bits are equal.
  assert.deepEqual(restored.answers, kept.answers);
}

/** Four sequences at once in little memory: preempted ones come back from the host too. */
async function checkCrowded(device: Device): Promise<void> {
  const config = { dtype: 'fp32', device: device.name, max_ragged_sequence_count: 4 } as const;
  const texts = async (kv_cache: InferenceConfig['kv_cache']) => {
    const { answers, stats } = await run(models.llama, { ...config, kv_cache }, true);
    return { tokens: answers.map(({ tokens }) => tokens), stats };
  };
  const plenty = await texts({ block_size: 16, blocks: 64 });
  const little = await texts({ block_size: 16, blocks: 10, host_memory: 2 ** 22 });
  assert.deepEqual(little.tokens, plenty.tokens);
  assert.ok(little.stats.hostHits > 0);
}

export const cases: readonly Case[] = [
  ...(['llama', 'gpt2'] as const).flatMap((name) =>
    (['fp32', 'bf16', 'fp8'] as const).map((dtype) => ({
      name: `host blocks: ${name} in ${dtype} has the bits of kept prefixes`,
      run: (device: Device) => equal(name, dtype, device),
    })),
  ),
  { name: 'host blocks: sequences side by side in little memory', run: checkCrowded },
];
