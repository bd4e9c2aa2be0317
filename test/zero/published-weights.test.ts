// Tests when updated weights go to the other ranks, for host updates during and after compute, in
// any order of buckets. Sharded units are gathered once, after their own update.
import { resolveConfig } from '../../lib/config/index.js';
import { gradientBucket } from '../../lib/engine/setup/stage.js';
import { addon } from '../../lib/runtime/addon.js';
import { cpu } from '../../lib/runtime/device.js';
import { Event, Stream } from '../../lib/runtime/stream.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import {
  GatheredWeights,
  gatherPlain,
  onDevice,
  onHost,
  UnitTrace,
} from '../../lib/zero/gathered-weights.js';
import { untimedComm } from '../../lib/zero/gradients.js';
import type { WeightShard } from '../../lib/zero/partition.js';
import { PublishedWeights } from '../../lib/zero/weights.js';
import type { CollectiveStart, Collectives } from '../../lib/zero/wire.js';

const bucketOfAll = 1e9;

/** A flow with a group that records its gathers, and its parts by name. */
function publishedFlow() {
  const gathered: [purpose: string, besideCompute: boolean][] = [];
  const group = {
    allGather: (_output: unknown, _input: unknown, { stream, purpose }: CollectiveStart) => {
      gathered.push([purpose, stream !== cpu().compute]);
      return { wait: () => {} };
    },
  } as unknown as Collectives;
  const options = { bucketElements: bucketOfAll, overlap: false, timer: untimedComm };
  const flow = new PublishedWeights(cpu(), group, options);
  const part = (name: string) =>
    ({ unit: { name, layout: { numel: 8 } } }) as unknown as WeightShard;
  return { flow, gathered, part };
}

test('a unit updated by the host is sent at once, overlaps compute, and has its own wait', () => {
  const { flow, gathered, part } = publishedFlow();
  const host = Stream.create(cpu());
  const [first, last, own] = ['first', 'last', 'own'].map(part) as [
    WeightShard,
    WeightShard,
    WeightShard,
  ];
  const changed = new Event(cpu()).record(host);
  const waits = jest.spyOn(Stream.prototype, 'wait');
  flow.publish(first, host, changed);
  expect(waits.mock.calls.map(([event]) => event)).toContain(changed);
  waits.mockRestore();
  flow.publish(last, host);
  flow.publish(own, cpu().compute);
  const beside = [
    ['weights of first', true],
    ['weights of last', true],
  ];
  expect(gathered).toEqual(beside);
  flow.acquire(first.unit);
  expect(gathered).toEqual(beside);
  flow.acquire(own.unit);
  expect(gathered).toEqual([...beside, ['weights of own', false]]);
  flow.dispose();
  changed.dispose();
  host.dispose();
});

test('units without reads between updates leave no events', () => {
  const { flow, part } = publishedFlow();
  const host = Stream.create(cpu());
  const shards = ['of the host', 'of the device'].map(part);
  const update = (): void => {
    flow.publish(shards[0] as WeightShard, host);
    flow.publish(shards[1] as WeightShard, cpu().compute);
    flow.dispatch();
  };
  const result = jest.spyOn(addon, 'createEvent');
  for (let i = 0; i < 3; ++i) update();
  const { length } = result.mock.calls;
  for (let i = 0; i < 3; ++i) update();
  expect(result.mock.calls.length - length).toBe(0);
  result.mockRestore();
  flow.dispose();
  host.dispose();
});

