// batch_invariant in every family: recorded log-probabilities equal those of training, or an error
// names the layer.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { initInference, nn, seed } from '../../lib/index.js';
import type { Generation, InferenceEngine } from '../../lib/inference/index.js';
import { CausalLM } from '../../lib/models/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import type { JsonObject } from '../../types/json.js';
import { recordedOf, scoresOf } from './batch-invariant-scores.js';

const folder = join(packageRoot(), 'test', 'golden', 'transformers', 'models');
const refused: string[] = [];
let exact = 0;

/** The engine, or null if an error says which layer has no batch-invariant kernel. */
async function engineOf(model: CausalLM): Promise<InferenceEngine | null> {
  const config = { device: 'cpu', max_out_tokens: 45, batch_invariant: true };
  const chunked = { max_ragged_batch_size: 24, kv_cache: { blocks: 40, block_size: 16 } };
  return initInference(model, { ...config, ...chunked }).catch((error: Error) => {
    if (/in batch-invariant mode: expected/.test(error.message)) return null;
    throw error;
  });
}

test.each(readdirSync(folder))('%s', async (name) => {
  const file = join(folder, name, 'config.json');
  const config = JSON.parse(readFileSync(file, 'utf8')) as JsonObject;
  for (const dtype of ['f32', 'bf16'] as const) {
    seed(1);
    const model = nn.models.fromConfig(config);
    if (!(model instanceof CausalLM)) return;
    model.to('cpu', dtype);
    const engine = await engineOf(model);
    if (!engine) {
      refused.push(name);
      return;
    }
    const requests = Array.from({ length: 7 }, (_, i) => ({
      prompt: Array.from({ length: 3 + ((i * 7) % 30) }, (_, k) => (k * 13 + (i % 3) * 5 + 1) % 40),
      maxNewTokens: 1 + ((i * 5) % 9),
      seed: i,
      temperature: 0.8,
      logprobs: 0,
      ignoreEos: true,
    }));
    const result = (await engine.generateBatch(requests)).map(([one]) => one as Generation);
    const prompts = requests.map(({ prompt }) => prompt);
    expect(recordedOf(result)).toEqual(scoresOf(model, prompts, result));
    await engine.destroy();
  }
  exact++;
});

test('dense models are exact', () => {
  expect(exact).toBeGreaterThan(30);
  expect(
    refused.filter((name) => /llama(?!4)|qwen2$|qwen3$|gpt|mistral$|phi(?!moe)/.test(name)),
  ).toEqual(['gpt-oss']);
});
