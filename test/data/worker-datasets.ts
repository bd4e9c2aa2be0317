// Datasets for worker threads that behave well, slowly and badly.
import type { Dataset } from '../../lib/data/dataset.js';
import type { IterableDataset } from '../../lib/data/iterable-dataset.js';
import { Tensor } from '../../lib/tensor/index.js';

/** Samples are their own numbers. */
export function numbers(length: number): Dataset<number> {
  return { length, get: (index) => index };
}

/** As numbers, as promises that take their time: the earlier, the longer. */
export function slow(length: number): Dataset<number> {
  const wait = (index: number): number => (index % 3 === 0 ? 15 : index % 5);
  return {
    length,
    get: (index) => new Promise((resolve) => setTimeout(resolve, wait(index), index)),
  };
}

/** Samples of every kind of leaf. */
export function records(length: number): Dataset<object> {
  const all = Float64Array.from({ length: 4 * length }, (_, i) => i / 8);
  return {
    length,
    get: (index) => ({
      x: Float32Array.of(index, -index),
      wide: all.subarray(4 * index, 4 * index + 4),
      ids: [Int32Array.of(index), BigInt64Array.of(BigInt(index))],
      bytes: Buffer.from([index]),
      n: index,
    }),
  };
}

type Trouble =
  | 'throw'
  | 'reject'
  | 'text'
  | 'uncaught'
  | 'exit'
  | 'memory'
  | 'stall'
  | 'promise'
  | 'odd'
  | 'uncloneable'
  | 'tensor';

class SampleError extends Error {
  override name = 'SampleError';
}

/** As numbers, but for sample `bad`. */
export function troubledDataset(length: number, bad: number, trouble: Trouble): Dataset<unknown> {
  return { length, get: (index) => (index === bad ? makeTrouble(trouble) : index) };
}

function makeTrouble(trouble: Trouble): unknown {
  switch (trouble) {
    case 'throw':
      throw new SampleError('no such picture');
    case 'reject':
      return Promise.reject(new SampleError('no such picture'));
    case 'text':
      throw 'only text';
    case 'uncaught':
      setTimeout(() => {
        throw new SampleError('from a timer');
      });
      return new Promise(() => {});
    case 'exit':
      return process.exit(7);
    case 'memory':
      for (const all: unknown[] = []; ; ) all.push(new Array(1000).fill({}));
    case 'stall':
      while (true);
    case 'promise':
      return new Promise(() => setInterval(() => {}, 1000));
    case 'odd':
      return 'text';
    case 'uncloneable':
      return { call: () => 1 };
    case 'tensor':
      return { x: Tensor.from([1]) };
  }
}

export function failToBuild(): never {
  throw new RangeError('no data here');
}

export async function later(length: number): Promise<Dataset<number>> {
  return numbers(length);
}

export const notAFunction = 7;

export const notADataset = (): object => ({});

/** Samples 0 to length - 1 plus 100 times the epoch, in turn; `bad` fails. */
export function countedDataset(length: number, bad = -1): IterableDataset<number> {
  return {
    async *iterate(epoch) {
      for (let i = 0; i < length; ++i) {
        if (i === bad) throw new SampleError('no such line');
        yield 100 * epoch + i;
      }
    },
  };
}

/** As counted, but sample 2 takes for ever. */
export function stuck(length: number): IterableDataset<number> {
  return {
    async *iterate() {
      for (let i = 0; i < length; ++i) {
        if (i === 2) await new Promise(() => setInterval(() => {}, 1000));
        yield i;
      }
    },
  };
}