test.each([
  [0, []],
  [1, ['b']],
  [8, ['b']],
  [9, ['b', 'c']],
])('of units of 8 elements, with %i to fetch ahead, these come ahead: %j', (prefetch, expected) => {
  const device = cpu();
  const gathered: string[] = [];
  const allGather = (_output: unknown, _input: unknown, { purpose }: CollectiveStart) => {
    gathered.push(purpose.replace('weights of ', ''));
    return { wait: () => {} };
  };
  const group = { rank: 0, size: 1, allGather } as unknown as Collectives;
  const flow = new GatheredWeights(device, group, {
    prefetchElements: prefetch,
    maxLive: 1e9,
    maxReuseDistance: 0,
    secondaryShards: null,
    overlap: false,
    persistenceThreshold: 0,
    modelPersistenceThreshold: 0,
    timer: untimedComm,
    storage: onDevice,
    gather: gatherPlain,
    trace: new UnitTrace(),
  });
  const shards = ['a', 'b', 'c', 'd'].map((name) => {
    const weights = held(() => Tensor.empty([8], 'f32', device));
    let placed: Tensor | null = null;
    const materialize = (flat: Tensor) => {
      placed = flat;
    };
    const vacate = () => placed?.release();
    const settings = {
      name,
      layout: { numel: 8 },
      dtype: 'f32',
      device,
      weights,
      materialize,
      vacate,
    };
    const storage = onDevice.create(settings as never, 8);
    return { unit: settings, range: { offset: 0, numel: 8 }, storage } as unknown as WeightShard;
  });
  for (const shard of shards) flow.adoptShard(shard);
  // One step, which records the order of units, and the start of the next step.
  for (const { unit } of shards) flow.acquire(unit);
  for (const shard of shards) flow.publish(shard, device.compute);
  gathered.length = 0;
  flow.acquire((shards[0] as WeightShard).unit);
  expect(gathered).toEqual(['a', ...expected]);
  flow.dispose();
  for (const { storage } of shards) storage.dispose();
});

test.each([
  [8, 16, ['a', 'b']],
  [8, 15, ['a']],
  [8, 7, []],
  [7, 16, []],
])(
  'of units of 8 elements, thresholds %i and %i keep %j gathered',
  (unitThreshold, modelThreshold, kept) => {
    const device = cpu();
    const gathered: string[] = [];
    const allGather = (_output: unknown, _input: unknown, { purpose }: CollectiveStart) => {
      gathered.push(purpose.replace('weights of ', ''));
      return { wait: () => {} };
    };
    const group = { rank: 0, size: 1, allGather } as unknown as Collectives;
    const flow = new GatheredWeights(device, group, {
      prefetchElements: 0,
      maxLive: 0,
      maxReuseDistance: 0,
      secondaryShards: null,
      overlap: false,
      persistenceThreshold: unitThreshold,
      modelPersistenceThreshold: modelThreshold,
      timer: untimedComm,
      storage: onDevice,
      gather: gatherPlain,
      trace: new UnitTrace(),
    });
    const shards = ['a', 'b', 'c'].map((name) => {
      const weights = held(() => Tensor.empty([8], 'f32', device));
      let placed: Tensor | null = null;
      const materialize = (flat: Tensor) => {
        placed = flat;
      };
      const vacate = () => placed?.release();
      const settings = {
        name,
        layout: { numel: 8 },
        dtype: 'f32',
        device,
        weights,
        materialize,
        vacate,
      };
      const storage = onDevice.create(settings as never, 8);
      return { unit: settings, range: { offset: 0, numel: 8 }, storage } as unknown as WeightShard;
    });
    for (const shard of shards) flow.adoptShard(shard);
    const use = (): void => {
      gathered.length = 0;
      for (const { unit } of shards) {
        flow.acquire(unit);
        flow.release(unit);
      }
    };
    use();
    use();
    expect(['a', 'b', 'c'].filter((name) => !gathered.includes(name))).toEqual(kept);
    flow.dispose();
    for (const { storage } of shards) storage.dispose();
  },
);

