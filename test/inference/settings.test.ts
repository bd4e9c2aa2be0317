// How many blocks the cache gets, and how many tokens a step.
import assert from 'node:assert/strict';
import { resolveInferenceConfig } from '../../lib/inference/config/index.js';
import type { CacheSizes } from '../../lib/inference/paged-cache.js';
import { limitsOf } from '../../lib/inference/settings.js';

/** A GPU of 100 GiB, with nothing in it. */
const gpu = { kind: 'cuda', memory: { reserved: 0, cap: 0 }, info: { totalBytes: 100 * 2 ** 30 } };

function limitsFor(kvHeads: number, layers: number, maxTokens: number, most?: number) {
  const sizes = { layers, kvHeads, headDim: 128, blockSize: 64, dtype: 'bf16', device: gpu };
  const config = resolveInferenceConfig({
    ...{ max_ragged_sequence_count: 16, max_ragged_batch_size: most },
  });
  return limitsOf(config, sizes as unknown as CacheSizes, maxTokens);
}

const blocksFor = (...sizes: [kvHeads: number, layers: number, maxTokens: number]): number =>
  limitsFor(...sizes).blocks;

it('takes nine tenths of what a GPU has free', () => {
  const blockBytes = 32 * 2 * 8 * 64 * 128 * 2;
  assert.equal(blocksFor(8, 32, 131_072), Math.floor((0.9 * 100 * 2 ** 30) / blockBytes));
});

it('takes no more than four times what all sequences of a step hold at their longest', () => {
  assert.equal(blocksFor(2, 2, 1024), 4 * 16 * 16);
});

it('takes no more tokens in a step than all its sequences have', () => {
  assert.equal(limitsFor(2, 2, 1024).tokens, 2048);
  assert.equal(limitsFor(2, 2, 1024, 4096).tokens, 4096);
  assert.equal(limitsFor(2, 2, 1024, 2 ** 31).tokens, 16 * 1024);
});
