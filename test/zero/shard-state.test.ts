// Tests the state of one rank of two, without the other: a parameter is cut between the ranks, and
// every place of the state lends, writes and updates this rank's fragments alike.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Linear } from '../../lib/nn/index.js';
import { perBlock, perElement } from '../../lib/optim/declared-state.js';
import { AdamW, type Optimizer } from '../../lib/optim/index.js';
import { SplitMaster } from '../../lib/optim/split-master.js';
import { cpu } from '../../lib/runtime/device.js';
import { Stream } from '../../lib/runtime/stream.js';
import { sliceFlat } from '../../lib/tensor/flat.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import { liveTensors } from '../../lib/tensor/tensor.js';
import { type Fragment, shardOf } from '../../lib/zero/layout.js';
import { DeferredUpdates } from '../../lib/zero/optimizer-state.js';
import { MemoryStore, Partition } from '../../lib/zero/partition.js';
import { allocatePinned } from '../../lib/zero/state/memory.js';
import { DeviceState } from '../../lib/zero/state/placement/device.js';
import { HostState } from '../../lib/zero/state/placement/host.js';
import { NvmeState } from '../../lib/zero/state/placement/nvme.js';
import { StreamedState } from '../../lib/zero/state/placement/streamed.js';
import { DeviceWeights, F32Masters, ShardState } from '../../lib/zero/state/shard-state.js';
import { JoinedMasters, SplitMasters } from '../../lib/zero/state/split-masters.js';
import type { Masters, Placement } from '../../lib/zero/state/strategies.js';
import { TileSlots } from '../../lib/zero/state/tile-slots.js';
import { WeightSlots } from '../../lib/zero/state/weight-slots.js';
import { Unit, UnitGradient } from '../../lib/zero/unit.js';

