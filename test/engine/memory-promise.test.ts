// Tests that initialize() refuses a run with too little memory before it allocates, with the
// calculation.

import { statfsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { resolveConfig } from '../../lib/config/index.js';
import { requireMemory } from '../../lib/engine/setup/memory.js';
import { NoOptimizer } from '../../lib/engine/setup/optimizer.js';
import { type DsConfig, DsError, initialize, nn, optim, Tensor } from '../../lib/index.js';
import {
  countNeeds,
  findShortages,
  findSpeculationShortage,
  type MemoryClaim,
  measureClaim,
  suggestSettings,
} from '../../lib/plan/shortages.js';
import { cpu } from '../../lib/runtime/device.js';
import { hostLimits } from '../../lib/runtime/host-limits.js';
import { type TinyOptions, tinyConfig, tinyModel, trainTiny } from '../e2e/tiny-training.js';
import { quiet } from '../support/quiet.js';

jest.mock('node:fs', () => {
  const actual = jest.requireActual('node:fs');
  return { ...actual, statfsSync: jest.fn(actual.statfsSync) };
});

jest.mock('../../lib/runtime/host-limits.js', () => {
  const actual = jest.requireActual('../../lib/runtime/host-limits.js');
  return { ...actual, hostLimits: jest.fn(actual.hostLimits) };
});

const MIB = 2 ** 20;

/** AdamW with a rule of its own, so that its masters stay whole. */
class Whole extends optim.AdamW {
  override update(...args: Parameters<optim.AdamW['update']>): void {
    super.update(...args);
  }
}

function countBytes(
  more: Partial<DsConfig>,
  shards = 1,
  module = tinyModel(),
  AdamW: typeof optim.AdamW = Whole,
) {
  const config = resolveConfig(
    { ...tinyConfig({ precision: 'bf16', offload: false }), ...more },
    { worldSize: shards },
  );
  const optimizer = new AdamW(module.parameters(), { lr: 1e-3 });
  const { needs: bytes } = countNeeds({ module, config, optimizer, shards }, cpu());
  const { length } = module.parameters();
  expect(length).toBeGreaterThan(10);
  return { bytes, n: module.numParameters() };
}

const STATE = 'master weights and optimizer state';
const PARKED = 'gradients on their way';

describe('bytes that a run needs for certain', () => {
  test('on the device: 2 of weights, 2 of gradients, 12 of state', () => {
    const { bytes, n } = countBytes({ zero_optimization: { stage: 0 } });
    expect(bytes.device).toEqual({ weights: 2 * n, gradients: 2 * n, [STATE]: 12 * n });
    expect(bytes.host).toEqual({ weights: 0, [PARKED]: 0, [STATE]: 0 });
    expect(bytes.disk).toEqual({});
  });

  test('in fp32 weights are their own master', () => {
    const { bytes, n } = countBytes(
      { bf16: { enabled: false }, zero_optimization: { stage: 1 } },
      2,
    );
    expect(bytes.device).toEqual({ weights: 4 * n, gradients: 2 * n, [STATE]: 4 * n });
  });

  test('weights that stay in f32 beside 16-bit ones are their own master too', () => {
    const module = tinyModel();
    for (const parameter of module.parameters()) parameter.fixedDtype = 'f32';
    const { bytes, n } = countBytes({ zero_optimization: { stage: 0 } }, 1, module);
    expect(bytes.device).toEqual({ weights: 4 * n, gradients: 4 * n, [STATE]: 8 * n });
  });

  test('offloaded to memory, shared out by four', () => {
    const zero = {
      stage: 3,
      offload_optimizer: { device: 'cpu' },
      offload_param: { device: 'cpu' },
    };
    const { bytes, n } = countBytes({ zero_optimization: zero } as DsConfig, 4);
    expect(bytes.device).toEqual({ weights: 0, gradients: 0, [STATE]: 0 });
    expect(bytes.host).toEqual({ weights: n / 2, [PARKED]: n / 2, [STATE]: 3 * n });
  });

  test('masters in halves: what restores them from bf16 weights, and whole ones of others', () => {
    const zero = { stage: 1, offload_optimizer: { device: 'cpu' } };
    const config = { zero_optimization: zero } as DsConfig;
    const { bytes, n } = countBytes(config, 1, tinyModel(), optim.AdamW);
    expect(bytes.host).toEqual({ weights: 0, [PARKED]: 2 * n, [STATE]: (8 + 2 + 1 / 8) * n });
    const module = tinyModel();
    for (const parameter of module.parameters()) parameter.fixedDtype = 'f32';
    expect(countBytes(config, 1, module, optim.AdamW).bytes.host[STATE]).toBe(12 * n);
  });

  test('a ratio: at least that fraction on either side, for any assignment of units', () => {
    const offload = (ratio: number) => ({
      zero_optimization: { stage: 1, offload_optimizer: { device: 'cpu', ratio } },
    });
    const { bytes, n } = countBytes(offload(0.9) as DsConfig);
    expect(bytes.host[STATE]).toBeLessThan(0.9 * 12 * n);
    expect(bytes.host[STATE]).toBeGreaterThan(0.3 * 12 * n);
    expect(bytes.device[STATE]).toBe(0);
  });

  test('ratio counts trained elements; one parameter may be on either side', () => {
    const module = tinyModel();
    module.requiresGrad_(false);
    module.parameters()[0]?.requireGrad(true);
    const { bytes, n } = countBytes(
      {
        zero_optimization: { stage: 1, offload_optimizer: { device: 'cpu', ratio: 0.9 } },
      } as DsConfig,
      1,
      module,
    );
    expect(bytes.device).toEqual({ weights: 2 * n, gradients: 0, [STATE]: 0 });
    expect(bytes.host[STATE]).toBe(0);
  });

  test('on a disk, except elements that stay in memory', () => {
    const zero = {
      stage: 3,
      offload_optimizer: { device: 'nvme', nvme_path: '/fast' },
      offload_param: { device: 'nvme', nvme_path: '/fast', max_in_cpu: 1000 },
    };
    const { bytes, n } = countBytes({ zero_optimization: zero } as DsConfig);
    expect(bytes.disk).toEqual({ '/fast': 12 * n + 2 * n - 2000 });
    expect(bytes.host).toEqual({ weights: 0, [PARKED]: 2 * n, [STATE]: 0 });
  });

  test('weights on a disk keep whole units in memory', () => {
    const keptBytes = (max_in_cpu: number, shards = 1) => {
      const offload_param = { device: 'nvme', nvme_path: '/fast', max_in_cpu };
      const zero_optimization = { stage: 3, offload_param };
      const { bytes, n } = countBytes({ zero_optimization } as DsConfig, shards);
      return { weights: bytes.host.weights as number, n };
    };
    const { weights, n } = keptBytes(1e9);
    expect(weights).toBe(2 * n);
    expect(keptBytes(1e9, 2).weights).toBe(n);
    expect(keptBytes(1000).weights).toBe(0);
    const { weights: some } = keptBytes(Math.floor(0.9 * n));
    expect(some).toBeGreaterThan(0.2 * n);
    expect(some).toBeLessThan(1.8 * n);
  });
});

test('wider weights keep more bytes in memory', () => {
  const zero = {
    stage: 3,
    offload_param: { device: 'nvme', nvme_path: '/fast', max_in_cpu: 1000 },
  };
  const module = tinyModel();
  for (const parameter of module.parameters()) parameter.fixedDtype = 'f32';
  const { bytes, n } = countBytes({ zero_optimization: zero } as DsConfig, 1, module);
  expect(bytes.disk).toEqual({ '/fast': 4 * n - 4000 });
});

test('a model without elements needs no memory', () => {
  const zero = { stage: 1, offload_optimizer: { device: 'cpu', ratio: 0.5 } };
  const config = resolveConfig({ train_batch_size: 1, zero_optimization: zero } as DsConfig, {
    worldSize: 1,
  });
  const module = new nn.ReLU();
  const optimizer = new NoOptimizer();
  const { device, host } = countNeeds({ module, config, optimizer, shards: 1 }, cpu()).needs;
  const all = [...Object.values(device), ...Object.values(host)];
  expect(all.every((bytes) => bytes === 0)).toBe(true);
});

test('memory that the allocator of the CPU keeps is free for the next engine', () => {
  const module = tinyModel();
  const config = resolveConfig(tinyConfig({ precision: 'fp32', offload: false }), { worldSize: 1 });
  const optimizer = new optim.AdamW(module.parameters(), { lr: 1e-3 });
  const options = { module, config, optimizer, shards: 1 };
  const device = cpu();
  const block = Tensor.empty([2 * MIB], 'f32', cpu()).keep();
  device.trim();
  const before = measureClaim(options, device).returned;
  block.dispose();
  expect(measureClaim(options, device).returned - before).toBe(8 * MIB);
});

test.each([
  [0, 90],
  [1000, 80],
])('reserved space of a disk does not count for user %i', (user, blocks) => {
  const zero = { stage: 1, offload_optimizer: { device: 'nvme', nvme_path: '/fast' } };
  const config = resolveConfig(
    { ...tinyConfig({ precision: 'bf16', offload: false }), zero_optimization: zero } as DsConfig,
    { worldSize: 1 },
  );
  const module = tinyModel();
  const optimizer = new optim.AdamW(module.parameters(), { lr: 1e-3 });
  const disk = { type: 0, bsize: 4096, blocks: 100, bfree: 90, bavail: 80, files: 1, ffree: 1 };
  jest.mocked(statfsSync).mockReturnValueOnce(disk);
  const getuid = jest.spyOn(process, 'getuid' as never).mockReturnValue(user as never);
  const options = { module, config, optimizer, shards: 1 };
  const { disks } = measureClaim(options, cpu());
  getuid.mockRestore();
  expect(disks['/fast']?.free).toBe(blocks * 4096);
});

const weightsOnDisk = (max_in_cpu: number) => ({
  stage: 3 as const,
  offload_param: { device: 'nvme' as const, nvme_path: tmpdir(), max_in_cpu, buffer_count: 1 },
  sub_group_size: 1000,
});

const measured: [name: string, options: Partial<TinyOptions>][] = [
  ['on the device', {}],
  ['in fp32', { precision: 'fp32' }],
  ['with sums in fp32', { gradients: 'fp32', accumulation: 2 }],
  ['in 8 bits', { optimizer: { type: 'AdamW8bit', params: { lr: 1e-3 } } }],
  ['with moments in bf16', { bf16States: true }],
  ['with moments in bf16, offloaded', { bf16States: true, offload: true }],
  ['by LAMB', { optimizer: { type: 'Lamb', params: { lr: 1e-3 } } }],
  ['offloaded', { offload: true }],
  ['half offloaded', { offload: true, ratio: 0.5 }],
  ['speculative', { offload: true, speculative: true }],
  ['streamed', { offload: true, gpuShare: 0.5 }],
  ['with weights', { offload: true, zero: { stage: 3, offload_param: { device: 'cpu' } } }],
  ['on a disk', { offload: true, nvme: tmpdir(), zero: { sub_group_size: 1000 } }],
  ['with weights on a disk', { offload: true, nvme: tmpdir(), zero: weightsOnDisk(1e9) }],
  ['with some weights on a disk', { offload: true, nvme: tmpdir(), zero: weightsOnDisk(30_000) }],
  ['weights alone', { zero: { stage: 3, offload_param: { device: 'cpu' } } }],
];

test.each(measured)('a run takes at least the certain bytes: %s', async (_, options) => {
  const device = cpu();
  await quiet(() => device.memory.inUse);
  const before = device.memory.inUse;
  const model = tinyModel();
  const config = tinyConfig({ precision: 'bf16', offload: false, ...options });
  device.resetPeaks();
  const { engine } = await initialize({ model, config, device });
  const { optimizer, state, stage } = engine.parts;
  const counted = { module: model, config: engine.config, optimizer, shards: 1 };
  const { needs } = countNeeds(counted, device);
  trainTiny(engine, 0, 1);
  const weights = stage.partitions.reduce((sum, { unit }) => sum + unit.bytes.weights, 0);
  expect(needs.device[STATE]).toBeLessThanOrEqual(state.bytes.device);
  expect(needs.host[STATE] ?? 0).toBeLessThanOrEqual(state.bytes.host);
  const parked = (needs.host[STATE] ?? 0) + (needs.host[PARKED] ?? 0);
  expect(parked).toBeLessThanOrEqual(state.bytes.host);
  if (needs.device.weights !== 0) expect(needs.device.weights).toBeLessThanOrEqual(weights);
  const all = [needs.device, needs.host].flatMap((parts) => Object.values(parts) as number[]);
  const certain = all.reduce((a, b) => a + b, 0);
  expect(certain).toBeLessThanOrEqual(device.memory.peakInUse - before);
  expect(certain).toBeGreaterThan(0.2 * (state.bytes.device + state.bytes.host));
  engine.destroy();
});

/** A rank that needs 10 MiB of each. */
function claim(
  more: Partial<MemoryClaim['host']>,
  localOptions: Partial<MemoryClaim> = {},
): MemoryClaim {
  return {
    needs: {
      device: { weights: 10 * MIB },
      host: { state: 10 * MIB },
      disk: { '/fast': 10 * MIB },
    },
    returned: 0,
    device: { name: 'cuda:0', isHost: false, limit: 10 * MIB },
    disks: { '/fast': { disk: '1', free: 100 * MIB } },
    speculated: null,
    ...localOptions,
    host: {
      machine: 'a',
      total: 100 * MIB,
      free: 100 * MIB,
      atMost: 110 * MIB,
      canGrow: false,
      groups: [],
      ...more,
    },
  };
}

const shortagesOf = (claims: readonly MemoryClaim[]): string[] =>
  findShortages(claims).map(
    ({ tier: place, there, isCertain }) => `${place}: ${there}, ${isCertain}`,
  );

describe('too little memory', () => {
  test('an exact fit is not refused', () => {
    const group = { group: '/g', limit: 20 * MIB, free: 20 * MIB };
    const rank = claim(
      { free: 20 * MIB, groups: [group] },
      {
        disks: { '/fast': { disk: '1', free: 20 * MIB } },
      },
    );
    expect(shortagesOf([rank, rank])).toEqual([]);
  });

  test('a device, of the rank that has less', () => {
    const small = claim({}, { device: { name: 'cuda:1', isHost: false, limit: 10 * MIB - 1 } });
    expect(findShortages([claim({}), small]).map(({ of }) => of)).toEqual([
      'the memory of cuda:1 of rank 1',
    ]);
    const free = claim({}, { device: { name: 'cpu', isHost: true, limit: null } });
    expect(shortagesOf([free])).toEqual([]);
  });

  test('ranks of one machine need memory together, ranks of two machines do not', () => {
    const [a, b] = [claim({ free: 15 * MIB }), claim({ free: 15 * MIB })];
    expect(shortagesOf([a, b])).toEqual(['host: 15.0 MiB free of 100.0 MiB, true']);
    expect(shortagesOf([a, claim({ free: 15 * MIB, machine: 'b' })])).toEqual([]);
  });

  test('the weights of a CPU, and memory that the model gives back', () => {
    const onCpu = claim({ free: 15 * MIB }, { device: { name: 'cpu', isHost: true, limit: null } });
    expect(shortagesOf([onCpu])).toEqual(['host: 15.0 MiB free of 100.0 MiB, true']);
    expect(shortagesOf([{ ...onCpu, returned: 5 * MIB }])).toEqual([]);
  });

  test('reports the innermost control group that is too small', () => {
    const groups = [
      { group: '/a/b', limit: 50 * MIB, free: 40 * MIB },
      { group: '/a', limit: 8 * MIB, free: 7 * MIB },
    ];
    expect(shortagesOf([claim({ groups })])).toEqual([
      'host: 7.0 MiB free of the 8.0 MiB limit of control group /a, true',
    ]);
  });

  test('a virtual machine may grow', () => {
    expect(shortagesOf([claim({ free: MIB, canGrow: true })])).toEqual([
      'host: 1.0 MiB free of 100.0 MiB, false',
    ]);
  });

  test('a virtual machine grows up to its total memory and swap', () => {
    const of = (mib: number) => {
      const one = claim({ free: MIB, canGrow: true });
      return { ...one, needs: { ...one.needs, host: { state: mib * MIB } } };
    };
    expect(shortagesOf([of(110)])).toEqual(['host: 1.0 MiB free of 100.0 MiB, false']);
    expect(shortagesOf([of(111)])).toEqual(['host: 110.0 MiB of memory and swap, true']);
    expect(shortagesOf([of(60), of(51)])).toEqual(['host: 110.0 MiB of memory and swap, true']);
  });

  test('a disk that two ranks share', () => {
    const disks = { '/fast': { disk: '1', free: 15 * MIB } };
    expect(shortagesOf([claim({}, { disks })])).toEqual([]);
    expect(shortagesOf([claim({}, { disks }), claim({}, { disks })])).toEqual([
      'disk: 15.0 MiB free, true',
    ]);
  });
});

describe('updates that may be speculative', () => {
  const gpu = { kind: 'cuda', name: 'cuda:0', memory: { cap: 0, total: 2 ** 40 } } as never;
  const claimsOf = (offload: object, precision: 'bf16' | 'fp32' = 'bf16') => {
    const module = tinyModel();
    const zero = { stage: 2, offload_optimizer: { device: 'cpu', ...offload } };
    const options = { ...tinyConfig({ precision, offload: false }), zero_optimization: zero };
    const config = resolveConfig(options as DsConfig, { worldSize: 1 });
    const optimizer = new optim.AdamW(module.parameters(), { lr: 1e-3 });
    const counts = { module, config, optimizer, shards: 1 };
    return { n: module.numParameters(), ...measureClaim(counts, gpu), given: counts };
  };
  const sum = (parts: object): number => Object.values(parts).reduce((a, b) => a + b, 0);

  test('need whole masters and two gradients by default', () => {
    const { n, speculated, needs } = claimsOf({});
    expect(sum(speculated as object)).toBe(16 * n);
    expect(sum(needs.host)).toBe((8 + 2 + 1 / 8) * n);
    // Half of the parameters have no gradient there, and only the lower half of their masters.
    expect(sum(claimsOf({ gpu_share: 0.5 }).speculated as object)).toBe(
      (14 - (4 - 2 - 1 / 8) / 2) * n,
    );
    expect(sum(claimsOf({}, 'fp32').speculated as object)).toBe(20 * n);
    for (const super_offload of [true, false]) {
      expect(claimsOf({ super_offload }).speculated).toBeNull();
    }
  });

  test('wait for the decision if memory is short, with a notice', async () => {
    const { n, given } = claimsOf({});
    const reported = claimsOf({ super_offload: true, gpu_share: 0 }).given;
    const warned = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const job = { world: { device: gpu }, worldSize: 1, rank: 0 } as never;
    const claimsFor = (each: number, of = given) => {
      // The model's f32 weights and the memory cached by the CPU allocator are returned.
      const free = each * n - measureClaim(of, gpu).returned;
      const total = { total: 40 * n, free, atMost: 40 * n };
      const limits = { machine: 'a', ...total, canGrow: false, groups: [] };
      jest.mocked(hostLimits).mockReturnValueOnce(limits);
      return requireMemory(job, of, 1);
    };
    await expect(claimsFor(10)).rejects.toMatchObject({ code: 'DS_OUT_OF_MEMORY' });
    expect(await claimsFor(16)).toBe(given.config);
    // With super_offload: true the masters are whole, and gradients are of two steps.
    await expect(claimsFor(15, reported)).rejects.toThrow(/"super_offload": false/);
    expect(await claimsFor(16, reported)).toBe(reported.config);
    // The part that the device updates has split masters.
    const shared = claimsOf({ super_offload: true }).given;
    expect(await claimsFor(11, shared)).toBe(shared.config);
    await expect(claimsFor(10, shared)).rejects.toMatchObject({ code: 'DS_OUT_OF_MEMORY' });
    expect(warned).not.toHaveBeenCalled();
    const settled = await claimsFor(13);
    const { zero_optimization: zero, ...rest } = settled;
    for (const one of [settled, zero, zero.offload_optimizer]) {
      expect(Object.isFrozen(one)).toBe(true);
    }
    expect(zero.offload_optimizer).toEqual({
      ...given.config.zero_optimization.offload_optimizer,
      super_offload: false,
    });
    const { zero_optimization: _, ...asked } = given.config;
    expect(rest).toEqual(asked);
    const texts = warned.mock.calls.map(([text]) => String(text));
    expect(texts).toEqual([
      expect.stringMatching(
        /updates wait until backward has ended .* two steps .*"super_offload": true/,
      ),
    ]);
    warned.mockRestore();
  });

  test('wait where all ranks of a machine together have too little for that', () => {
    const speculating = { speculated: { state: 16 * MIB } };
    const of = (more: Partial<MemoryClaim['host']>) => [
      claim(more, speculating),
      claim(more, speculating),
    ];
    expect(findSpeculationShortage(of({ free: 32 * MIB }))).toBeNull();
    expect(findSpeculationShortage(of({ free: 31 * MIB }))).toMatchObject({
      there: '31.0 MiB free of 100.0 MiB',
      parts: { state: 32 * MIB },
    });
    // Speculation that may grow, or that the user requested, is accepted.
    expect(findSpeculationShortage(of({ free: 31 * MIB, canGrow: true }))).toBeNull();
    expect(findSpeculationShortage([claim({ free: MIB })])).toBeNull();
  });
});

test('initialize() allocates nothing if memory is short, and trains if it just suffices', async () => {
  const device = cpu();
  const model = tinyModel();
  const config = tinyConfig({ precision: 'fp32', offload: false });
  const bytes = 16 * model.numParameters();
  device.trim();
  device.setMemoryCap(bytes - 1);
  const before = device.memory.allocations;
  let error: unknown;
  try {
    await initialize({ model, config, device });
  } catch (thrown) {
    error = thrown;
  } finally {
    device.setMemoryCap(0);
  }
  expect(error).toBeInstanceOf(DsError);
  const { code, op, expected, got, hint } = error as DsError;
  expect([code, op]).toEqual(['DS_OUT_OF_MEMORY', 'initialize']);
  expect(expected).toMatch(
    /^0\.\d MiB of the memory of cpu \(weights 0\.\d MiB \+ gradients 0\.\d MiB \+ master weights and optimizer state 0\.\d MiB\), before any activations$/,
  );
  expect(got).toMatch(/^0\.\d MiB$/);
  expect(hint).toMatch(/"offload_optimizer": \{ "device": "cpu" \}.*"stage": 3.*ds plan/);
  expect(device.memory.allocations).toBe(before);
  const { engine } = await initialize({ model, config, device });
  expect(trainTiny(engine, 0, 1)[0]).toBeGreaterThan(0);
  engine.destroy();
});

test.each([
  [{ device: 'cpu', super_offload: true }, /"super_offload": false.*"nvme"/s],
  [{ device: 'cpu' }, /^"offload_optimizer": \{ "device": "nvme"/],
  [{ device: 'none' }, /^More ranks/],
] as const)(
  'the error of too little host memory with %j suggests settings that need less',
  (state, words) => {
    const zero_optimization = { stage: 2, offload_optimizer: state } as const;
    const options = {
      train_batch_size: 1,
      optimizer: { type: 'AdamW' },
      zero_optimization,
    } as const;
    const config = resolveConfig(options, { worldSize: 1 });
    expect(suggestSettings('host', config).join('\n')).toMatch(words);
  },
);
