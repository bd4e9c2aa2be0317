// Tests schedules of updates in one process: each of them gives the bits of plain updates.
import { Linear } from '../../lib/nn/index.js';
import {
  AdamW,
  Lamb,
  Muon,
  makeMuonGroups,
  OneBitSGD,
  type Optimizer,
  Sgd,
} from '../../lib/optim/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { dtypeSize } from '../../lib/runtime/dtype.js';
import type { View } from '../../lib/runtime/view.js';
import { sliceFlat } from '../../lib/tensor/flat.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import { liveTensors } from '../../lib/tensor/tensor.js';
import { DeferredUpdates, OptimizerState } from '../../lib/zero/optimizer-state.js';
import { MemoryStore, Partition } from '../../lib/zero/partition.js';
import { ExchangedUpdates } from '../../lib/zero/schedule/exchanged-updates.js';
import { GatheredUpdates } from '../../lib/zero/schedule/gathered-updates.js';
import { Speculative } from '../../lib/zero/schedule/speculative.js';
import { SummedUpdates } from '../../lib/zero/schedule/summed-updates.js';
import { DeviceState } from '../../lib/zero/state/placement/device.js';
import { HostState } from '../../lib/zero/state/placement/host.js';
import { DeviceWeights, F32Masters, ShardState } from '../../lib/zero/state/shard-state.js';
import type { Placement, Schedule } from '../../lib/zero/state/strategies.js';
import { Unit, UnitGradient } from '../../lib/zero/unit.js';
import type { CollectiveStart, Collectives } from '../../lib/zero/wire.js';

const device = cpu();
const flat = (values: readonly number[]): Tensor =>
  held(() => Tensor.from([...values], { dtype: 'f32', device }));

/** Copies the bytes of a view to another. */
function copyView(to: View, from: View, { stream }: CollectiveStart): void {
  if (to.buffer === from.buffer && to.offset === from.offset) return;
  const [size, numel] = [dtypeSize(from.dtype), from.shape.reduce((a, b) => a * b, 1)];
  const place = { to: to.offset * size, from: from.offset * size, bytes: numel * size };
  to.buffer.copyFrom(from.buffer, place, stream);
}

/** A group of one rank, and the purposes of its collectives. */
function aloneGroup() {
  const purposes: string[] = [];
  const copyCase = (output: View, input: View, at: CollectiveStart) => {
    purposes.push(at.purpose);
    copyView(output, input, at);
    return { wait: () => {} };
  };
  const group = {
    rank: 0,
    size: 1,
    allGather: copyCase,
    reduceScatter: copyCase,
    allToAll: copyCase,
    allReduce(_: unknown, at: CollectiveStart) {
      purposes.push(at.purpose);
      return { wait: () => {} };
    },
  } as unknown as Collectives;
  return { group, purposes };
}

interface Parts {
  state: ShardState;
  partitions: readonly Partition[];
  optimizer: Optimizer;
}

interface Run {
  optimizerOf: (layers: readonly Linear[]) => Optimizer;
  scheduleOf: (parts: Parts) => Schedule;
  placementOf?: (optimizer: Optimizer) => Placement;
  /** Factor and apply flag of each step. */
  controls?: readonly (readonly [multiplier: number, apply: number])[];
  /** Whether one unit has the parameters of both layers. Default: each has its own. */
  together?: boolean;
  /** Called between backward and update of each step. */
  between?: (state: OptimizerState, step: number, partitions: readonly Partition[]) => void;
}

const usual = Array(4).fill([0.5, 1]);

