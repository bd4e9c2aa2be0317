// Tests steps of more than 256 sequences: rules, formats and adapters of each sequence as in steps
// of few sequences.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type GenerateRequest,
  type InferenceConfig,
  initInference,
} from '../../lib/inference/index.js';
import { Llama } from '../../lib/models/index.js';
import { addLora, saveAdapter } from '../../lib/peft/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { seed } from '../../lib/tensor/random.js';
import { Tokenizer } from '../../lib/text/index.js';
import type { Case } from '../support/case.js';

const tokenizer = Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));

function model(number: number): Llama {
  seed(number);
  return new Llama({
    vocabSize: tokenizer.vocabSize,
    maxSeq: 64,
    layers: 1,
    heads: 4,
    kvHeads: 2,
    channels: 32,
    hidden: 48,
    ropeTheta: 1e4,
    eps: 1e-5,
  });
}

/** Requests with different rules; they end after 6 to 12 tokens, so that steps shrink. */
function requests(count: number, adapters: readonly string[]): GenerateRequest[] {
  const rules: Omit<GenerateRequest, 'prompt'>[] = [
    { temperature: 0 },
    { topK: 12, logprobs: 1 },
    { topP: 0.8, repetitionPenalty: 1.3 },
    { temperature: 0, frequencyPenalty: 0.5, badWords: [[4, 5], [9]] },
    { logitBias: { 8: 3 }, minP: 0.01 },
    { format: { regex: '[a-z ]{20,40}' } },
  ];
  return Array.from({ length: count }, (_, i) => ({
    prompt: Array.from({ length: 1 + (i % 5) }, (_, at) => (7 * i + 3 * at) % 60),
    seed: i,
    ignoreEos: true,
    maxNewTokens: 6 + (i % 7),
    ...rules[i % rules.length],
    ...(i % 4 > 0 && { adapter: adapters[i % adapters.length]! }),
  }));
}

/** The tokens of requests in steps of up to `sequences` sequences. */
async function tokensOf(
  adapters: Record<string, string>,
  { device, sequences, count }: { device: Device; sequences: number; count: number },
) {
  const config: InferenceConfig = {
    dtype: 'fp32',
    device: device.name,
    max_out_tokens: 32,
    max_ragged_sequence_count: sequences,
    max_ragged_batch_size: 4096,
    enable_cuda_graph: 'auto',
    kv_cache: { blocks: 2 * count, block_size: 16 },
  };
  const engine = await initInference(model(1), config, { adapters, tokenizer });
  try {
    const texts = await engine.generateBatch(requests(count, Object.keys(adapters)));
    const { steps, blocksUsed } = engine.stats();
    assert.equal(blocksUsed, 0);
    return { steps, tokens: texts.map(([one]) => one!.tokens) };
  } finally {
    await engine.destroy();
  }
}

async function equal(count: number, device: Device): Promise<void> {
  const root = mkdtempSync(join(tmpdir(), 'ds-large-batches-'));
  try {
    const adapters: Record<string, string> = {};
    for (const [i, r] of [3, 16, 5].entries()) {
      const result = model(2 + i);
      addLora(result, { r, loraAlpha: 2 * r, targetModules: 'all-linear', initLoraWeights: false });
      const folder = join(root, String(i));
      await saveAdapter(result, folder);
      adapters[`a${i}`] = folder;
    }
    const few = await tokensOf(adapters, { device, sequences: 24, count });
    const all = await tokensOf(adapters, { device, sequences: count, count });
    assert.deepEqual(all.tokens, few.tokens);
    assert.ok(all.steps < 20, `${all.steps} steps`);
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}

export const cases: readonly Case[] = [300, 512].map((count) => ({
  name: `large batches: ${count} sequences have the tokens of few`,
  run: (device) => equal(count, device),
}));
