// Tests the stored processor rates of ranks: the first rank writes the file, whole or not at all.
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { initialize, nn, type Tensor } from '../../lib/index.js';
import { findGpuShare, momentsDType, type ShareOptions } from '../../lib/plan/gpu-share.js';
import { plainSetup, type Setup } from '../../lib/plan/index.js';
import { loadOrMeasureRates } from '../../lib/plan/known-rates.js';
import { measureRates } from '../../lib/plan/processor-rates.js';
import { cpu } from '../../lib/runtime/device.js';
import type { AdamWSpeculateArgs } from '../../lib/runtime/kernels.generated.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';

jest.mock('../../lib/plan/known-rates.js', () => {
  const real = jest.requireActual('../../lib/plan/known-rates.js');
  return { ...real, loadOrMeasureRates: jest.fn(real.loadOrMeasureRates) };
});
jest.mock('../../lib/runtime/kernels.generated.js', () => {
  const real = jest.requireActual('../../lib/runtime/kernels.generated.js');
  return { ...real, adamWSpeculateOnHost: jest.fn(real.adamWSpeculateOnHost) };
});
const updated = kernels.adamWSpeculateOnHost as jest.Mock;

let folder: string;
let file: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-rates-'));
  file = join(folder, 'below', 'rates.json');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const rates = (host: number) => ({ host, link: 1 });

/** The rates of a rank; `first` is the answer of the first rank. Default: its own answer. */
function asRank(rank: number, first?: boolean) {
  const measure = jest.fn(() => rates(1 + rank));
  const agree = (own: boolean) => first ?? own;
  const got = loadOrMeasureRates('host', { isFirst: rank === 0, broadcast: agree, measure, file });
  return { got, measured: measure.mock.calls.length };
}

test('measurements update moments in their dtype', async () => {
  for (const [bf16_optimizer_states, dtype] of [
    [false, 'f32'],
    [true, 'bf16'],
  ] as const) {
    const { engine } = await initialize({
      model: new nn.Linear(4, 4),
      device: 'cpu',
      config: {
        train_batch_size: 1,
        bf16: { enabled: true, bf16_optimizer_states },
        optimizer: { type: 'AdamW', params: { lr: 0.1 } },
      },
    });
    const { partitions } = engine.parts.stage;
    const moments = momentsDType({ partitions, optimizer: engine.optimizer });
    expect(moments).toBe(dtype);
    engine.destroy();
    updated.mockClear();
    measureRates(cpu(), { elements: 8, passes: 1, moments });
    const [{ master, m, v }] = updated.mock.calls[0] as [AdamWSpeculateArgs];
    expect([master, m, v].map((view) => (view as Tensor).dtype)).toEqual(['f32', dtype, dtype]);
  }
});

test('all ranks measure concurrently, and the first one writes', () => {
  expect(asRank(1, false)).toEqual({ got: rates(2), measured: 1 });
  expect(readdirSync(folder)).toEqual([]);
  expect(asRank(0)).toEqual({ got: rates(1), measured: 1 });
  expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual({ host: rates(1) });
  expect(asRank(0)).toEqual({ got: rates(1), measured: 0 });
  expect(asRank(1, true)).toEqual({ got: rates(1), measured: 0 });
});

test('the answer of the first rank counts on all ranks', () => {
  expect(asRank(1, true)).toEqual({ got: null, measured: 0 });
  asRank(0);
  expect(asRank(1, false)).toEqual({ got: rates(2), measured: 1 });
  expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual({ host: rates(1) });
});

test('a failed write leaves no other files', () => {
  mkdirSync(file, { recursive: true });
  writeFileSync(join(file, 'mine'), '');
  expect(asRank(0)).toEqual({ got: rates(1), measured: 1 });
  expect(readdirSync(join(folder, 'below'))).toEqual(['rates.json']);
});

describe('gradients that stay from backward to the update', () => {
  const numel = 2 ** 24;

  /**
   * For one of two ranks, on a GPU with spare memory of twice its part of a bf16 gradient. The
   * weights are there or come later.
   */
  function shareWhere(options: {
    gradDtype: 'bf16' | 'f32';
    shardsGradients: boolean;
    hasWeights?: boolean;
    own?: Partial<Setup>;
  }): number {
    const { gradDtype, shardsGradients, hasWeights = false, own = {} } = options;
    (loadOrMeasureRates as jest.Mock).mockReturnValueOnce({ host: 1, link: 1e6 });
    const inUse = hasWeights ? 4 * numel : 0;
    const bytes = { weights: inUse, gradients: 0 };
    const stage = shardsGradients ? 2 : 1;
    const unit = {
      layout: { numel: 2 * numel },
      dtype: 'bf16',
      gradient: { dtype: gradDtype },
      bytes,
    };
    const memory = { cap: 0, total: (4 + 4) * numel, inUse };
    return findGpuShare({
      device: { kind: 'cuda', info: { name: 'a GPU' }, memory },
      partitions: [{ numel, unit, weights: { dtype: 'bf16' }, groups: [] }],
      group: { rank: 0, size: 1 },
      setup: { ...plainSetup, stage, optimizer: 'cpu', speculates: false, ...own },
    } as unknown as ShareOptions);
  }

  test('are counted in their own dtype', () => {
    expect(shareWhere({ gradDtype: 'bf16', shardsGradients: true })).toBeCloseTo(1, 4);
    expect(shareWhere({ gradDtype: 'f32', shardsGradients: true })).toBe(0.5);
  });

  test('take more beside upper halves of masters, and weights, where these stay, too', () => {
    const shareKept = (localOptions: Partial<Setup>) =>
      shareWhere({
        gradDtype: 'bf16',
        shardsGradients: true,
        own: { speculates: true, ...localOptions },
      });
    expect(shareKept({ canSplit: false })).toBe(0.125);
    expect(shareKept({})).toBeCloseTo((0.125 * 4) / 6);
    expect(shareKept({ weights: 'cpu' })).toBeCloseTo((0.125 * 4) / 8);
  });

  test('have the memory beside weights, which are counted once', () => {
    const options = { gradDtype: 'f32', shardsGradients: true } as const;
    expect(shareWhere({ ...options, hasWeights: true })).toBe(shareWhere(options));
  });

  test('are whole units if backward keeps them', () => {
    expect(shareWhere({ gradDtype: 'bf16', shardsGradients: false })).toBe(0.5);
    expect(shareWhere({ gradDtype: 'f32', shardsGradients: false })).toBe(0.25);
  });
});