/** Trains two layers, with two groups of parameters each; returns masters and weights. */
function train({ optimizerOf, scheduleOf, placementOf, ...run }: Run) {
  const { controls = usual, together = false, between } = run;
  const layers = [new Linear(12, 10), new Linear(10, 12)];
  const optimizer = optimizerOf(layers);
  const groupOf = (parameter: unknown): number =>
    optimizer.groups.findIndex(({ params }) => params.includes(parameter as never));
  const own = layers.map((layer, i) =>
    [...layer.namedParameters()].map(([name, parameter]) => ({
      name: `${i}.${name}`,
      parameter,
      group: groupOf(parameter),
    })),
  );
  const units = (together ? [own.flat()] : own).map((parameters, i) => {
    const [layer, options] = [layers[i] as Linear, { dtype: 'f32', device } as const];
    return new Unit(`u${i}`, layer, parameters, options, (unit) => new UnitGradient(unit, 'f32'));
  });
  const partitions = units.map((unit) => {
    const range = { offset: 0, numel: unit.layout.numel };
    return new Partition(unit, range, new MemoryStore(sliceFlat(unit.allocate(), range)));
  });
  const placement = placementOf?.(optimizer) ?? new DeviceState(device, optimizer);
  const masters = new F32Masters(placement);
  const shardState = new ShardState(placement, masters, new DeviceWeights(placement, masters));
  const schedule = scheduleOf({ state: shardState, partitions, optimizer });
  const state = new OptimizerState();
  state.add({ partitions, state: shardState, schedule });
  for (const partition of partitions) {
    state.adopt(partition);
    for (const fragment of partition.fragments) {
      const values = flat(Array.from({ length: fragment.numel }, (_, i) => Math.sin(i + 1)));
      state.writeMaster(partition, fragment, values);
      values.release();
    }
    state.refresh(partition);
  }
  const published: string[] = [];
  const publisher = { publish: ({ unit }: Partition) => void published.push(unit.name) };
  let applied = 0;
  for (const [i, [multiplier, apply]] of controls.entries()) {
    const settings = { step: applied + 1, groups: optimizer.groups };
    const plan = { settings, gradientScale: 2 };
    state.prepare(plan);
    for (const partition of [...partitions].reverse()) {
      const gradient = new Array<number>(partition.numel).fill(0);
      for (const { offset, numel } of partition.fragments) {
        for (let j = 0; j < numel; ++j) gradient[offset + j] = Math.cos(3 * i + j);
      }
      partition.grad = flat(gradient);
      partition.ready.record(device.compute);
      state.gradReady(partition);
    }
    between?.(state, i, partitions);
    const control = flat([multiplier, apply, 0, 0]);
    state.update(control, plan, publisher);
    control.release();
    for (const partition of partitions) state.awaitWeights(partition);
    applied += apply;
  }
  state.synchronize();
  const found = partitions.map((partition) => [
    (partition.weights.toArray() as number[]).map((value, j) =>
      partition.fragments.some(({ offset, numel }) => j >= offset && j < offset + numel)
        ? value
        : 0,
    ),
    ...partition.fragments.map((fragment) => {
      const lent = state.lend(partition, fragment, 'master');
      lent.wait();
      const values = lent.tensor.toArray().flat();
      lent.tensor.release();
      return values;
    }),
  ]);
  const errors = state.rankErrors().map(({ entry, name, from, tensor }) => {
    const item = { name: `${entry.name} ${name}`, from, values: tensor.toArray() as number[] };
    tensor.release();
    return item;
  });
  const { bytes } = state;
  schedule.dispose();
  shardState.dispose();
  for (const partition of partitions) partition.dispose();
  for (const unit of units) unit.dispose();
  expect(published).toEqual(controls.flatMap(() => units.map(({ name }) => name)));
  return { found, errors, bytes };
}

/** Weight decay of matrices only. */
const groupsOf = (layers: readonly Linear[]) => [
  { params: layers.map(({ weight }) => weight), weightDecay: 0.1 },
  { params: layers.flatMap(({ bias }) => bias ?? []), weightDecay: 0 },
];
type Params = ReturnType<typeof groupsOf>[number];
const defer = ({ state, partitions, optimizer }: Parts): Schedule =>
  new DeferredUpdates(state, optimizer, partitions);
const onHost = (readBefore: boolean) => (optimizer: Optimizer) =>
  new HostState(device, optimizer, { tile: 64, readBefore });

describe('updates with sums of whole parameters', () => {
  const optimizerOf = (layers: readonly Linear[]) => new Lamb(groupsOf(layers), { lr: 0.1 });

  test.each([
    ['the device', undefined],
    ['the host', onHost(false)],
  ])('on %s', (_, placementOf) => {
    const { group, purposes } = aloneGroup();
    const before = liveTensors();
    const scheduleOf = ({ state, partitions, optimizer }: Parts) =>
      new SummedUpdates(optimizer as Lamb, { state, partitions, group });
    const { found } = train({ optimizerOf, scheduleOf, placementOf });
    expect(found).toEqual(train({ optimizerOf, scheduleOf: defer, placementOf }).found);
    expect(new Set(purposes)).toEqual(new Set(['sums over parameters']));
    expect(purposes).toHaveLength(4);
    // Parameters of the layers stay.
    expect(liveTensors() - before).toBe(8);
  });
});