const device = cpu();
const folder = mkdtempSync(join(tmpdir(), 'ds-shard-state-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** A layer with a matrix of 200 and a vector of 10 elements, in two shards of 192. */
function shardOfRank(rank: 0 | 1) {
  const module = new Linear(20, 10);
  const parameters = [...module.namedParameters()].map(([name, parameter]) => {
    parameter.moveTo(device, 'bf16');
    return { name, parameter, group: 0 };
  });
  const options = { dtype: 'bf16', device, layout: { shards: 2 } } as const;
  const unit = new Unit(
    'u',
    module,
    parameters,
    options,
    (weightUnit) => new UnitGradient(weightUnit, 'bf16'),
  );
  const range = shardOf(unit.layout.numel, rank, 2);
  const storage = new MemoryStore(sliceFlat(unit.allocate(), range));
  const partition = new Partition(unit, range, storage);
  const optimizer = new AdamW(module.parameters(), { lr: 0.5 });
  return { partition, optimizer, unit };
}

const tile = 64;
type Made = (optimizer: AdamW, partition: Partition) => ShardState;
const stateOf = (placement: Placement, masters: Masters = new F32Masters(placement)) =>
  new ShardState(placement, masters, new DeviceWeights(placement, masters));
const ruleOf = (optimizer: AdamW) => new SplitMaster(optimizer as never);

const states: readonly [names: string, make: Made][] = [
  [
    'DeviceState, F32Masters, DeviceWeights',
    (optimizer) => stateOf(new DeviceState(device, optimizer)),
  ],
  [
    'HostState, F32Masters, DeviceWeights',
    (optimizer) => stateOf(new HostState(device, optimizer, { tile })),
  ],
  [
    'StreamedState, F32Masters, DeviceWeights',
    (optimizer) => stateOf(new StreamedState(device, optimizer, { tile })),
  ],
  [
    'NvmeState, F32Masters, DeviceWeights',
    (optimizer, partition) => {
      const access = { folder, label: 'state', blockBytes: 4096, depth: 4, checkers: 1 };
      const slots = { count: 2, readsAhead: true, writesBehind: true };
      const options = { ...access, optimizer, partitions: [partition], tile, slots };
      return stateOf(new NvmeState(device, options));
    },
  ],
  [
    'HostState, SplitMasters, DeviceWeights',
    (optimizer) => {
      const rule = ruleOf(optimizer);
      const placement = new HostState(device, rule, { tile });
      const { d2h: down, order: updates, h2d: up } = placement.traffic;
      const slots = new WeightSlots(device, { down, updates, up });
      return stateOf(placement, new SplitMasters(device, rule, placement, slots));
    },
  ],
  [
    'StreamedState, SplitMasters, DeviceWeights',
    (optimizer) => {
      const rule = ruleOf(optimizer);
      const placement = new StreamedState(device, rule, { tile });
      return stateOf(placement, new SplitMasters(device, rule, placement));
    },
  ],
  [
    'StreamedState, JoinedMasters, DeviceWeights',
    (optimizer) => {
      const rule = ruleOf(optimizer);
      const placement = new StreamedState(device, rule, { tile });
      return stateOf(placement, new JoinedMasters(device, rule, placement));
    },
  ],
];

/** Values with bits below those of bf16. */
const valuesOf = ({ numel, from }: Fragment, scale: number): number[] =>
  Array.from({ length: numel }, (_, i) => Math.fround(scale * (1 + (from + i) * 2 ** -12)));

const flat = (values: readonly number[], dtype: 'f32' | 'bf16' = 'f32'): Tensor =>
  held(() => Tensor.from([...values], { dtype, device }));

/** A state with masters and moments written, one fragment after the other. */
function writeState(rank: 0 | 1, make: Made) {
  const { partition, optimizer, unit } = shardOfRank(rank);
  const state = make(optimizer, partition);
  state.adopt(partition);
  for (const fragment of partition.fragments) {
    const values = flat(valuesOf(fragment, 1));
    state.writeMaster(partition, fragment, values);
    values.release();
  }
  const read = (fragment: Fragment, name: string) => {
    const lent = state.lend(partition, fragment, name);
    lent.wait();
    const found = { shape: lent.tensor.shape, values: lent.tensor.toArray().flat() };
    lent.tensor.release();
    return found;
  };
  const write = (fragment: Fragment, name: string, values: readonly number[]): void => {
    const lent = state.lend(partition, fragment, name);
    lent.wait();
    lent.tensor.buffer.write(4 * lent.tensor.offset, Float32Array.from(values));
    lent.keep();
    lent.tensor.release();
  };
  const end = (): void => {
    state.dispose();
    partition.dispose();
    unit.dispose();
  };
  return { partition, state, optimizer, read, write, end };
}

describe.each(states)('%s', (names, make) => {
  test.each([0, 1] as const)('lends and writes the fragments of rank %i', (rank) => {
    const { partition, state, read, write, end } = writeState(rank, make);
    expect(state.names).toBe(names);
    // State on a disk and halves of masters are lent as copies.
    expect(state.lendsCopies).toBe(!/^(Device|Host|Streamed)State, F32/.test(names));
    const shapes = rank === 0 ? [[192]] : [[8], [10]];
    expect(partition.fragments.map((fragment) => read(fragment, 'master').shape)).toEqual(shapes);
    for (const fragment of partition.fragments) {
      expect(read(fragment, 'master').values).toEqual(valuesOf(fragment, 1));
      expect(read(fragment, 'exp_avg').values).toEqual(Array(fragment.numel).fill(0));
      write(fragment, 'exp_avg', valuesOf(fragment, 3));
      write(fragment, 'exp_avg_sq', valuesOf(fragment, 5));
    }
    // Every other fragment keeps its masters.
    const [first] = partition.fragments as [Fragment];
    write(first, 'master', valuesOf(first, -7));
    for (const [i, fragment] of partition.fragments.entries()) {
      expect(read(fragment, 'master').values).toEqual(valuesOf(fragment, i === 0 ? -7 : 1));
      expect(read(fragment, 'exp_avg').values).toEqual(valuesOf(fragment, 3));
      expect(read(fragment, 'exp_avg_sq').values).toEqual(valuesOf(fragment, 5));
    }
    state.refresh(partition);
    const weights = partition.weights.to('f32').toArray() as number[];
    const rounded = flat(valuesOf(first, -7), 'bf16').to('f32').toArray();
    expect(weights.slice(first.offset, first.offset + first.numel)).toEqual(rounded);
    end();
  });

  test('frees what it has allocated', () => {
    const [tensors, bytes] = [liveTensors(), device.memory.inUse];
    const { end } = writeState(1, make);
    end();
    expect(liveTensors() - tensors).toBeLessThanOrEqual(2);
    expect(device.memory.inUse - bytes).toBeLessThan(1024);
  });

  test('updates as state on the device does, after the same gradient', () => {
    const run = (made: Made) => {
      const { partition, state, optimizer, read, end } = writeState(1, made);
      const gradient = Array.from({ length: 192 }, (_, i) => (i < 8 || i >= 64 ? i - 100 : 0));
      const settings = { step: 1, groups: optimizer.groups };
      const control = flat([0.5, 1, 0, 0]);
      for (let step = 1; step <= 2; ++step) {
        partition.grad = flat(gradient, 'bf16');
        partition.ready.record(device.compute);
        expect(state.gradOf(partition) === null).toBe(false);
        state.receive(partition);
        const got = state.gradOf(partition);
        expect(got?.to('f32').toArray()).toEqual(gradient);
        got?.release();
        const schedule = new DeferredUpdates(state, updateRule(state, optimizer), [partition]);
        const plan = { settings: { ...settings, step }, gradientScale: 2 };
        for (const [updated] of schedule.update(control, plan)) expect(updated).toBe(partition);
        state.awaitWeights(partition);
        expect([partition.grad, state.gradOf(partition) === null]).toEqual([null, !lands(state)]);
      }
      state.synchronize();
      const found = partition.fragments.map((fragment) =>
        ['master', 'exp_avg', 'exp_avg_sq'].map((name) => read(fragment, name).values),
      );
      const weights = partition.weights.to('f32').toArray() as number[];
      control.release();
      end();
      return [found, weights.slice(0, 8), weights.slice(64, 74)];
    };
    const [, device0] = states[0] as (typeof states)[0];
    expect(run(make)).toEqual(run(device0));
  });

  test('counts its bytes by place', () => {
    const { state, end } = writeState(1, make);
    const { device: onDevice, host, disk } = state.bytes;
    const [placement = '', masters = ''] = names.split(', ');
    const split = masters !== 'F32Masters';
    const stored = 192 * (split ? 2 + 8 : 4 + 8) + (split ? 192 / 8 : 0);
    expect(disk > 0).toBe(placement === 'NvmeState');
    if (placement === 'DeviceState') expect(onDevice).toBeGreaterThanOrEqual(stored);
    else if (placement !== 'NvmeState') expect(host).toBeGreaterThanOrEqual(stored);
    if (placement === 'NvmeState') expect(disk).toBeGreaterThanOrEqual(stored);
    if (placement === 'DeviceState') expect(host).toBe(0);
    if (placement === 'HostState') expect(onDevice).toBe(0);
    // Two windows with a tile, the control, and one gradient.
    if (placement === 'StreamedState')
      expect(onDevice).toBeGreaterThanOrEqual(2 * 3 * 256 + 16 + 384);
    const { masters: kept, states: moments } = state.deviceMemory;
    const isNear = placement === 'DeviceState';
    const joined = masters === 'JoinedMasters';
    expect([kept.length, moments.length]).toEqual([isNear || joined ? 1 : 0, isNear ? 2 : 0]);
    end();
  });
});

/** The rule of a state with split masters updates their halves. */
const updateRule = (state: ShardState, optimizer: AdamW) =>
  state.names.includes('SplitMasters') ? ruleOf(optimizer) : optimizer;

/** Whether gradients go to memory of the state, which keeps the last one. */
const lands = (state: ShardState): boolean =>
  state.placement.receivesGradients && !state.names.startsWith('StreamedState, SplitMasters');

/** The streams that `body` waits for, and the events that streams wait for in it. */
function waitsOf(body: () => void) {
  const [synchronize, wait] = [
    jest.spyOn(Stream.prototype, 'synchronize'),
    jest.spyOn(Stream.prototype, 'wait'),
  ];
  body();
  const found = {
    streams: synchronize.mock.contexts as readonly Stream[],
    events: wait.mock.calls.map(([event]) => event),
  };
  for (const spy of [synchronize, wait]) spy.mockRestore();
  return found;
}

describe('order of work', () => {
  const [, host] = states[1] as (typeof states)[0];
  const [, streamed] = states[2] as (typeof states)[0];
  const [, split] = states[4] as (typeof states)[0];

  test('a state in host memory waits for all of its streams', () => {
    const { state, end } = writeState(1, host);
    const { d2h, order, h2d } = (state.placement as HostState).traffic;
    const { streams } = waitsOf(() => state.placement.synchronize());
    expect(streams).toEqual([d2h, order, h2d, device.compute]);
    end();
    const windowed = writeState(1, streamed);
    const waited = waitsOf(() => windowed.state.placement.synchronize());
    expect(waited.streams).toHaveLength(6);
    windowed.end();
  });

  test('gradients are freed at the end of backward, after their copies', () => {
    const { state, partition, end } = writeState(1, host);
    const { traffic } = state.placement as HostState;
    partition.grad = flat(Array(192).fill(1), 'bf16');
    partition.ready.record(device.compute);
    state.receive(partition);
    const before = liveTensors();
    const record = jest.spyOn(traffic.computed, 'record');
    traffic.endBackward();
    expect(liveTensors()).toBe(before - 1);
    expect(record).toHaveBeenCalledWith(device.compute);
    record.mockRestore();
    end();
  });

  test('compute waits for updated weights once', () => {
    const { state, partition, optimizer, end } = writeState(1, host);
    const { uploaded } = state.partOf(partition);
    const waits = () => waitsOf(() => state.awaitWeights(partition)).events.includes(uploaded);
    expect(waits()).toBe(false);
    partition.grad = flat(Array(192).fill(1), 'bf16');
    partition.ready.record(device.compute);
    state.receive(partition);
    const control = flat([1, 1, 0, 0]);
    const plan = { settings: { step: 1, groups: optimizer.groups }, gradientScale: 1 };
    for (const _ of new DeferredUpdates(state, optimizer, [partition]).update(control, plan));
    expect([waits(), waits()]).toEqual([true, false]);
    control.release();
    end();
  });

  test('lent halves in one memory wait for their upload, streamed ones for all', () => {
    const { state, partition, end } = writeState(1, split);
    const [fragment] = partition.fragments as [Fragment];
    const lend = (of: ShardState, from: Partition) => () =>
      of.lend(from, fragment, 'master').tensor.release();
    const synchronize = jest.spyOn(state.placement, 'synchronize');
    const { uploaded } = state.partOf(partition);
    expect(waitsOf(lend(state, partition)).events).toContain(uploaded);
    expect(synchronize).not.toHaveBeenCalled();
    // A change of the weights is a change of split masters, once work has run.
    state.refresh(partition);
    expect(synchronize).toHaveBeenCalledTimes(1);
    end();
    const joined = writeState(1, (states[6] as (typeof states)[0])[1]);
    const all = jest.spyOn(joined.state.placement, 'synchronize');
    lend(joined.state, joined.partition)();
    expect(all).toHaveBeenCalledTimes(1);
    joined.end();
  });
});

test('joined masters keep offloaded weights on the device, and memory for their largest tile', () => {
  const { partition, optimizer, unit } = shardOfRank(0);
  const rule = ruleOf(optimizer);
  const placement = new StreamedState(device, rule, { tile });
  const masters = new JoinedMasters(device, rule, placement);
  const offloaded = new MemoryStore(allocatePinned(device, [192], 'bf16'));
  const tensor = flat(
    Array.from({ length: 192 }, (_, i) => i),
    'bf16',
  );
  offloaded.store(tensor, device.compute);
  device.compute.synchronize();
  const own = Object.assign(Object.create(partition) as Partition, { storage: offloaded });
  const partOf = (sizes: readonly number[]) =>
    ({ partition: own, tiles: sizes.map((numel) => ({ range: { numel } })) }) as never;
  expect(own.weights.buffer.pinned).toBe(true);
  masters.adopt(partOf([64, 128, 64]));
  expect(own.weights.buffer.pinned).toBe(false);
  expect(own.weights.toArray()).toEqual(tensor.toArray());
  expect(masters.bytes.device).toBe(128 * 4);
  const kept = own.weights;
  for (const sizes of [[128], [], [64]]) masters.adopt(partOf(sizes));
  expect([own.weights, masters.bytes.device]).toEqual([kept, 128 * 4]);
  masters.dispose();
  placement.dispose();
  offloaded.dispose();
  partition.dispose();
  unit.dispose();
});

test('a disk lends state of blocks in its own dtype, over all tiles', () => {
  const { partition, unit } = shardOfRank(0);
  const optimizer = {
    name: 'Mine',
    declareState: (_: number, shape: readonly number[]) => ({
      moment: { ...perElement(shape, 9), dtype: 'bf16' as const },
      scale: perBlock(shape, 64),
    }),
  } as unknown as Optimizer;
  const access = { folder, label: 'state', blockBytes: 4096, depth: 4, checkers: 1 };
  const slots = { count: 2, readsAhead: true, writesBehind: true };
  const options = { ...access, optimizer, partitions: [partition], tile, slots };
  const state = stateOf(new NvmeState(device, options));
  state.adopt(partition);
  const [fragment] = partition.fragments as [Fragment];
  const read = (name: string) => {
    const lent = state.lend(partition, fragment, name);
    lent.wait();
    return lent;
  };
  const scale = read('scale');
  expect([scale.tensor.shape, scale.tensor.dtype]).toEqual([[3], 'f32']);
  scale.tensor.buffer.write(0, Float32Array.of(1, 2, 3));
  scale.keep();
  const again = read('scale');
  expect(again.tensor.toArray()).toEqual([1, 2, 3]);
  const moment = read('moment');
  expect([moment.tensor.dtype, moment.tensor.shape]).toEqual(['bf16', [192]]);
  expect(new Set(moment.tensor.to('f32').toArray() as number[])).toEqual(new Set([9]));
  for (const { tensor } of [scale, again, moment]) tensor.release();
  // After a tile, the next ones are announced in order, and the first ones after the last.
  const { tiles } = state.partOf(partition);
  const expecting = jest.spyOn(TileSlots.prototype, 'expect').mockImplementation(() => {});
  for (const stateTile of tiles) {
    const opened = state.open(partition, stateTile);
    state.close(partition, opened, true);
  }
  const announced = expecting.mock.calls.map(([next]) =>
    [...next].map((storedTile) => tiles.indexOf(storedTile as never)),
  );
  expecting.mockRestore();
  expect(announced).toEqual([
    [1, 2],
    [2, 0],
    [0, 1],
  ]);
  state.dispose();
  partition.dispose();
  unit.dispose();
});
