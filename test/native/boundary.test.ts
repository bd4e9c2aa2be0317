// Every entry of the addon refuses every wrong argument. The addon's own table of kinds and bounds
// generates the arguments.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { addon as typed } from '../../lib/runtime/addon.js';
import { Buffer } from '../../lib/runtime/buffer.js';
import { cpu } from '../../lib/runtime/device.js';

interface Argument {
  name: string;
  kind:
    | 'boolean'
    | 'bytes'
    | 'device'
    | 'doubles'
    | 'handle'
    | 'integers'
    | 'string'
    | 'timeout'
    | 'whole';
  /** Of a handle: the object. */
  of?: string;
  /** Of a whole number. */
  min?: number;
  max?: number;
  step?: number;
}

interface Entry {
  name: string;
  arguments: Argument[];
}

const addon = typed as unknown as Record<string, (...args: unknown[]) => unknown>;
const entries = JSON.parse(typed.entries()) as Entry[];
const call = (name: string, ...args: unknown[]) =>
  (addon[name] as (...a: unknown[]) => unknown)(...args);

interface Refusal {
  code: string;
  op: string;
  expected: string;
  got: string;
}

/** The error of a call, or its result. */
function refusalOf(name: string, args: unknown[]): Refusal | { result: unknown } {
  try {
    const result = call(name, ...args);
    if (result instanceof Promise) result.catch(() => {});
    return { result };
  } catch (error) {
    const { code, op, expected, got } = error as Refusal;
    return { code, op, expected, got };
  }
}

const folder = mkdtempSync(join(tmpdir(), 'ds-boundary-'));
const device = cpu();
const buffer = Buffer.allocatePinned(device, 4 * 4096);
const secret = 'of this test';

/** A live and a released handle of each object. The CPU records no graphs. */
const live = new Map<string, number>();
const released = new Map<string, number>();

function keep(noun: string, make: () => number, release: (handle: number) => void): void {
  const gone = make();
  release(gone);
  released.set(noun, gone);
  live.set(noun, make());
}

const swapFile = () =>
  typed.openSwapFile(folder, 'a swap file', 'a test', 4 * 4096, Float64Array.of(4096, 1, 1));

async function joinStore(port: number): Promise<number[]> {
  const join = (rank: number) =>
    typed.joinJob('127.0.0.1', port, secret, Int32Array.of(rank, 2), 30_000);
  const jobs = await Promise.all([join(0), join(1)]);
  const open = (rank: number) =>
    typed.openGroup(jobs[rank] as number, device.compute.handle, 'all', Int32Array.of(0, 1), rank);
  const groups = await Promise.all([open(0), open(1)]);
  return [...jobs, ...groups];
}

let jobs: number[] = [];

beforeAll(async () => {
  keep('tensor', () => typed.allocatePinned(0, 64), typed.release);
  keep('event', () => typed.createEvent(0, true), typed.releaseEvent);
  keep('stream', () => typed.createStream(0, 1), typed.releaseStream);
  keep('swap file', swapFile, typed.releaseSwapFile);
  keep('store', () => typed.startStore('127.0.0.1', 0, secret), typed.stopStore);
  for (const handles of [released, live]) {
    const store = typed.startStore('127.0.0.1', 0, secret);
    jobs = await joinStore(typed.storePort(store));
    handles.set('job', jobs[0] as number).set('process group', jobs[2] as number);
    if (handles === live) continue;
    for (const job of jobs.slice(0, 2)) typed.closeJob(job);
    typed.stopStore(store);
  }
});

afterAll(() => {
  for (const job of jobs.slice(0, 2)) typed.closeJob(job);
  typed.releaseSwapFile(live.get('swap file') as number);
  buffer.release();
  rmSync(folder, { recursive: true });
});

/** An argument that passes the check; undefined where there is none. */
function right({ kind, of, min }: Argument): unknown {
  switch (kind) {
    case 'boolean':
      return false;
    case 'bytes':
      return new Uint8Array(8);
    case 'doubles':
      return new Float64Array(3);
    case 'integers':
      return new Int32Array(2);
    case 'handle':
      return live.get(of as string);
    case 'string':
      return 'text';
    case 'whole':
      return min;
    default:
      return 0;
  }
}