describe('updates that transform whole matrices', () => {
  const optimizerOf = (layers: readonly Linear[]) =>
    new Muon(
      makeMuonGroups(
        layers.flatMap((layer, i) =>
          [...layer.namedParameters()].map(([name, one]) => [`${i}.${name}`, one] as const),
        ),
      ),
      { lr: 0.1, adamLr: 0.1 },
    );

  test.each([
    ['the device', undefined],
    ['the host', onHost(false)],
  ])('on %s', (_, placementOf) => {
    const { group, purposes } = aloneGroup();
    const before = liveTensors();
    const scheduleOf = ({ state, partitions, optimizer }: Parts) =>
      new GatheredUpdates(optimizer as Muon, { state, partitions, group });
    const transform = jest.spyOn(Muon.prototype, 'transform');
    const { found } = train({ optimizerOf, scheduleOf, placementOf });
    // The matrices of both layers in each of four steps, and no vector.
    const shapes = transform.mock.calls.map(([, shape]) => shape.join());
    expect(shapes).toEqual(Array(4).fill(['10,12', '12,10']).flat());
    transform.mockRestore();
    const plain = train({ optimizerOf, scheduleOf: defer }).found;
    for (const [u, lists] of found.entries()) {
      for (const [l, values] of lists.entries()) {
        const largest = values.map((value, i) => Math.abs(value - (plain[u]?.[l]?.[i] as number)));
        expect(Math.max(...largest)).toBeLessThan(1e-5);
      }
    }
    expect([...new Set(purposes)]).toEqual([
      'sums over parameters',
      'directions of u0',
      'transformed directions of u0',
      'directions of u1',
      'transformed directions of u1',
    ]);
    expect(liveTensors() - before).toBe(8);
  });

  test('take their own places in a unit: behind another, and behind vectors', () => {
    const { group } = aloneGroup();
    const scheduleOf = ({ state, partitions, optimizer }: Parts) =>
      new GatheredUpdates(optimizer as Muon, { state, partitions, group });
    const mastersOf = (together: boolean, vectorsFirst = false) => {
      const orderedOf = (layers: readonly Linear[]) => {
        const [matrices, vectors] = groupsOf(layers) as [Params, Params];
        const groups = [
          { params: matrices.params, useMuon: true },
          { params: vectors.params, useMuon: false },
        ];
        return new Muon(vectorsFirst ? groups.reverse() : groups, { lr: 0.1 });
      };
      const { found } = train({ optimizerOf: orderedOf, scheduleOf, together });
      return found.map(([, ...masters]) => masters);
    };
    const [[weight, bias] = [], [weight1, bias1] = []] = mastersOf(false);
    expect(mastersOf(true)).toEqual([[weight, weight1, bias, bias1]]);
    expect(mastersOf(true, true)).toEqual([[bias, bias1, weight, weight1]]);
  });
});

describe('updates by signs', () => {
  const optimizerOf = (layers: readonly Linear[]) =>
    new OneBitSGD(groupsOf(layers), { lr: 0.1, momentum: 0.9, freezeStep: 1 });
  const exchange = (bucketElements: number) => {
    const { group, purposes } = aloneGroup();
    const scheduleOf = ({ state, partitions, optimizer }: Parts) =>
      new ExchangedUpdates(optimizer as OneBitSGD, { state, partitions, group, bucketElements });
    return { ...train({ optimizerOf, scheduleOf }), purposes };
  };

  test('have the same bits in any buckets', () => {
    const before = liveTensors();
    const [apart, together] = [exchange(1), exchange(1e9)];
    expect(liveTensors() - before).toBe(8);
    expect(together.found).toEqual(apart.found);
    expect(together.errors).toEqual(apart.errors);
    const names = ['weight', 'bias'].flatMap((name) => [
      `0.${name} worker_error`,
      `0.${name} server_error`,
    ]);
    expect(apart.errors.slice(0, 4).map(({ name }) => name)).toEqual(names);
    expect(apart.errors.map(({ from, values }) => [from, values.length])).toEqual(
      [120, 120, 10, 10, 120, 120, 12, 12].map((numel) => [0, numel]),
    );
    // Matrices have errors; each element of a vector has its own mean.
    const sizes = apart.errors.map(({ values }) => Math.max(...values.map(Math.abs)) > 1e-6);
    expect(sizes).toEqual([true, false, false, false, true, false, false, false]);
    expect(new Set(apart.purposes)).toEqual(
      new Set(['1-bit update from u0 on', '1-bit update from u1 on']),
    );
    expect(new Set(together.purposes)).toEqual(new Set(['1-bit update from u0 on']));
    expect(together.bytes.device - apart.bytes.device).toBeLessThan(512);
    expect(apart.bytes.device).toBeGreaterThan(2 * (192 + 192) * 4 * 2);
  });

  test('are plain updates before the freeze', () => {
    const plain = (layers: readonly Linear[]) =>
      new Sgd(groupsOf(layers), { lr: 0.1, momentum: 0.9 });
    const late = (layers: readonly Linear[]) =>
      new OneBitSGD(groupsOf(layers), { lr: 0.1, momentum: 0.9, freezeStep: 9 });
    const { group, purposes } = aloneGroup();
    const scheduleOf = ({ state, partitions, optimizer }: Parts) =>
      new ExchangedUpdates(optimizer as OneBitSGD, { state, partitions, group, bucketElements: 1 });
    const { found } = train({ optimizerOf: late, scheduleOf });
    expect(found).toEqual(train({ optimizerOf: plain, scheduleOf: defer }).found);
    expect(purposes).toEqual([]);
  });
});

