// How many tokens an engine takes without max_out_tokens.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, seed } from '../../lib/index.js';
import { initInference } from '../../lib/inference/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { readLimits } from '../../lib/serve/limits.js';
import { openServed } from '../../lib/serve/open-engine.js';
import { createServedModel } from '../../lib/serve/served-model.js';
import { quiet } from '../support/quiet.js';

/** A block of 64 tokens has 2 layers x 2 x 2 heads x 64 x 8 x 4 bytes. */
const BLOCK_BYTES = 2 * 2 * 2 * 64 * 8 * 4;

function llama(maxSeq: number) {
  seed(1);
  const heads = { heads: 4, kvHeads: 2, headDim: 8 };
  return new nn.models.Llama({
    vocabSize: 61,
    maxSeq,
    layers: 2,
    channels: 32,
    hidden: 48,
    ...heads,
  });
}

test("the default context is the model's maximum", async () => {
  const engine = await initInference(llama(5000), { device: 'cpu' });
  expect(engine.maxTokens).toBe(5000);
  expect(engine.isCacheBound).toBe(false);
  const prompt = Array.from({ length: 2100 }, (_, i) => i % 61);
  const [one] = await engine.generate({ prompt, maxNewTokens: 2, ignoreEos: true });
  expect(one?.tokens).toHaveLength(2);
  await engine.destroy();
});

test('the default context is what a small cache holds, and a configured one is refused', async () => {
  const kv_cache = { memory: 5 * BLOCK_BYTES + 1 };
  const engine = await initInference(llama(5000), { device: 'cpu', kv_cache });
  expect(engine.maxTokens).toBe(5 * 64);
  expect(engine.isCacheBound).toBe(true);
  const prompt = Array.from({ length: 319 }, (_, i) => i % 61);
  const [one] = await engine.generate({ prompt, ignoreEos: true });
  expect(one?.tokens).toHaveLength(1);
  await expect(engine.generate({ prompt: [...prompt, 1] })).rejects.toThrow(/at most 320 tokens/);
  await engine.destroy();
  await expect(
    initInference(llama(5000), { device: 'cpu', kv_cache, max_out_tokens: 5000 }),
  ).rejects.toThrow(
    /memory for a sequence of 5000 tokens: 79 blocks of 16384 bytes, got room for 5/,
  );
});

test.each([2 ** 24, 2 ** 31 - 1])('a maximum of %d positions costs no memory', async (maxSeq) => {
  const kv_cache = { blocks: 100 };
  const request = { prompt: [3, 1, 4], maxNewTokens: 6, temperature: 0, ignoreEos: true };
  const small = await initInference(llama(512), { device: 'cpu', kv_cache });
  const [expected] = await small.generate(request);
  await small.destroy();
  await quiet(() => cpu().memory.inUse);
  const before = cpu().memory.inUse;
  const engine = await initInference(llama(maxSeq), { device: 'cpu', kv_cache });
  expect(engine.maxTokens).toBe(6400);
  const [one] = await engine.generate(request);
  expect(one?.tokens).toEqual(expected?.tokens);
  const prompt = Array.from({ length: 4100 }, (_, i) => i % 61);
  await engine.generate({ ...request, prompt });
  // The cache has 1.6 MB; tables of 4096 and 8192 rows have 32 bytes a row.
  expect(cpu().memory.inUse - before).toBeLessThan(8e6);
  await engine.destroy();
});

test('a server reports the context of its engine', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'ds-context-'));
  try {
    await llama(3000).save(folder);
    const engine = await openServed(folder, { config: { device: 'cpu' } });
    const served = createServedModel(engine, 'm', readLimits('serve'), {
      threads: 1,
      toolParser: 'none',
      reasoningParser: 'none',
    });
    expect([served.maxTokens, served.maxPromptTokens]).toEqual([3000, 2999]);
    await engine.destroy();
  } finally {
    rmSync(folder, { recursive: true });
  }
});