function detach<T extends Float64Array | Int32Array | Uint8Array>(array: T): T {
  structuredClone(array, { transfer: [array.buffer as ArrayBuffer] });
  return array;
}

const OTHERS = [undefined, null, {}, [], Symbol('text'), () => 0, 1n];
const NO_NUMBERS = [...OTHERS, 'text', '1', true, new Uint8Array(1)];
const NO_ARRAYS = [
  ...OTHERS,
  'text',
  1,
  NaN,
  true,
  new ArrayBuffer(8),
  new DataView(new ArrayBuffer(8)),
];
const NO_WHOLE = [NaN, Infinity, -Infinity, 1e300, -1e300, 2 ** 63, -(2 ** 63), 2 ** 53 + 2, 0.5];

function wrongNumbers({ min = 0, max = 0, step = 1 }: Argument): unknown[] {
  const isRight = (x: number) => x >= min && x <= max && x % step === 0;
  const invalid = [min - 1, max + 1, -(2 ** 53) - 2, min + 0.5, min + step / 2];
  return [...NO_WHOLE, ...invalid.filter((x) => !isRight(x))];
}

/** Arguments that the check refuses. */
function wrong(argument: Argument): unknown[] {
  switch (argument.kind) {
    case 'boolean':
      return [...OTHERS, 0, 1, NaN, 'true', new Uint8Array(1)];
    case 'bytes':
      return [...NO_ARRAYS, detach(new Uint8Array(8))];
    case 'doubles':
      return [...NO_ARRAYS, new Uint8Array(8), new Int32Array(2), detach(new Float64Array(8))];
    case 'integers':
      return [...NO_ARRAYS, new Uint8Array(8), new Float64Array(2), detach(new Int32Array(8))];
    case 'string':
      return [...OTHERS, 1, NaN, true, new Uint8Array(1)];
    case 'timeout':
      return [...NO_NUMBERS, NaN, -1, -Infinity];
    case 'device':
      return [...NO_NUMBERS, ...NO_WHOLE, -1, 7000, 2 ** 31];
    case 'whole':
      return [...NO_NUMBERS, ...wrongNumbers(argument)];
    case 'handle': {
      const handle = right(argument);
      const stale = released.get(argument.of as string);
      const invalid = typeof handle === 'number' ? [handle + 0.5, handle + 2 ** 24] : [];
      return [...NO_NUMBERS, ...NO_WHOLE, ...invalid, stale ?? 0, 0, -1, 2 ** 24 - 1, 2 ** 52];
    }
  }
}

test('the table lists every function', () => {
  expect(entries.map(({ name }) => name).sort()).toEqual(Object.keys(addon).sort());
});

const withArguments = entries.filter((entry) => entry.arguments.length > 0);

test.each(withArguments.map((entry) => [entry.name, entry] as const))('%s', (name, entry) => {
  entry.arguments.forEach((argument, at) => {
    const before = entry.arguments.slice(0, at);
    const args = entry.arguments.map(right);
    // The check of an earlier argument without a right value comes first.
    const refused = before.find((earlier) => right(earlier) === undefined) ?? argument;
    for (const value of wrong(argument)) {
      expect(refusalOf(name, [...args.slice(0, at), value, ...args.slice(at + 1)])).toEqual({
        code: expect.stringMatching(/^DS_(ARGUMENT|RELEASED|DEVICE)$/),
        op: name,
        expected: expect.stringMatching(new RegExp(` as ${refused.name}$`)),
        got: expect.stringMatching(/./),
      });
    }
    expect(refusalOf(name, args.slice(0, at))).toMatchObject({ op: name });
  });
});

