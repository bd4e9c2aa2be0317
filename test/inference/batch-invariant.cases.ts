// Tests on each device that the sampler's log-probabilities have the bits of the training forward.
import assert from 'node:assert/strict';
import { type GenerateRequest, initInference } from '../../lib/inference/index.js';
import { type CausalLM, GPT2, Llama, Qwen3 } from '../../lib/models/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { noGrad, scope } from '../../lib/tensor/index.js';
import { seed } from '../../lib/tensor/random.js';
import type { Case } from '../support/case.js';
import { recordedOf, scoresOf } from './batch-invariant-scores.js';

const sizes = { vocabSize: 97, maxSeq: 128, layers: 2, heads: 4 };
const models: Record<string, () => CausalLM> = {
  GPT2: () => new GPT2({ ...sizes, channels: 72 }),
  Llama: () => new Llama({ ...sizes, kvHeads: 2, channels: 88, hidden: 150 }),
  Qwen3: () => new Qwen3({ ...sizes, kvHeads: 2, headDim: 24, channels: 72, hidden: 130 }),
};

/** Prompts share prefixes; requests end at different lengths. */
const requests: GenerateRequest[] = Array.from({ length: 24 }, (_, i) => ({
  prompt: Array.from({ length: 3 + ((i * 7) % 40) }, (_, k) => (k * 13 + (i % 3) * 5 + 1) % 97),
  maxNewTokens: 1 + ((i * 5) % 30),
  seed: i,
  temperature: 0.8,
  logprobs: 0,
  ignoreEos: true,
}));

async function compare(make: () => CausalLM, device: Device, dtype: 'f32' | 'bf16') {
  seed(1);
  const model = make();
  model.to(device, dtype);
  const engine = await initInference(model, {
    device: device.name,
    batch_invariant: true,
    max_out_tokens: 80,
    max_ragged_batch_size: 48,
    kv_cache: { block_size: 16, blocks: 60 },
  });
  try {
    const result = (await engine.generateBatch(requests)).flatMap(([one]) => one ?? []);
    const prompts = requests.map(({ prompt }) => prompt as number[]);
    assert.equal(result.length, requests.length);
    const scores = noGrad(() => scope(() => scoresOf(model, prompts, result, device)));
    assert.deepEqual(recordedOf(result), scores);
  } finally {
    await engine.destroy();
    for (const parameter of model.parameters()) parameter.dispose();
  }
}

export const cases: Case[] = Object.entries(models).flatMap(([name, make]) =>
  (['f32', 'bf16'] as const).map((dtype) => ({
    name: `invariant log-probabilities of ${name} in ${dtype}: sampler equals training`,
    run: (device: Device) => compare(make, device, dtype),
  })),
);
