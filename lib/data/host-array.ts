// Batches in host memory: arrays with a dtype and a shape, which can be moved between threads.
import type { DType, NumericArray } from '../runtime/dtype.js';
import { type Column, requireAll, type Structure, splitIntoColumns } from './structure.js';

/** Values in row-major order. The array owns its memory, so that a thread can transfer it. */
export interface HostArray {
  dtype: DType;
  shape: number[];
  values: NumericArray;
}

export interface HostBatch {
  structure: Structure;
  arrays: HostArray[];
}

/** Dtypes of typed arrays. Values of other types are converted to f32. */
const DTYPES: Record<string, DType> = {
  Float32Array: 'f32',
  Float64Array: 'f64',
  Int32Array: 'i32',
  BigInt64Array: 'i64',
  BigUint64Array: 'i64',
  Uint8Array: 'u8',
  Buffer: 'u8',
};

/**
 * Stacks samples along a new first dim. Numbers become f32. Throws DS_DATA if the samples differ in
 * structure, type or length.
 */
export function stackSamples(samples: readonly unknown[]): HostBatch {
  const { structure, columns } = splitIntoColumns(samples);
  return { structure, arrays: columns.map(stackColumn) };
}

/** Stacks a leaf of all samples. Throws DS_DATA if the samples differ in type or length. */
export function stackColumn(column: Column): HostArray {
  const { items } = column;
  if (typeof items[0] === 'number') {
    requireAll(column, 'a number', (x) => typeof x === 'number');
    const values = Float32Array.from(items as number[]);
    return { dtype: 'f32', shape: [values.length], values };
  }
  const first = items[0] as NumericArray;
  const { length } = first;
  requireAll(column, `${length} values of one type`, (x) => {
    return x?.constructor === first.constructor && (x as NumericArray).length === length;
  });
  const dtype = DTYPES[first.constructor.name] ?? 'f32';
  const values = createArray(dtype, items.length * length);
  items.forEach((item, i) => {
    values.set(item as never, i * length);
  });
  return { dtype, shape: [items.length, length], values };
}

function createArray(dtype: DType, length: number): NumericArray {
  if (dtype === 'f64') return new Float64Array(length);
  if (dtype === 'i32') return new Int32Array(length);
  if (dtype === 'i64') return new BigInt64Array(length);
  return dtype === 'u8' ? new Uint8Array(length) : new Float32Array(length);
}
