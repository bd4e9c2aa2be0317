// Tests the flows of gradients and weights without processes: whole units, partial sums, secondary
// copies, and lent state.
import { cpu } from '../../lib/runtime/device.js';
import { Event, Stream } from '../../lib/runtime/stream.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import { liveTensors } from '../../lib/tensor/tensor.js';
import {
  GatheredWeights,
  gatherPlain,
  onDevice,
  SecondaryShards,
  UnitTrace,
} from '../../lib/zero/gathered-weights.js';
import {
  alternatingGradients,
  type GradientFlow,
  localGradients,
  summedGradients,
  sumPartialGradients,
  untimedComm,
} from '../../lib/zero/gradients.js';
import { layoutUnit } from '../../lib/zero/layout.js';
import { MemoryStore, type Partition, type WeightShard } from '../../lib/zero/partition.js';
import { allocatePinned, bytesOf, LentState, totalBytes } from '../../lib/zero/state/memory.js';
import { WholeWeights } from '../../lib/zero/weights.js';
import type { CollectiveStart, Collectives } from '../../lib/zero/wire.js';

const device = cpu();
const done = { wait() {} };
const values = (data: readonly number[]): Tensor =>
  held(() => Tensor.from([...data], { dtype: 'f32', device }));

/** A partition of a whole unit with a gradient, and the log of a receiver. */
function gradientOf(data: readonly number[]) {
  const log: unknown[] = [];
  const full = values(data);
  const unit = { name: 'u', device, gradient: { take: () => full.retain() } };
  const partition = { unit, device, grad: null as Tensor | null, isOwnGrad: false };
  const receiver = {
    receiveReduced: (one: unknown, stream: Stream) =>
      void log.push(one === partition, stream === device.compute),
  };
  const end = (): void => {
    partition.grad?.release();
    full.release();
  };
  return { partition, receiver, log, full, end };
}

describe('gradients of whole units', () => {
  /** Buckets that run at once; ranks sum to twice the values. */
  function routeOf() {
    const calls: unknown[] = [];
    const route = {
      factor: 0.25,
      wire: {
        allReduce(grad: Tensor, at: CollectiveStart) {
          calls.push(at.purpose, at.stream === device.compute, grad.numel);
          return done;
        },
      },
      buckets: {
        add(transfer: {
          numel: number;
          start(on: Stream): typeof done;
          complete(on: Stream): void;
        }) {
          calls.push(transfer.numel);
          transfer.start(device.compute).wait();
          transfer.complete(device.compute);
        },
      },
    };
    return { route: route as never, calls };
  }
  const reduce = (flow: GradientFlow, of: ReturnType<typeof gradientOf>, isLast = true): void =>
    flow.reduce(of.partition as unknown as Partition, isLast ? of.receiver : null);

  test('of one rank are those of the unit', () => {
    const before = liveTensors();
    const one = gradientOf([1, 2]);
    reduce(localGradients, one);
    expect(one.partition.grad?.toArray()).toEqual([1, 2]);
    expect(one.log).toEqual([true, true]);
    const { route, factor, takesEach } = localGradients;
    expect([route, factor, takesEach]).toEqual([null, 1, false]);
    one.end();
    expect(liveTensors()).toBe(before);
  });

  test('of several ranks are summed once a step', () => {
    const { route, calls } = routeOf();
    const flow = summedGradients(route);
    const one = gradientOf([1, 2]);
    reduce(flow, one);
    expect(calls).toEqual([2, 'gradient of u', true, 2]);
    expect([one.log, flow.factor, flow.takesEach]).toEqual([[true, true], 0.25, false]);
    expect(flow.route).toBe(route);
    one.partition.grad?.release();
    one.partition.grad = null;
    reduce(flow, one, false);
    expect(one.log).toHaveLength(2);
    one.end();
  });

  test('of ranks that exchange other values stay with their rank', () => {
    const { route, calls } = routeOf();
    let isSummed = true;
    const flow = alternatingGradients(summedGradients(route), () => isSummed, 8);
    const one = gradientOf([1, 2]);
    reduce(flow, one);
    expect([flow.factor, one.partition.isOwnGrad, calls.length]).toEqual([0.25, false, 4]);
    one.partition.grad?.release();
    isSummed = false;
    reduce(flow, one);
    expect([flow.factor, one.partition.isOwnGrad, calls.length]).toEqual([8, true, 4]);
    expect([flow.route, flow.takesEach]).toEqual([route, false]);
    one.end();
  });

  test('are kept whole, and each rank counts its part', () => {
    const flat = values(Array(128).fill(1));
    const unit = { layout: { numel: 128 }, allocate: () => flat };
    const flow = new WholeWeights({ rank: 1, size: 2 });
    const [range, store, counted] = flow.keep(unit as never);
    expect([range, counted, flow.isSharded]).toEqual([
      { offset: 0, numel: 128 },
      { offset: 64, numel: 64 },
      false,
    ]);
    expect(store.memory?.buffer).toBe(flat.buffer);
    store.dispose();
    expect(flat.toArray()).toHaveLength(128);
    flat.release();
  });
});

