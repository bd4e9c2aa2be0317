// DataLoader and TokenDataset: every sample once per epoch, exact resumption, windows, and bad
// data.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  collate,
  DataLoader,
  type Dataset,
  DistributedSampler,
  IterableLoader,
  RepeatingLoader,
  TokenDataset,
  workerDataset,
} from '../../lib/data/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { liveTensors, Tensor } from '../../lib/tensor/tensor.js';

/** Samples are their own numbers. */
function numbers(length: number): Dataset<number> {
  return { length, get: (index) => index };
}

const asList = (samples: number[]): number[] => samples;

describe('DataLoader', () => {
  test('serves every sample once per epoch, in another order each time', () => {
    const loader = new DataLoader(numbers(10), { batchSize: 3, collate: asList });
    expect(loader.length).toBe(4);
    const epochs = [0, 1].map(() => [...loader]);
    for (const batches of epochs) {
      expect(batches.map((batch) => batch.length)).toEqual([3, 3, 3, 1]);
      expect(batches.flat().sort((a, b) => a - b)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
    expect(epochs[0]).not.toEqual(epochs[1]);
  });

  test('without shuffle the order is natural; dropLast leaves the rest out', () => {
    const options = { batchSize: 4, shuffle: false, dropLast: true, collate: asList };
    const loader = new DataLoader(numbers(10), options);
    expect([...loader]).toEqual([
      [0, 1, 2, 3],
      [4, 5, 6, 7],
    ]);
    expect(loader.length).toBe(2);
  });

  test('asynchronous iteration gives the same batches and takes datasets of promises', async () => {
    const options = { batchSize: 3, seed: 4, collate: asList };
    const promised: Dataset<number> = { length: 10, get: async (index) => index };
    const batches: number[][] = [];
    for await (const batch of new DataLoader(promised, options)) batches.push(batch);
    expect(batches).toEqual([...new DataLoader(numbers(10), options)]);
    expect(() => [...new DataLoader(promised, options)]).toThrow(/for await/);
  });

  test('an iterable without batches is refused at once', () => {
    for (const other of [undefined, null, 5, {}]) {
      const repeat = (): unknown => new RepeatingLoader(other as unknown as DataLoader<number>);
      expect(repeat).toThrow(expect.objectContaining({ code: 'DS_ARGUMENT' }));
    }
  });

  test('any position resumes with the next sample', async () => {
    const options = { batchSize: 3, seed: 11, collate: asList };
    const all: number[][] = [];
    const fullLoader = new RepeatingLoader(new DataLoader(numbers(8), options));
    for (let i = 0; i < 12; ++i) all.push(fullLoader.next().value);
    for (let cut = 0; cut < 9; ++cut) {
      const first = new DataLoader(numbers(8), options);
      const batches = new RepeatingLoader(first);
      for (let i = 0; i < cut; ++i) batches.next();
      const second = new DataLoader(numbers(8), { ...options, seed: 99 });
      second.loadStateDict(JSON.parse(JSON.stringify(first.stateDict())));
      const rest = new RepeatingLoader(second);
      for (let i = cut; i < 12; ++i) expect(rest.next().value).toEqual(all[i]);
    }
  });

  test('a position in other data, and bad options, are refused', () => {
    const loader = new DataLoader(numbers(8));
    const other = new DataLoader(numbers(9)).stateDict();
    expect(() => loader.loadStateDict(other)).toThrow(
      expect.objectContaining({ code: 'DS_CHECKPOINT' }),
    );
    expect(() => new DataLoader(numbers(0))).toThrow(/at least 1 samples, got 0/);
    expect(() => new DataLoader(numbers(3), { batchSize: 4, dropLast: true })).toThrow(/dropLast/);
    for (const batchSize of [0, 1.5, -1, Number.NaN]) {
      expect(() => new DataLoader(numbers(3), { batchSize })).toThrow(/batchSize: expected an int/);
    }
  });

  test.each<[object, RegExp]>([
    [{ shuffle: 'false' }, /DataLoader shuffle: expected true or false, got "false"/],
    [{ shuffle: 0 }, /DataLoader shuffle: expected true or false, got 0/],
    [{ dropLast: 'no' }, /DataLoader dropLast: expected true or false, got "no"/],
    [{ collate: 5 }, /DataLoader collate: expected a function, got 5/],
    [
      { sampler: [2, 0, 1] },
      /DataLoader sampler: expected a sampler, got an array .*data\.Sampler/,
    ],
    [{ sampler: { length: 3, order: () => [] } }, /DataLoader sampler: expected a sampler/],
  ])('%j: an option of another type is refused', (options, message) => {
    expect(() => new DataLoader(numbers(3), options)).toThrow(message);
  });

  test('wrong options of workers, of an IterableLoader and of a DistributedSampler are refused', () => {
    const built = workerDataset({ module: join(tmpdir(), 'none.js'), length: 3 });
    const threads = { numWorkers: 1, persistentWorkers: 'yes' } as object;
    expect(() => new DataLoader(built, threads)).toThrow(/persistentWorkers: expected true or f/);
    const none = { *iterate() {} };
    const collate = { collate: 'stack' } as object;
    expect(() => new IterableLoader(none, collate)).toThrow(/IterableLoader collate: expected a f/);
    for (const name of ['shuffle', 'dropLast']) {
      const options = { rank: 0, worldSize: 1, [name]: 'false' };
      const message = new RegExp(`DistributedSampler ${name}: expected true or false`);
      expect(() => new DistributedSampler(3, options)).toThrow(message);
    }
  });

  test('an error in a sample reaches the caller', async () => {
    const broken: Dataset<number> = {
      length: 2,
      get: () => {
        throw new Error('bad sample');
      },
    };
    expect(() => [...new DataLoader(broken)]).toThrow('bad sample');
    await expect(new DataLoader(broken)[Symbol.asyncIterator]().next()).rejects.toThrow('bad');
  });
});

describe('collate', () => {
  test('stacks numbers, typed arrays and nested structures', () => {
    const samples = [0, 1].map((i) => ({
      x: Float32Array.of(i, i + 1, i + 2),
      ids: Int32Array.of(i),
      count: Uint32Array.of(2 ** 16 + i),
      pair: [i, i * 2] as const,
    }));
    const batch = collate(samples, cpu());
    expect(batch.x).toMatchObject({ shape: [2, 3], dtype: 'f32' });
    expect(batch.x.toArray()).toEqual([0, 1, 2, 1, 2, 3]);
    expect(batch.ids).toMatchObject({ shape: [2, 1], dtype: 'i32' });
    expect(batch.count.toArray()).toEqual([2 ** 16, 2 ** 16 + 1]);
    expect(batch.pair.map((t: Tensor) => t.toArray())).toEqual([
      [0, 1],
      [0, 2],
    ]);
  });

  test.each<[string, unknown[]]>([
    ['lengths', [Float32Array.of(1), Float32Array.of(1, 2)]],
    ['types', [Float32Array.of(1), Int32Array.of(1)]],
    ['keys', [{ a: 1 }, { b: 1 }]],
    ['kinds', [1, 'two']],
    ['texts', ['one', 'two']],
    ['nulls', [null, null]],
  ])('samples of different or unknown %s are refused', (_name, samples) => {
    expect(() => collate(samples, cpu())).toThrow(expect.objectContaining({ code: 'DS_DATA' }));
  });

  test('takes a device by its name, and the CPU for none', () => {
    for (const batch of [collate([1, 2]), collate([1, 2], 'cpu')]) {
      expect([batch.device, batch.toArray()]).toEqual([cpu(), [1, 2]]);
    }
  });

  test('a disposed batch leaves nothing behind', () => {
    const dataset = new TokenDataset(
      Int32Array.from({ length: 101 }, (_, i) => i),
      10,
    );
    const before = liveTensors();
    for (const { tokens, targets } of new DataLoader(dataset, { batchSize: 4 })) {
      tokens.dispose();
      targets.dispose();
    }
    expect(liveTensors()).toBe(before);
  });
});

describe('TokenDataset', () => {
  let dir: string;
  beforeEach(() => {
    dir = mkdtempSync(join(tmpdir(), 'ds-data-'));
  });
  afterEach(() => rmSync(dir, { recursive: true }));

  const encode = (text: string): number[] => [...text].map((c) => c.charCodeAt(0));

  test('windows follow one another, targets one token ahead', () => {
    const dataset = new TokenDataset(Int32Array.of(1, 2, 3, 4, 5, 6, 7, 8), 3);
    expect(dataset.length).toBe(2);
    expect(dataset.get(0)).toEqual({
      tokens: Int32Array.of(1, 2, 3),
      targets: Int32Array.of(2, 3, 4),
    });
    expect(dataset.get(1)).toEqual({
      tokens: Int32Array.of(4, 5, 6),
      targets: Int32Array.of(5, 6, 7),
    });
    for (const index of [-1, 2, 0.5]) expect(() => dataset.get(index)).toThrow(/\[0, 2\)/);
  });

  test('batches are i32 tensors of shape [B, T]', () => {
    const loader = new DataLoader(new TokenDataset(Int32Array.of(1, 2, 3, 4, 5), 2), {
      batchSize: 2,
      shuffle: false,
    });
    const [batch] = [...loader];
    expect(batch?.tokens).toMatchObject({ shape: [2, 2], dtype: 'i32' });
    expect(batch?.targets.toArray()).toEqual([2, 3, 4, 5]);
  });

  test('a folder is read in the order of its paths, filtered by name', () => {
    mkdirSync(join(dir, 'b'));
    writeFileSync(join(dir, 'b', 'two.txt'), 'CD');
    writeFileSync(join(dir, 'a.txt'), 'AB');
    writeFileSync(join(dir, 'skip.bin'), Buffer.of(255, 254));
    const source = { path: dir, match: /\.txt$/, encode, seq: 2 };
    expect([...TokenDataset.fromText(source).tokens]).toEqual(encode('ABCD'));
    const ended = TokenDataset.fromText({ ...source, endOfText: 0 });
    expect([...ended.tokens]).toEqual([65, 66, 0, 67, 68, 0]);
    expect(() => TokenDataset.fromText({ path: dir, encode, seq: 2 })).toThrow(/skip.bin.*UTF-8/);
  });

  test.each([
    ['missing.txt', null, /missing.txt.*ENOENT/],
    ['empty.txt', '', /empty.txt: expected at least 9 tokens, got 0/],
    ['short.txt', 'abc', /short.txt: expected at least 9 tokens, got 3.*shorter sequence/],
  ])('%s is refused', (name, text, message) => {
    const path = join(dir, name);
    if (text !== null) writeFileSync(path, text);
    expect(() => TokenDataset.fromText({ path, encode, seq: 8 })).toThrow(
      expect.objectContaining({ code: 'DS_DATA', message: expect.stringMatching(message) }),
    );
  });

  test('a folder without text, a bad sequence length and a bad tokenizer are refused', () => {
    expect(() => TokenDataset.fromText({ path: dir, encode, seq: 8 })).toThrow(
      /text files, got a folder without them/,
    );
    expect(() => new TokenDataset(Int32Array.of(1, 2), 0)).toThrow(/sequence length/);
    const path = join(dir, 'x.txt');
    writeFileSync(path, 'text');
    const bad = () => [1.5];
    expect(() => TokenDataset.fromText({ path, encode: bad, seq: 1 })).toThrow(
      /tokens that are integers.*1.5/,
    );
  });
});

test('tensors are stacked', () => {
  const samples = [1, 2].map((x) => Tensor.from([x, x]));
  const before = liveTensors();
  const batch = collate(samples, cpu());
  expect(batch.shape).toEqual([2, 2]);
  expect(liveTensors()).toBe(before + 1);
});

describe('for await runs the event loop between two batches', () => {
  const options = { batchSize: 1, collate: asList };
  const settings = {
    *[Symbol.iterator](): Generator<number> {},
    async *[Symbol.asyncIterator](): AsyncGenerator<number> {
      yield* [1, 2, 3, 4, 5, 6];
    },
  };

  test.each<[string, () => AsyncIterable<unknown>]>([
    ['DataLoader', () => new DataLoader(numbers(6), options)],
    ['RepeatingLoader', () => new RepeatingLoader(new DataLoader(numbers(3), options))],
    ['RepeatingLoader of a loader of the program', () => new RepeatingLoader(settings)],
  ])('%s', async (_, loader) => {
    const order: string[] = [];
    let batches = 0;
    for await (const _batch of loader()) {
      order.push('batch');
      setImmediate(() => order.push('turn'));
      if (++batches === 6) break;
    }
    expect(order).toEqual([...new Array(5).fill(['batch', 'turn']).flat(), 'batch']);
  });
});

describe('RepeatingLoader', () => {
  test('continues with the next epoch, each in its own order', async () => {
    const options = { batchSize: 2, seed: 3, collate: asList };
    const loader = new DataLoader(numbers(5), options);
    const epochs = [0, 1, 2].flatMap(() => [...loader]);
    const repeated = new RepeatingLoader(new DataLoader(numbers(5), options));
    expect(epochs.map(() => repeated.next().value)).toEqual(epochs);
    const taken: number[][] = [];
    for (const batch of new RepeatingLoader(new DataLoader(numbers(5), options))) {
      if (taken.push(batch) === 9) break;
    }
    expect(taken).toEqual(epochs);
    const promised: Dataset<number> = { length: 5, get: async (index) => index };
    const later: number[][] = [];
    for await (const batch of new RepeatingLoader(new DataLoader(promised, options))) {
      if (later.push(batch) === 9) break;
    }
    expect(later).toEqual(epochs);
  });

  test('a loader without batches is an error, not an endless loop', async () => {
    const nothing = {
      *[Symbol.iterator](): Generator<number> {},
      async *[Symbol.asyncIterator](): AsyncGenerator<number> {},
    };
    expect(() => new RepeatingLoader(nothing).next()).toThrow(/0 batches in an epoch/);
    await expect(new RepeatingLoader(nothing).nextAsync()).rejects.toThrow(/0 batches in an epoch/);
  });

  test('an error is thrown once; the next call starts over', () => {
    let calls = 0;
    const once: Dataset<number> = {
      length: 3,
      get: (index) => {
        if (++calls === 2) throw new Error('first time');
        return index;
      },
    };
    const loader = new DataLoader(once, { shuffle: false, collate: asList });
    const repeated = new RepeatingLoader(loader);
    expect(repeated.next().value).toEqual([0]);
    expect(() => repeated.next()).toThrow('first time');
    expect(repeated.next().value).toEqual([1]);
  });
});

test('setEpoch() moves the loader and its sampler to the start of an epoch', () => {
  const options = { batchSize: 2, seed: 3, collate: asList };
  const loader = new DataLoader(numbers(7), options);
  const epochs = [0, 1, 2].map(() => [...loader]);
  expect(loader.epoch).toBe(3);
  loader.setEpoch(1);
  expect([...loader]).toEqual(epochs[1]);
  for (const _ of loader) break;
  loader.sampler.setEpoch(0);
  expect([...loader]).toEqual(epochs[0]);
});

test('an iteration left after the last batch continues with the next epoch', () => {
  const options = { batchSize: 2, seed: 3, collate: asList };
  const fullDataLoader = new DataLoader(numbers(4), options);
  const epochs = [0, 1].map(() => [...fullDataLoader]);
  const loader = new DataLoader(numbers(4), options);
  let left = 2;
  for (const _ of loader) if (--left === 0) break;
  const other = new DataLoader(numbers(4), options);
  other.loadStateDict(loader.stateDict());
  expect(other.epoch).toBe(1);
  expect([...other]).toEqual(epochs[1]);
  expect([...loader]).toEqual(epochs[1]);
});
