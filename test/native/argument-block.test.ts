// Hostile numbers in the argument block: a DsError, never memory that is not the tensor's.
import { DsError } from '../../lib/errors.js';
import { Buffer } from '../../lib/runtime/buffer.js';
import { cpu } from '../../lib/runtime/device.js';
import { type Collective, type GroupHandle, Job, StoreServer } from '../../lib/runtime/job.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import type { View } from '../../lib/runtime/view.js';
import { random as anyNumber, below as random } from '../support/random.js';

const HUGE = [2 ** 31, 2 ** 53, 2 ** 61, 2 ** 62, 2 ** 63, 1e300, Number.POSITIVE_INFINITY];
const anyOf = <T>(list: readonly T[]) => list[random(list.length)] as T;

/** The code that `body` throws; null where it returns. */
function codeOf(body: () => void): string | null {
  try {
    body();
    return null;
  } catch (error) {
    if (error instanceof DsError) return error.code;
    throw error;
  }
}

describe('views', () => {
  const device = cpu();
  const buffer = Buffer.allocate(device, 6 * 4);
  buffer.write(0, new Uint8Array(6 * 4));
  afterAll(() => buffer.release());

  const view = (shape: number[], strides: number[], offset = 0): View => {
    return { buffer, dtype: 'f32', shape, strides, offset };
  };
  const run = (a: View) =>
    codeOf(() => kernels.binary({ a, b: a, out: a, op: 'add', accumulate: false }));

  test('accepts the whole buffer, and an empty view anywhere', () => {
    expect(run(view([2, 3], [3, 1]))).toBeNull();
    expect(run(view([1], [1], 5))).toBeNull();
    expect(run(view([0, 3], [3, 1], 9))).toBeNull();
  });

  test.each<[string, View]>([
    ['one element too many', view([7], [1])],
    ['an offset at the end', view([1], [1], 6)],
    ['a product that wraps to 0', view([2 ** 32 + 1], [2 ** 32])],
    ['a sum that wraps to 0', view([3, 3], [2 ** 62, 2 ** 62])],
    ['a byte size that wraps to 0', view([2], [2 ** 62])],
    ['an offset that wraps', view([1], [1], 2 ** 62)],
    ['an offset of all bits', view([2], [1], 2 ** 63 - 1024)],
    ['a broadcast that nobody can count', view([2 ** 40, 2 ** 40], [0, 0])],
    ['an empty view that nobody can count', view([2 ** 62, 2 ** 62, 0], [0, 0, 1])],
    ['a negative length', view([-1], [1])],
    ['a negative stride', view([2], [-1], 1)],
    ['a negative offset', view([1], [1], -1)],
  ])('%s is outside', (_, hostile) => {
    expect(run(hostile)).toBe('DS_BOUNDS');
  });

  test.each<[string, View]>([
    ['repeats an element', view([1, 2 ** 53], [1, 0])],
    ['overlaps itself', view([4, 4], [1, 1])],
  ])('fill refuses a view that %s', (_, out) => {
    expect(codeOf(() => kernels.fill({ out, value: 1 }))).toBe('DS_BOUNDS');
  });

  test('fill takes strided and empty views', () => {
    for (const out of [view([2, 3], [3, 1]), view([3, 2], [1, 3]), view([2, 1], [4, 0])]) {
      expect(codeOf(() => kernels.fill({ out, value: 0 }))).toBeNull();
    }
    expect(codeOf(() => kernels.fill({ out: view([0, 2 ** 53], [1, 0]), value: 0 }))).toBeNull();
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 2 ** 63, 1e300])(
    '%d is refused as a length, a stride and an offset',
    (value) => {
      expect(run(view([value], [1]))).toBe('DS_ARGUMENT');
      expect(run(view([1], [value]))).toBe('DS_ARGUMENT');
      expect(run(view([1], [1], value))).toBe('DS_ARGUMENT');
    },
  );

  test('views with huge random dims are refused', () => {
    for (let i = 0; i < 2000; ++i) {
      const ndim = 1 + random(6);
      const shape = Array.from({ length: ndim }, () => 2 + random(3));
      const strides = shape.map(() => 1 + random(3));
      const at = random(ndim);
      (anyNumber() < 0.5 ? shape : strides)[at] = anyOf(HUGE);
      if (anyNumber() < 0.5) strides[random(ndim)] = anyOf(HUGE);
      expect(['DS_BOUNDS', 'DS_ARGUMENT']).toContain(run(view(shape, strides, random(3))));
    }
  });

  test('seven dims are refused', () => {
    expect(run(view(new Array(7).fill(1), new Array(7).fill(1)))).toBe('DS_SHAPE');
  });
});

describe('collectives', () => {
  const secret = 'of this test';
  const device = cpu();
  let server: StoreServer;
  let jobs: Job[] = [];
  let group: GroupHandle;
  let buffer: Buffer;

  beforeAll(async () => {
    server = new StoreServer({ host: '127.0.0.1', port: 0, secret });
    const store = { host: '127.0.0.1', port: server.port, secret };
    const ranks = [0, 1];
    jobs = await Promise.all(
      ranks.map((rank) => Job.join({ store, rank, worldSize: 2, timeout: 30_000 })),
    );
    const opened = jobs.map((job, rank) => job.openGroup('world', ranks, rank, device));
    [group] = (await Promise.all(opened)) as [GroupHandle, GroupHandle];
    buffer = Buffer.allocate(device, 8 * 4);
  });
  afterAll(() => {
    for (const job of jobs) job.close();
    server.stop();
    buffer.release();
  });

  const start = (change: Partial<Collective>, offset = 0) => {
    const view: View = { buffer, dtype: 'f32', shape: [8], strides: [1], offset };
    const call = {
      kind: 'allReduce',
      op: 'sum',
      input: view,
      output: view,
      count: 8,
      rows: 1,
      peer: 0,
    };
    const all = { ...call, purpose: '', ...change } as Collective;
    return codeOf(() => group.start(all, device.compute, 'hostile'));
  };

  test.each([
    Number.NaN,
    Number.POSITIVE_INFINITY,
    -1,
    0.5,
    2 ** 53,
    2 ** 61,
    2 ** 62,
    2 ** 63,
    2 ** 64,
    1e300,
  ])('the count %d is refused', (count) => {
    for (const kind of ['allReduce', 'reduceScatter', 'allGather', 'send', 'barrier'] as const) {
      expect(start({ kind, count, peer: 1 })).toBe('DS_ARGUMENT');
    }
  });

  test.each([9, 2 ** 31, 2 ** 49])('a count of %d that exceeds the memory is refused', (count) => {
    expect(start({ count })).toBe('DS_BOUNDS');
    expect(start({ kind: 'allToAll', count })).toBe('DS_BOUNDS');
  });

  test.each([Number.NaN, -1, 2, 2 ** 32, 1e300])('the rank %d is refused', (peer) => {
    expect(start({ kind: 'broadcast', peer })).toBe('DS_ARGUMENT');
  });

  test.each([Number.NaN, -1, 0.5, 1, 2 ** 62, 1e300])('refuses the offset %d', (offset) => {
    expect(start({}, offset)).toBe('DS_BOUNDS');
  });
});