test('only partial gradients are summed over the tensor-parallel ranks, in one call', () => {
  const before = liveTensors();
  const shapes = ['a', 'b', 'c'].map((name) => ({ name, shape: [2], group: 0 }));
  const layout = layoutUnit(shapes);
  const calls: unknown[] = [];
  const group = {
    allReduce(tensor: Tensor, at: CollectiveStart) {
      calls.push(tensor.toArray(), at.purpose);
      const sums = (tensor.toArray() as number[]).map((value) => 10 * value);
      tensor.buffer.write(4 * tensor.offset, Float32Array.from(sums));
      return done;
    },
  } as unknown as Collectives;
  let factor = 3;
  const inner = {
    route: 'the route',
    takesEach: true,
    reduce: (...given: unknown[]) => calls.push(given),
    get factor() {
      return factor;
    },
  };
  const flow = sumPartialGradients(inner as never, group);
  const full = values(Array.from({ length: layout.numel }, (_, i) => i));
  const unitOf = (partial: readonly string[]) => ({
    name: 'u',
    device,
    layout,
    gradient: { take: () => full.retain() },
    parameterOf: ({ name }: { name: string }) => ({ hasPartialGradient: partial.includes(name) }),
  });
  const partition = { unit: unitOf(['a', 'c']) } as never;
  flow.reduce(partition, 'receiver' as never);
  expect(calls).toEqual([[0, 1, 128, 129], 'parts of gradients of u', [partition, 'receiver']]);
  const found = full.toArray() as number[];
  expect([0, 1, 64, 65, 128, 129].map((i) => found[i])).toEqual([0, 10, 64, 65, 1280, 1290]);
  const plain = { unit: unitOf([]) } as never;
  flow.reduce(plain, null);
  expect(calls.slice(3)).toEqual([[plain, null]]);
  expect([flow.route, flow.takesEach, flow.factor]).toEqual(['the route', true, 3]);
  factor = 4;
  expect(flow.factor).toBe(4);
  full.release();
  expect(liveTensors()).toBe(before);
});

