// Tests the out-of-memory advice of an engine: the limit, the owners of memory, and the best fix.
import { resolveConfig } from '../../lib/config/index.js';
import { adviseOnMemory } from '../../lib/engine/watch/memory-advice.js';
import * as breakdown from '../../lib/engine/watch/memory-breakdown.js';
import type { DsConfig } from '../../lib/index.js';
import { StreamedState } from '../../lib/zero/state/placement/streamed.js';

jest.mock('../../lib/engine/watch/memory-breakdown.js', () => ({ measureMemory: jest.fn() }));

const GIB = 2 ** 30;

interface Given {
  zero?: object;
  cap?: number;
  kind?: 'cuda' | 'cpu';
  ranks?: number;
  micro?: number;
  use?: Partial<Record<'weights' | 'gradients' | 'optimizer' | 'other', number>>;
  shares?: object[];
  more?: object;
}

/** The advice of an engine that holds so many GiB. */
function advice({ zero = {}, cap = 0, kind = 'cuda', ranks = 1, micro = 4, ...given }: Given) {
  const use = { weights: 2, gradients: 2, optimizer: 12, other: 6, ...given.use };
  const bytes = Object.fromEntries(Object.entries(use).map(([name, n]) => [name, n * GIB]));
  jest.mocked(breakdown.measureMemory).mockReturnValue({ device: bytes } as never);
  const config = resolveConfig(
    {
      train_micro_batch_size_per_gpu: micro,
      bf16: { enabled: true },
      zero_optimization: zero,
      ...given.more,
    } as DsConfig,
    { worldSize: ranks },
  );
  const device = { kind, name: 'the GPU', memory: { cap: cap * GIB, total: 80 * GIB } };
  const rest = {
    state: { updateGroups: given.shares ?? [] },
    ranks: { dataGroup: { size: ranks } },
  };
  return adviseOnMemory({ config, device, ...rest } as never);
}

test('the error lists the owners of memory and the total or the cap', () => {
  const { held } = advice({});
  expect(held).toMatch(/^weights 2\.0 GiB, gradients 2\.0 GiB, .* 12\.0 GiB, .* 6\.0 GiB, under /);
  expect(held).toMatch(/under the 80\.0 GiB of the GPU$/);
  expect(advice({ cap: 30 }).held).toMatch(/under the cap 30\.0 GiB$/);
});

test('three settings are suggested, the one that frees most first', () => {
  const { hint } = advice({});
  expect(hint).toMatch(/^Most effective settings: \(1\) .*"offload_optimizer".* moves 12\.0 GiB/);
  expect(hint).toMatch(
    /\(2\) checkpoint\(\) .* 4\.0 GiB.*\(3\) "train_micro_batch.*: 2 .* 3\.0 GiB/,
  );
  expect(hint).not.toContain('(4)');
});

test('raises a cap by the missing bytes', () => {
  expect(advice({ cap: 30 }).hint).toMatch(/\(1\) a higher cap: .* 30\.0 GiB of 80\.0 GiB/);
});

test('stage 0 on a GPU is offloaded together with stage 1', () => {
  expect(advice({}).hint).toContain('"zero_optimization": { "stage": 1, "offload_optimizer"');
  expect(advice({ zero: { stage: 2 } }).hint).toContain('"zero_optimization": { "offload_opt');
  expect(advice({ kind: 'cpu' }).hint).not.toContain('offload');
});

test('the next stage divides its state among the ranks', () => {
  const shares = (stage: number, ranks: number) =>
    /"zero_optimization\.stage": (\d) frees about (\S+)/
      .exec(advice({ zero: { stage }, ranks, kind: 'cpu', use: { other: 0 } }).hint)
      ?.slice(1);
  expect(shares(0, 4)).toEqual(['2', '10.5']);
  expect(shares(1, 4)).toEqual(['2', '1.5']);
  expect(shares(2, 2)).toEqual(['3', '1.0']);
  expect(shares(3, 2)).toBeUndefined();
  // One rank has no other rank to share with.
  expect(shares(1, 1)).toBeUndefined();
});

test('suggests offload_param for stage 3, unless it is set', () => {
  const use = { weights: 40 };
  expect(advice({ zero: { stage: 3 }, use }).hint).toMatch(/\(1\) .*offload_param.* moves 40\.0/);
  const there = { stage: 3, offload_param: { device: 'cpu' } };
  expect(advice({ zero: there, use }).hint).not.toContain('offload_param');
  expect(advice({ zero: { stage: 2 }, use }).hint).not.toContain('offload_param');
});

test('does not suggest less than one sample, but bf16 instead of f32', () => {
  const one = advice({ micro: 1, zero: { stage: 3 }, use: { optimizer: 0, weights: 0 } }).hint;
  expect(one).not.toContain('train_micro_batch_size_per_gpu');
  const f32 = advice({ more: { bf16: { enabled: false } }, use: { optimizer: 0 } }).hint;
  expect(f32).toMatch(/"bf16": \{ "enabled": true \} halves activations, by about 3\.0 GiB/);
  expect(advice({ use: { optimizer: 0 } }).hint).not.toContain('"bf16"');
  const odd = advice({ micro: 5, more: { gradient_accumulation_steps: 3 } }).hint;
  expect(odd).toMatch(/"train_micro_batch_size_per_gpu": 2 with "gradient_accumulation_steps": 8/);
});

test('a share of updates on the GPU has its state, waiting gradients and offloaded weights there', () => {
  const shard = (grad: object | null) => ({
    grad,
    bytes: { gradients: GIB },
    unit: { gradient: { bytes: 2 * GIB } },
    storage: { bytes: { device: 4 * GIB } },
  });
  const share = (schedule: object, partitions: object[]) => ({
    state: { placement: Object.create(StreamedState.prototype), bytes: { device: 8 * GIB } },
    schedule,
    partitions,
  });
  const freedBytes = (shares: object[], params = 'none') => {
    const zero = {
      stage: 3,
      offload_param: { device: params },
      offload_optimizer: { device: 'cpu' },
    };
    const { hint } = advice({ zero, shares, use: { other: 0, weights: 0 } });
    return /gpu_share": 0 frees (\S+)/.exec(hint)?.[1];
  };
  expect(freedBytes([])).toBeUndefined();
  expect(freedBytes([{ ...share({}, []), state: { placement: {}, bytes: {} } }])).toBeUndefined();
  expect(freedBytes([share({}, [])])).toBe('8.0');
  expect(freedBytes([share({ bytes: { device: 16 * GIB } }, []), share({}, [])])).toBe('32.0');
  const both = share({}, [shard({}), shard(null)]);
  expect(freedBytes([both])).toBe('11.0');
  expect(freedBytes([both], 'cpu')).toBe('19.0');
});

test('there is no advice if nothing can be freed', () => {
  const use = { weights: 0, gradients: 0, optimizer: 0, other: 0 };
  expect(advice({ use }).hint).toBe('');
});