describe('words of arrays', () => {
  const codeOf = (name: string, ...args: unknown[]) => {
    const refusal = refusalOf(name, args);
    return 'code' in refusal ? refusal.code : 'none';
  };
  const handle = () => buffer.handle;

  test.each([
    ['no triple', () => [handle(), 0], 'DS_ARGUMENT'],
    ['a released buffer', () => [released.get('tensor') as number, 0, 8], 'DS_RELEASED'],
    ['a negative offset', () => [handle(), -1, 8], 'DS_ARGUMENT'],
    ['a size of NaN', () => [handle(), 0, NaN], 'DS_ARGUMENT'],
    ['half a byte', () => [handle(), 0, 0.5], 'DS_ARGUMENT'],
    ['bytes behind the end', () => [handle(), 4 * 4096 - 4, 8], 'DS_BOUNDS'],
    ['a sum above 2^53', () => [handle(), 2 ** 53, 2 ** 53], 'DS_BOUNDS'],
  ])('segments of a file: %s', (_, words, code) => {
    const segments = Float64Array.from(words());
    expect(codeOf('writeFile', join(folder, 'f'), 0, new Uint8Array(0), segments, 0)).toBe(code);
  });

  test.each([
    ['too few', () => [4096, 1], 'DS_ARGUMENT'],
    ['a part of a triple', () => [4096, 1, 1, handle(), 0], 'DS_ARGUMENT'],
    ['blocks of 100 bytes', () => [100, 1, 1], 'DS_ARGUMENT'],
    ['blocks of no byte', () => [0, 1, 1], 'DS_ARGUMENT'],
    ['no request', () => [4096, 0, 1], 'DS_ARGUMENT'],
    ['a billion threads', () => [4096, 1, 1e9], 'DS_ARGUMENT'],
    ['NaN threads', () => [4096, 1, NaN], 'DS_ARGUMENT'],
    ['memory that is not aligned', () => [4096, 1, 1, handle(), 8, 4096], 'DS_ARGUMENT'],
    ['memory behind the end', () => [4096, 1, 1, handle(), 4096, 4 * 4096], 'DS_BOUNDS'],
  ])('tuning of a swap file: %s', (_, words, code) => {
    const tuning = Float64Array.from(words());
    expect(codeOf('openSwapFile', folder, 'label', 'a test', 4096, tuning)).toBe(code);
  });

  test.each([[[0]], [[2, 2]], [[-1, 2]], [[0, 0]], [[0, 1, 2]]])(
    '%j is no rank of a job',
    (place) => {
      const args = ['127.0.0.1', 1, secret, Int32Array.from(place), 10];
      expect(codeOf('joinJob', ...args)).toBe('DS_ARGUMENT');
    },
  );

  test.each([
    [[0], 0],
    [[0, 2], 0],
    [[0, -1], 0],
    [[0, 1], 2],
  ])('no group of the ranks %j with rank %d', (ranks, rank) => {
    const args = [live.get('job'), device.compute.handle, 'group', Int32Array.from(ranks), rank];
    expect(codeOf('openGroup', ...args)).toBe('DS_ARGUMENT');
  });
});

describe('ranges', () => {
  const end = 4 * 4096;
  const swap = (offset: number, at: number, bytes: number) => {
    const [file, stream] = [live.get('swap file'), device.compute.handle];
    return refusalOf('startSwap', [file, true, offset, buffer.handle, at, bytes, stream]);
  };

  test('of a copy', () => {
    const copy = (to: number, from: number, bytes: number) => {
      const { handle } = buffer;
      return refusalOf('copy', [handle, to, handle, from, bytes, device.compute.handle]);
    };
    expect(copy(end - 4, 0, 8)).toMatchObject({ code: 'DS_BOUNDS', op: 'copy' });
    expect(copy(0, end - 4, 8)).toMatchObject({ code: 'DS_BOUNDS', op: 'copy' });
    expect(copy(2 ** 53, 0, 2 ** 53)).toMatchObject({ code: 'DS_BOUNDS', op: 'copy' });
  });

  test('of a read and a write', () => {
    for (const name of ['read', 'write']) {
      const args = [buffer.handle, end - 4, new Uint8Array(8), device.compute.handle];
      expect(refusalOf(name, args)).toMatchObject({ code: 'DS_BOUNDS', op: name });
    }
  });

  test('of a swap', () => {
    const op = 'startSwap';
    expect(swap(100, 0, 4096)).toMatchObject({ code: 'DS_ARGUMENT', op });
    expect(swap(end, 0, 4096)).toMatchObject({ code: 'DS_BOUNDS', op });
    expect(swap(0, end, 4096)).toMatchObject({ code: 'DS_BOUNDS', op });
    expect(swap(2 ** 53, 0, 2 ** 53)).toMatchObject({ code: 'DS_BOUNDS', op });
  });

  test('of a file that is read', () => {
    const args = [0, 'a file', 0, 8, buffer.handle, end - 4];
    expect(refusalOf('readFile', args)).toMatchObject({ code: 'DS_BOUNDS', op: 'readFile' });
  });
});