describe('weights that are gathered', () => {
  function flowOf(more: object) {
    const log: string[] = [];
    const group = {
      rank: 0,
      size: 1,
      allGather: (_: unknown, __: unknown, { purpose }: CollectiveStart) => {
        const name = purpose.replace('weights of ', '');
        log.push(`gather ${name}`);
        return { wait: () => void log.push(`wait ${name}`) };
      },
    } as unknown as Collectives;
    const flow = new GatheredWeights(device, group, {
      prefetchElements: 0,
      maxLive: 0,
      maxReuseDistance: 0,
      secondaryShards: null,
      overlap: false,
      persistenceThreshold: 0,
      modelPersistenceThreshold: 0,
      timer: untimedComm,
      storage: onDevice,
      gather: gatherPlain,
      trace: new UnitTrace(),
      ...more,
    });
    const shards = ['a', 'b', 'c'].map((name) => {
      const weights = values(Array(8).fill(0));
      let placed: Tensor | null = null;
      const unit = {
        name,
        layout: { numel: 8 },
        dtype: 'f32',
        device,
        weights,
        materialize(flat: Tensor) {
          placed = flat;
        },
        vacate() {
          log.push(`free ${name}`);
          placed?.release();
          placed = null;
        },
      };
      const storage = onDevice.create(unit as never, 8);
      return { unit, range: { offset: 0, numel: 8 }, storage } as unknown as WeightShard;
    });
    for (const shard of shards) flow.adoptShard(shard);
    log.length = 0;
    const callsOf = (act: () => void): string[] => {
      act();
      return log.splice(0);
    };
    return { flow, group, callsOf, shards: shards as [WeightShard, WeightShard, WeightShard] };
  }

  test('are freed after their use, unless they are used again soon', () => {
    const { flow, shards, callsOf } = flowOf({ maxReuseDistance: 8, maxLive: 16 });
    const [a, b, c] = shards.map(({ unit }) => unit) as never[];
    const step = (units: readonly never[]): string[] =>
      callsOf(() => {
        for (const unit of units) {
          flow.acquire(unit);
          flow.release(unit);
        }
      });
    const first = step([a!, b!, a!, c!]);
    expect(first.filter((one) => one.startsWith('free'))).toEqual([
      'free a',
      'free b',
      'free a',
      'free c',
    ]);
    for (const shard of shards) flow.publish(shard, device.compute);
    callsOf(() => {});
    // a comes again after 8 elements of b.
    expect(step([a!, b!, a!, c!])).toEqual([
      'gather a',
      'wait a',
      'gather b',
      'wait b',
      'free b',
      'free a',
      'gather c',
      'wait c',
      'free c',
    ]);
    flow.release(c!);
    expect(callsOf(() => flow.dispose())).toEqual([]);
  });

  test('are gathered ahead, and waited for at the end of backward', () => {
    const { flow, shards, callsOf } = flowOf({ prefetchElements: 1, maxLive: 1e9 });
    const [a, b] = shards.map(({ unit }) => unit) as never[];
    for (const unit of [a!, b!]) flow.acquire(unit);
    for (const shard of shards) flow.publish(shard, device.compute);
    callsOf(() => {});
    expect(callsOf(() => flow.acquire(a!))).toEqual(['gather a', 'wait a', 'gather b']);
    expect(callsOf(() => flow.endBackward())).toEqual(['wait b']);
    expect(callsOf(() => flow.endBackward())).toEqual([]);
    expect(callsOf(() => flow.vacate())).toEqual(['free a']);
    // b had no views yet; both are gathered again.
    expect(callsOf(() => flow.acquire(b!))).toEqual(['gather b', 'wait b']);
    flow.dispose();
  });

  test('announce the next units to their storage', () => {
    const expected: string[][] = [];
    const disposed = jest.fn();
    const storage = {
      ...onDevice,
      slotBytes: 7,
      dispose: disposed,
      expect: (units: Iterable<{ name: string }>) =>
        void expected.push(Array.from(units, ({ name }) => name)),
    };
    const { flow, shards } = flowOf({ storage });
    for (const { unit } of shards) flow.acquire(unit);
    for (const shard of shards) flow.publish(shard, device.compute);
    expected.length = 0;
    flow.dispatch();
    flow.acquire(shards[0].unit);
    expect(expected).toEqual([
      ['a', 'b', 'c'],
      ['b', 'c'],
    ]);
    expect(flow.slotBytes).toBe(7);
    flow.dispose();
    expect(disposed).toHaveBeenCalledTimes(1);
  });

  test('have secondary copies until they change', () => {
    const before = liveTensors();
    const gathers: unknown[] = [];
    const group = {
      rank: 1,
      size: 2,
      allGather(_: unknown, shard: Tensor, at: CollectiveStart) {
        gathers.push(shard.toArray(), at.purpose);
        return done;
      },
    } as unknown as Collectives;
    const secondary = new SecondaryShards(group);
    const unit = {} as never;
    const at = { stream: device.compute, purpose: 'p' };
    const flat = values([1, 2, 3, 4]);
    expect(secondary.gather(unit, flat, at)).toBeNull();
    secondary.keep(unit, flat);
    const other = values([5, 6, 7, 8]);
    secondary.keep(unit, other);
    expect(secondary.gather(unit, other, at)).toBe(done);
    expect(gathers).toEqual([[3, 4], 'p']);
    secondary.forget(unit);
    secondary.forget(unit);
    expect(secondary.gather(unit, flat, at)).toBeNull();
    secondary.keep(unit, other);
    secondary.dispose();
    expect(secondary.gather(unit, flat, at)).toBeNull();
    for (const one of [flat, other]) one.release();
    expect(liveTensors()).toBe(before);
  });
});

test('bytes are of the device or of the host', () => {
  const [plain, locked] = [values([1, 2]), allocatePinned(device, [3], 'bf16')];
  expect(bytesOf([plain, null, locked, locked])).toEqual({ device: 8, host: 12, disk: 0 });
  expect(totalBytes([{ device: 1 }, undefined, { host: 2, disk: 3 }, { disk: 4 }])).toEqual({
    device: 1,
    host: 2,
    disk: 7,
  });
  for (const one of [plain, locked]) one.release();
});

test('lent state is complete when its stream has come to it', async () => {
  const tensor = values([1]);
  const order = Stream.create(device);
  const keep = jest.fn();
  const lent = new LentState(tensor, order, keep);
  const synchronize = jest.spyOn(order, 'synchronize');
  const dispose = jest.spyOn(Event.prototype, 'dispose');
  lent.wait();
  expect(synchronize).toHaveBeenCalledTimes(1);
  await lent.arrived();
  expect(dispose).toHaveBeenCalledTimes(1);
  for (const spy of [synchronize, dispose]) spy.mockRestore();
  lent.keep();
  expect(keep).toHaveBeenCalledTimes(1);
  new LentState(tensor, order).keep();
  tensor.release();
  order.dispose();
});

test('weights in host memory are rounded from host memory of another dtype', () => {
  const [first, second] = [allocatePinned(device, [2], 'f32'), allocatePinned(device, [2], 'bf16')];
  first.buffer.write(0, Float32Array.of(1 + 2 ** -12, -3));
  const store = new MemoryStore(second);
  expect(store.store(first, device.compute)).toBe(device.compute);
  device.compute.synchronize();
  expect(second.to('f32').toArray()).toEqual([1, -3]);
  first.release();
  store.dispose();
});
