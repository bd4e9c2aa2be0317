// How many blocks the cache gets, and how many tokens a step.
import assert from 'node:assert/strict';
import { resolveInferenceConfig } from '../../lib/inference/config/index.js';
import type { CacheSizes } from '../../lib/inference/paged-cache.js';
import { deriveLimits } from '../../lib/inference/settings.js';

/** A GPU of 100 GiB, with nothing in it. */
const gpu = { kind: 'cuda', memory: { reserved: 0, cap: 0 }, info: { totalBytes: 100 * 2 ** 30 } };

function limitsFor(kvHeads: number, layers: number, maxTokens: number, batchTokens?: number) {
  const sizes = { layers, kvHeads, headDim: 128, blockSize: 64, dtype: 'bf16', device: gpu };
  const config = resolveInferenceConfig({
    max_out_tokens: maxTokens,
    max_ragged_sequence_count: 16,
    max_ragged_batch_size: batchTokens,
  });
  return deriveLimits(config, sizes as unknown as CacheSizes, { maxTokens });
}

/** Blocks of 64 tokens without max_out_tokens. A token of a layer needs 512 bytes. */
function defaultBlocks(
  { layers, maxTokens, memory }: { layers: number; maxTokens: number; memory?: number },
  device: object,
  fillsDevice = false,
): number {
  const sizes = { layers, kvHeads: 1, headDim: 128, blockSize: 64, dtype: 'bf16', device };
  const config = resolveInferenceConfig({ max_ragged_sequence_count: 16, kv_cache: { memory } });
  return deriveLimits(config, sizes as unknown as CacheSizes, { maxTokens, fillsDevice }).blocks;
}

const blocksFor = (...sizes: [kvHeads: number, layers: number, maxTokens: number]): number =>
  limitsFor(...sizes).blocks;

it('the cache takes nine tenths of the free memory of a GPU', () => {
  const blockBytes = 32 * 2 * 8 * 64 * 128 * 2;
  assert.equal(blocksFor(8, 32, 131_072), Math.floor((0.9 * 100 * 2 ** 30) / blockBytes));
});

it('the cache takes at most four times the memory of all sequences of a step at full length', () => {
  assert.equal(blocksFor(2, 2, 1024), 4 * 16 * 16);
});

describe('without max_out_tokens, the cache', () => {
  const longest = 131_072;
  const blockOf = (layers: number): number => layers * 64 * 512;

  it('of a GPU holds four steps of sequences of 1024 tokens, or one longest sequence', () => {
    assert.equal(defaultBlocks({ layers: 2, maxTokens: 512 }, gpu), 4 * 16 * 8);
    assert.equal(defaultBlocks({ layers: 2, maxTokens: 32_768 }, gpu), 4 * 16 * 16);
    assert.equal(defaultBlocks({ layers: 2, maxTokens: longest }, gpu), longest / 64);
  });

  it('of a server takes nine tenths of the free memory of a GPU', () => {
    const all = Math.floor((0.9 * 100 * 2 ** 30) / blockOf(64));
    assert.equal(defaultBlocks({ layers: 64, maxTokens: longest }, gpu, true), all);
  });

  it('of a GPU holds less than the longest sequence if memory is short', () => {
    const all = Math.floor((0.9 * 100 * 2 ** 30) / blockOf(4096));
    assert.ok(all < longest / 64);
    assert.equal(defaultBlocks({ layers: 4096, maxTokens: longest }, gpu), all);
    assert.equal(defaultBlocks({ layers: 2, maxTokens: longest, memory: 5 * blockOf(2) }, gpu), 5);
  });

  it('in host memory has at most 1 GiB, but room for 1024 tokens', () => {
    const host = { kind: 'cpu' };
    assert.equal(defaultBlocks({ layers: 2, maxTokens: 1024 }, host), 8 * 16);
    assert.equal(defaultBlocks({ layers: 64, maxTokens: longest }, host), 2 ** 30 / blockOf(64));
    assert.equal(defaultBlocks({ layers: 4096, maxTokens: longest }, host), 16);
  });

  it('holds at least a block', () => {
    assert.throws(
      () => defaultBlocks({ layers: 2, maxTokens: longest, memory: 1000 }, gpu),
      /kv_cache: expected memory for a block of 65536 bytes, got room for 0/,
    );
  });
});

it('a step has at most as many tokens as its sequences', () => {
  assert.equal(limitsFor(2, 2, 1024).tokens, 2048);
  assert.equal(limitsFor(2, 2, 1024, 4096).tokens, 4096);
  assert.equal(limitsFor(2, 2, 1024, 2 ** 31).tokens, 16 * 1024);
});

describe('host memory for evicted prefixes', () => {
  const sizes = { layers: 2, kvHeads: 2, headDim: 128, blockSize: 64, dtype: 'bf16', device: gpu };
  const blockOf = 2 * 2 * 2 * 64 * 128 * 2;
  const hostBlocks = (
    config: Parameters<typeof resolveInferenceConfig>[0],
    options: object = {},
    draft: CacheSizes | null = null,
  ) => {
    const localCacheSizes = { ...sizes, ...options } as unknown as CacheSizes;
    const resolved = resolveInferenceConfig(config);
    return deriveLimits(resolved, localCacheSizes, { maxTokens: 64, draft }).hostBlocks;
  };

  it('holds as many blocks as fit', () => {
    assert.equal(hostBlocks({}), 0);
    assert.equal(hostBlocks({ kv_cache: { host_memory: 3 * blockOf + 5 } }), 3);
  });

  it('is refused if prefixes are not cached', () => {
    const cache = { host_memory: 3 * blockOf };
    const draft = sizes as unknown as CacheSizes;
    const cases: [() => unknown, RegExp][] = [
      [
        () => hostBlocks({ kv_cache: { ...cache, prefix_caching: false } }),
        /prefix_caching: false/,
      ],
      [() => hostBlocks({ kv_cache: cache }, {}, draft), /got a draft model/],
      [() => hostBlocks({ kv_cache: { host_memory: 5 } }), /got 5, less than a block of \d+/],
      [() => hostBlocks({ kv_cache: cache, tensor_parallel: { tp_size: 2 } }), /several ranks/],
    ];
    for (const [call, message] of cases) assert.throws(call, message);
  });
});
