// Tests the plan's choice among open settings, by the available memory.
import { nn } from '../../lib/index.js';
import {
  type CandidateSetup,
  chooseSetup,
  countSizes,
  H200,
  plainSetup,
  predictGpuShare,
  type SelectionInputs,
  type Setup,
  sizesOf,
} from '../../lib/plan/index.js';

const GIB = 2 ** 30;
const sizes = sizesOf(new nn.models.GPT2(nn.models.GPT2.config('1558M')));

const at = (ranks: number) => ({
  nodes: 1,
  devicesPerNode: ranks,
  coresPerNode: 16 * ranks,
  nodeLink: 50e9,
});

/** All candidates of stage and offload for a number of ranks, in arbitrary order. */
function ways(ranks: number): CandidateSetup<Partial<Setup>>[] {
  const common = { ...plainSetup, ranks, microBatch: 8, checkpointing: true };
  const stages = [3, 2, 1] as const;
  const onHost = stages.flatMap((stage) =>
    [1, 0.75, 0.5, 0.25].flatMap((ratio) =>
      [true, false].map((speculates) => ({ stage, optimizer: 'cpu', ratio, speculates }) as const),
    ),
  );
  const share = predictGpuShare({ ...common, optimizer: 'cpu' }, H200, at(ranks));
  const all: Partial<Setup>[] = [
    { stage: 3, optimizer: 'cpu', weights: 'cpu', speculates: false },
    ...onHost.flatMap((item) => [item, { ...item, gpuShare: share }]),
    ...stages.map((stage) => ({ stage })),
    { stage: 0 },
  ];
  return all.map((config) => ({ config, setup: { ...common, ...config } }));
}

const ROOM = { device: 139 * GIB, host: 128 * GIB, hostAtMost: 128 * GIB, disk: 0 };

function choose(ranks: number, room: Partial<typeof ROOM>, more: Partial<SelectionInputs> = {}) {
  const rooms = { ...ROOM, hostAtMost: room.host ?? ROOM.hostAtMost, ...room };
  const common = { sizes, knowsActivations: true, isHost: false, rates: H200 };
  return chooseSetup(ways(ranks), { ...common, cluster: at(ranks), available: rooms, ...more });
}

const chooseConfig = (...values: Parameters<typeof choose>) => choose(...values).best?.config;

describe('on one device', () => {
  test('nothing is offloaded if everything fits', () => {
    expect(chooseConfig(1, {})).toEqual({ stage: 0 });
  });

  test('with less memory, more state and finally weights move to the host', () => {
    const ratios = [24, 20, 16, 12].map(
      (gib) => chooseConfig(1, { device: gib * GIB })?.ratio ?? 0,
    );
    expect(ratios).toEqual([...ratios].sort((a, b) => a - b));
    expect(new Set(ratios).size).toBeGreaterThan(2);
    expect(chooseConfig(1, { device: 5 * GIB })).toMatchObject({ stage: 3, weights: 'cpu' });
    const steps = [40, 24, 16, 12].map((gib) => choose(1, { device: gib * GIB }).best?.step ?? 0);
    expect(steps).toEqual([...steps].sort((a, b) => a - b));
  });

  test('chosen settings fit with their margin, and refused ones do not', () => {
    for (const gib of [40, 24, 16, 12, 8, 5]) {
      const { best } = choose(1, { device: gib * GIB, host: 40 * GIB });
      expect(best?.device).toBeLessThanOrEqual(gib * GIB);
      expect(best?.host).toBeLessThanOrEqual(40 * GIB);
    }
    const { best, leanest } = choose(1, { device: 2 * GIB });
    expect(best).toBeNull();
    expect(leanest.config).toMatchObject({ stage: 3, weights: 'cpu' });
    expect(leanest.device).toBeGreaterThan(2 * GIB);
  });

  test('updates wait for the step decision if the host has too little memory for speculation', () => {
    const device = 10 * GIB;
    expect(chooseConfig(1, { device, host: 64 * GIB })).toMatchObject({
      ratio: 1,
      speculates: true,
    });
    expect(chooseConfig(1, { device, host: 20 * GIB })).toMatchObject({
      ratio: 1,
      speculates: false,
    });
    expect(chooseConfig(1, { device, host: 8 * GIB })).toBeUndefined();
  });

  test('a virtual machine that may grow is asked for the least memory', () => {
    const { best, leanest } = choose(1, { device: 9 * GIB, host: 8 * GIB, hostAtMost: 64 * GIB });
    expect(best).toBe(leanest);
    expect(best?.host).toBeGreaterThan(8 * GIB);
    expect(best?.setup).toMatchObject({ optimizer: 'cpu' });
  });
});

describe('on several ranks', () => {
  test('ZeRO shards state before it is moved to the host', () => {
    expect(chooseConfig(4, {})).toEqual({ stage: 1 });
    expect(chooseConfig(4, { device: 16 * GIB })).not.toHaveProperty('optimizer');
    expect(chooseConfig(4, { device: 6 * GIB })).toMatchObject({ optimizer: 'cpu' });
  });
});

test('the CPU offloads nothing, and ranks shard no more than necessary', () => {
  const onHost = { isHost: true };
  const room = { device: null } as never;
  expect(chooseConfig(1, room, onHost)).toEqual({ stage: 0 });
  expect(chooseConfig(4, room, onHost)).toEqual({ stage: 0 });
  expect(choose(4, room, onHost).best?.step).toBeNull();
  const small = { device: null, host: 24 * GIB } as never;
  expect(chooseConfig(4, small, onHost)).toMatchObject({ stage: expect.any(Number) });
  expect(chooseConfig(4, small, onHost)?.stage).toBeGreaterThan(0);
  expect(chooseConfig(4, small, onHost)).not.toHaveProperty('optimizer');
  expect(chooseConfig(1, { device: null, host: 12 * GIB } as never, onHost)).toBeUndefined();
});

test('with unknown activations, half of the device stays free if possible', () => {
  const model = new nn.Sequential(
    ...Array.from({ length: 8 }, () => new nn.Linear(4096, 4096, { bias: false })),
  );
  const unknown = { sizes: countSizes(model), knowsActivations: false };
  // 16 bytes of each parameter: weights, gradients, masters and moments.
  expect(countSizes(model).parameters * 16).toBe(2 * GIB);
  expect(chooseConfig(1, { device: 8 * GIB }, unknown)).toEqual({ stage: 0 });
  expect(choose(1, { device: 8 * GIB }, unknown).best?.step).toBeNull();
  const moved = choose(1, { device: 4 * GIB }, unknown).best;
  expect(moved?.config).toMatchObject({ optimizer: 'cpu' });
  expect(moved?.device).toBeLessThan(2 * GIB);
  const tight = choose(1, { device: 1.5 * GIB }, unknown);
  expect(tight.best).toBe(tight.leanest);
  expect(tight.best?.device).toBeGreaterThan(0.75 * GIB);
});