test('the gather of a shard waits for its own update only', () => {
  const device = cpu();
  const group = { rank: 0, size: 1, allGather: () => ({ wait: () => {} }) };
  const flow = new GatheredWeights(device, group as unknown as Collectives, {
    prefetchElements: 0,
    maxLive: 0,
    maxReuseDistance: 0,
    secondaryShards: null,
    overlap: true,
    persistenceThreshold: 0,
    modelPersistenceThreshold: 0,
    timer: untimedComm,
    storage: onDevice,
    gather: gatherPlain,
    trace: new UnitTrace(),
  });
  const weights = held(() => Tensor.empty([8], 'f32', device));
  let placed: Tensor | null = null;
  const unit = {
    name: 'first',
    layout: { numel: 8 },
    dtype: 'f32',
    device,
    weights,
    materialize: (flat: Tensor) => {
      placed = flat;
    },
    vacate: () => placed?.release(),
  };
  const storage = onDevice.create(unit as never, 8);
  const shard = { unit, range: { offset: 0, numel: 8 }, storage } as unknown as WeightShard;
  flow.adoptShard(shard);
  const host = Stream.create(device);
  const changed = new Event(device).record(host);
  const waitsOf = (publish: () => void): unknown[] => {
    const waits = jest.spyOn(Stream.prototype, 'wait');
    publish();
    flow.acquire(shard.unit);
    const events = waits.mock.calls.map(([event]) => event);
    waits.mockRestore();
    return events;
  };
  expect(waitsOf(() => flow.publish(shard, host, changed))).toContain(changed);
  expect(waitsOf(() => flow.publish(shard, host))).not.toContain(changed);
  flow.publish(shard, host, changed);
  flow.dispose();
  // The caller still owns the event.
  expect(changed.record(host).done).toBe(true);
  for (const one of [changed, host, storage]) one.dispose();
  weights.release();
});

test('a shard is stored flat, on the device or in pinned host memory', () => {
  const unit = { dtype: 'bf16', device: cpu() } as never;
  for (const place of [onDevice, onHost]) {
    const store = place.create(unit, 8);
    expect([store.memory?.shape, store.memory?.dtype]).toEqual([[8], 'bf16']);
    expect(store.memory?.buffer.pinned).toBe(place === onHost);
    expect(place.slotBytes).toBe(0);
    store.dispose();
  }
});

test('a unit in use has its views made once, and gathers beyond the limit do not begin', () => {
  const device = cpu();
  const gathered: string[] = [];
  const allGather = (_output: unknown, _input: unknown, { purpose }: CollectiveStart) => {
    gathered.push(purpose.replace('weights of ', ''));
    return { wait: () => {} };
  };
  const group = { rank: 0, size: 1, allGather } as unknown as Collectives;
  const flow = new GatheredWeights(device, group, {
    prefetchElements: 1e9,
    maxLive: 16,
    maxReuseDistance: 0,
    secondaryShards: null,
    overlap: false,
    persistenceThreshold: 0,
    modelPersistenceThreshold: 0,
    timer: untimedComm,
    storage: onDevice,
    gather: gatherPlain,
    trace: new UnitTrace(),
  });
  const result: string[] = [];
  const shards = ['a', 'b', 'c'].map((name) => {
    const weights = held(() => Tensor.empty([8], 'f32', device));
    let placed: Tensor | null = null;
    const materialize = (flat: Tensor) => {
      result.push(name);
      placed = flat;
    };
    const vacate = () => placed?.release();
    const settings = {
      name,
      layout: { numel: 8 },
      dtype: 'f32',
      device,
      weights,
      materialize,
      vacate,
    };
    const storage = onDevice.create(settings as never, 8);
    return { unit: settings, range: { offset: 0, numel: 8 }, storage } as unknown as WeightShard;
  });
  for (const shard of shards) flow.adoptShard(shard);
  const [a] = shards as [WeightShard];
  for (const { unit } of shards) flow.acquire(unit);
  for (const shard of shards) flow.publish(shard, device.compute);
  gathered.length = 0;
  result.length = 0;
  flow.acquire(a.unit);
  expect(result).toEqual(['a']);
  flow.acquire(a.unit);
  // Two units of 8 elements are the limit of 16.
  expect([gathered, result]).toEqual([['a', 'b'], ['a']]);
  flow.dispose();
  for (const { storage } of shards) storage.dispose();
});

test('gradients that the host waits for are reduced unit by unit', () => {
  const configOf = (device: 'cpu' | 'none') =>
    resolveConfig(
      {
        train_micro_batch_size_per_gpu: 1,
        optimizer: { type: 'AdamW' },
        bf16: { enabled: true },
        zero_optimization: { stage: 2, reduce_bucket_size: 77, offload_optimizer: { device } },
      },
      { worldSize: 2 },
    );
  expect(gradientBucket(configOf('none'))).toBe(77);
  expect(gradientBucket(configOf('cpu'))).toBe(0);
});
