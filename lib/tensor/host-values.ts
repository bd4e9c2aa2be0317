// Conversion of JavaScript values to tensor data: nested arrays and typed arrays to numbers, shape
// and raw bits.

import { DsError } from '../errors.js';
import {
  type DType,
  isFloating,
  isTypedArray,
  type NumericArray,
  rawArray,
  type TypedArray,
} from '../runtime/dtype.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';

const OP = 'Tensor.from';

/** Type of one element of the given data. */
type Element = number | bigint | boolean;

interface HostValues {
  /** Values in row-major order. */
  readonly values: ArrayLike<Element>;
  readonly shape: readonly number[];
  /**
   * The dtype of the data: that of its typed array, bool or i64 if all elements are booleans or
   * bigints, else f32.
   */
  readonly natural: DType;
}

const dtypesOfArrays: readonly [abstract new (...args: never) => TypedArray, DType][] = [
  [Float64Array, 'f64'],
  [Int32Array, 'i32'],
  [BigInt64Array, 'i64'],
  [BigUint64Array, 'i64'],
  [Uint8Array, 'u8'],
];

function naturalDType(data: TypedArray): DType {
  return dtypesOfArrays.find(([type]) => data instanceof type)?.[1] ?? 'f32';
}

/**
 * Reads the values of `data`. Throws DS_SHAPE if it is ragged, DS_ARGUMENT if an element is not a
 * number.
 */
export function hostValues(data: unknown): HostValues {
  if (isTypedArray(data))
    return { values: data, shape: [data.length], natural: naturalDType(data) };
  if (!Array.isArray(data))
    return { values: [readElement(data, [])], shape: [], natural: kindOf([data]) };
  const shape: number[] = [];
  let level: unknown = data;
  for (; Array.isArray(level); level = level[0]) shape.push(level.length);
  if (isTypedArray(level)) shape.push(level.length);
  const values: Element[] = [];
  appendElements(data, shape, [], values);
  const natural = isTypedArray(level) ? naturalDType(level) : kindOf(values);
  return { values, shape, natural };
}

/** Appends the elements of `level`, which lies at `path`. */
function appendElements(
  level: ArrayLike<unknown>,
  shape: readonly number[],
  path: readonly number[],
  out: Element[],
): void {
  const depth = path.length;
  if (level.length !== shape[depth])
    throw raggedError(path, `${shape[depth]} elements`, level.length);
  const isLast = depth === shape.length - 1;
  for (let i = 0; i < level.length; ++i) {
    const item = level[i];
    const isList = Array.isArray(item) || isTypedArray(item);
    if (isLast !== isList) {
      if (isList) appendElements(item as ArrayLike<unknown>, shape, [...path, i], out);
      else out.push(readElement(item, [...path, i]));
    } else if (isLast) throw raggedError([...path, i], 'a number', formatValue(item));
    else throw raggedError([...path, i], 'an array', formatValue(item));
  }
}

function readElement(value: unknown, path: readonly number[]): Element {
  if (typeof value === 'number' || typeof value === 'boolean' || typeof value === 'bigint') {
    return value;
  }
  const isTensor = typeof value === 'object' && value !== null && 'buffer' in value;
  throw valueError(
    OP,
    `a number${formatPath(path)}`,
    value,
    isTensor
      ? 'The value is already a tensor; stack() joins several tensors.'
      : 'Pass numbers, nested arrays of numbers of equal lengths, or a typed array.',
  );
}

function raggedError(path: readonly number[], expected: string, got: unknown): DsError {
  return new DsError({
    code: 'DS_SHAPE',
    op: OP,
    expected: `${expected}${formatPath(path)}, as in the first list of that level`,
    got: String(got),
    hint: 'Nested lists of a level must have equal lengths; pad the short ones.',
  });
}

const formatPath = (path: readonly number[]): string =>
  path.length === 0 ? '' : ` at [${path.join('][')}]`;

function kindOf(values: readonly unknown[]): DType {
  if (values.length === 0) return 'f32';
  if (values.every((value) => typeof value === 'boolean')) return 'bool';
  return values.every((value) => typeof value === 'bigint') ? 'i64' : 'f32';
}

/** Returns the range of integers of `dtype`. */
export function integerRange(dtype: 'u8' | 'i32' | 'i64'): readonly [bigint, bigint] {
  if (dtype === 'u8') return [0n, 255n];
  const half = dtype === 'i32' ? 2n ** 31n : 2n ** 63n;
  return [-half, half - 1n];
}

/** Returns whether `dtype` holds `value` itself. */
export function fits(value: Element, dtype: 'u8' | 'i32' | 'i64'): boolean {
  if (typeof value === 'number' && !Number.isInteger(value)) return false;
  const [min, max] = integerRange(dtype);
  return BigInt(value) >= min && BigInt(value) <= max;
}

/**
 * Returns the raw bits of `values` as `dtype`, except f16 and bf16. Throws DS_ARGUMENT if an
 * integer dtype cannot hold a value.
 */
export function rawValues(values: ArrayLike<Element>, dtype: DType): NumericArray {
  const out = rawArray(dtype, values.length);
  if (values.constructor === out.constructor && dtype !== 'bool') {
    (out as Float32Array).set(values as Float32Array);
    return out;
  }
  if (isFloating(dtype) || dtype === 'bool') {
    // NaN is true, as everywhere: it is not 0.
    const convert = dtype === 'bool' ? (value: Element) => Number(Number(value) !== 0) : Number;
    for (let i = 0; i < values.length; ++i) {
      (out as Float32Array)[i] = convert(required(values[i]));
    }
    return out;
  }
  const integerDtype = dtype;
  for (let i = 0; i < values.length; ++i) {
    const value = required(values[i]);
    if (!fits(value, integerDtype))
      throw unrepresentableError(OP, value, integerDtype, ` as value ${i}`);
    if (out instanceof BigInt64Array) out[i] = BigInt(value);
    else (out as Int32Array)[i] = Number(value);
  }
  return out;
}

/** Throws DS_ARGUMENT if `dtype` is an integer dtype that cannot hold `value`. */
export function requireRepresentable(op: string, value: number, dtype: DType): void {
  if (isFloating(dtype) || dtype === 'bool' || fits(value, dtype)) return;
  throw unrepresentableError(op, value, dtype);
}

function unrepresentableError(
  op: string,
  value: Element,
  dtype: 'u8' | 'i32' | 'i64',
  at = '',
): DsError {
  const [min, max] = integerRange(dtype);
  const isWhole = typeof value !== 'number' || Number.isInteger(value);
  return argumentError(
    op,
    `integers in [${min}, ${max}] for ${dtype}`,
    `${formatValue(value)}${at}`,
    isWhole ? "Larger integers fit 'i64'." : "Apply Math.trunc(), or use dtype 'f32'.",
  );
}