describe('speculative updates', () => {
  const optimizerOf = (layers: readonly Linear[]) => new AdamW(groupsOf(layers), { lr: 0.1 });
  const scheduleOf = ({ state, optimizer }: Parts) =>
    new Speculative(device, state as never, optimizer as AdamW);
  const placementOf = onHost(true);
  const [good, clipped, skipped] = [
    [0.5, 1],
    [0.125, 1],
    [0.5, 0],
  ] as const;

  test.each([
    ['hold', [good, good, good, good]],
    ['miss by clipping', [good, clipped, good, clipped, good]],
    ['miss by an overflow', [good, skipped, good, skipped, skipped, good]],
    ['pause after many misses', [...Array(8).fill(clipped), ...Array(12).fill(good)]],
  ])('that %s have the bits of updates after the decision', (_, controls) => {
    const before = liveTensors();
    const { found, bytes } = train({ optimizerOf, scheduleOf, placementOf, controls });
    const plain = train({ optimizerOf, scheduleOf: defer, placementOf, controls });
    expect(found).toEqual(plain.found);
    expect(liveTensors() - before).toBe(8);
    // One more gradient element per parameter, and two controls.
    expect(bytes.host - plain.bytes.host).toBe(2 * 192 * 4 + 32);
  });

  test('mark the end of the early share, and not later arrivals', () => {
    let record: jest.SpyInstance | undefined;
    const fixedSchedule = (parts: Parts) => {
      const speculative = new Speculative(device, parts.state as never, parts.optimizer as AdamW);
      speculative.order.fix(1);
      const { earlyDone } = speculative as unknown as { earlyDone: { record(): void } };
      record = jest.spyOn(earlyDone, 'record');
      return speculative;
    };
    train({ optimizerOf, scheduleOf: fixedSchedule, placementOf, controls: [good, good, good] });
    expect(record).toHaveBeenCalledTimes(3);
  });

  test('lend the gradient of the step, and see changes of the state', () => {
    const gradients: unknown[] = [];
    const between = (state: OptimizerState, step: number, partitions: readonly Partition[]) => {
      for (const partition of partitions) {
        const gradient = state.gradOf(partition);
        gradients.push(gradient?.toArray());
        gradient?.release();
      }
      if (step !== 1) return;
      const [partition] = partitions as [Partition];
      const [fragment] = partition.fragments;
      const lent = state.lend(partition, fragment as never, 'exp_avg');
      lent.wait();
      lent.tensor.buffer.write(4 * lent.tensor.offset, new Float32Array(120).fill(1));
      lent.keep();
      lent.tensor.release();
      state.markChanged(partition);
    };
    const run = (of: Partial<Run>) =>
      train({ optimizerOf, scheduleOf, placementOf, between, ...of });
    const { found } = run({});
    const localItems = gradients.splice(0);
    expect(found).toEqual(run({ scheduleOf: defer }).found);
    expect(localItems).toEqual(gradients);
    expect(localItems).toHaveLength(8);
  });
});
