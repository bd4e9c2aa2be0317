// Runs of an engine with many kinds of requests, for tests of speculation.
import assert from 'node:assert/strict';
import {
  type GenerateRequest,
  type Generation,
  type InferenceConfig,
  type InferenceStats,
  initInference,
} from '../../lib/inference/index.js';
import type { CausalLM } from '../../lib/models/index.js';
import type { Device } from '../../lib/runtime/device.js';

/** Greedy and sampled requests, with rules and without. */
export function requestsOf(vocabSize: number): GenerateRequest[] {
  return Array.from({ length: 9 }, (_, n) => {
    const rules: Omit<GenerateRequest, 'prompt'>[] = [
      { temperature: 0 },
      { seed: n, logprobs: 1 },
      { seed: n, topP: 0.7, temperature: 1.4, badWords: [[3], [4, 5]], n: 2 },
      { seed: n, repetitionPenalty: 1.3 },
    ];
    const prompt = Array.from({ length: 5 + 9 * n }, (_, i) => (i * i + n) % vocabSize);
    return { prompt, maxNewTokens: 20 + n, ...rules[n % rules.length] };
  });
}

export interface Run {
  readonly found: Generation[];
  readonly stats: InferenceStats;
}

/** Generates as a batch and again one by one, with equal texts. Frees the model. */
export async function run(
  device: Device,
  model: CausalLM,
  config: InferenceConfig,
  requests: readonly GenerateRequest[],
): Promise<Run> {
  const engine = await initInference(model, {
    device: device.name,
    dtype: 'fp32',
    max_ragged_batch_size: 48,
    kv_cache: { block_size: 16 },
    ...config,
  });
  const found = (await engine.generateBatch(requests)).flat();
  const again = (await Promise.all(requests.map((request) => engine.generate(request)))).flat();
  assert.deepEqual(
    again.map(({ tokens }) => tokens),
    found.map(({ tokens }) => tokens),
  );
  const stats = engine.stats();
  assert.deepEqual([stats.running, stats.waiting, stats.blocksUsed], [0, 0, 0]);
  await engine.destroy();
  for (const parameter of model.parameters()) parameter.dispose();
  model.releaseTables();
  return { found, stats };
}
