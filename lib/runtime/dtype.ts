// Element types: their native codes, their names in other libraries, and typed arrays.
import { DsError } from '../errors.js';
import { type DType, dtypeSizes, dtypes } from './dtypes.generated.js';
import { formatValue } from './format-value.js';

export type { DType };

const codes = Object.fromEntries(dtypes.map((name, code) => [name, code])) as Record<DType, number>;

/**
 * Typed arrays that hold a tensor's elements on the host; f16 and bf16 are raw bits in a
 * Uint16Array.
 */
export type NumericArray =
  | Float32Array
  | Float64Array
  | Int32Array
  | BigInt64Array
  | Uint8Array
  | Uint16Array;

/** All typed arrays accepted as values. */
export type TypedArray =
  | NumericArray
  | Int8Array
  | Int16Array
  | Uint8ClampedArray
  | Uint32Array
  | BigUint64Array;

/** Returns whether `value` is a typed array. */
export function isTypedArray(value: unknown): value is TypedArray {
  return ArrayBuffer.isView(value) && !(value instanceof DataView);
}

/** Returns the addon's number of a dtype. */
export function dtypeCode(dtype: DType): number {
  return codes[dtype];
}

/** Returns bytes per element. Throws DS_DTYPE for an unknown name. */
export function dtypeSize(dtype: DType): number {
  const size: unknown = dtypeSizes[dtype];
  if (typeof size === 'number') return size;
  throw new DsError({
    code: 'DS_DTYPE',
    op: 'tensor',
    expected: `one of ${dtypes.join(', ')}`,
    got: formatValue(dtype),
    hint: '',
  });
}

/** Returns whether elements are floating-point numbers. */
export function isFloating(dtype: DType): dtype is 'f32' | 'bf16' | 'f16' | 'f64' {
  return dtype === 'f32' || dtype === 'bf16' || dtype === 'f16' || dtype === 'f64';
}

/** Returns the dtype of statistics (means, log-sum-exps, losses) of tensors of `dtype`. */
export function statisticOf(dtype: DType): DType {
  return dtype === 'f64' ? 'f64' : 'f32';
}

/**
 * Returns a typed array of `length` elements that holds the raw bits of `dtype` (f16 and bf16 as
 * Uint16Array).
 */
export function rawArray(dtype: DType, length: number): NumericArray {
  switch (dtype) {
    case 'f32':
      return new Float32Array(length);
    case 'f64':
      return new Float64Array(length);
    case 'i32':
      return new Int32Array(length);
    case 'i64':
      return new BigInt64Array(length);
    case 'f16':
    case 'bf16':
      return new Uint16Array(length);
    case 'u8':
    case 'bool':
      return new Uint8Array(length);
  }
}

/** Names of dtypes in PyTorch and NumPy. */
const foreign: Readonly<Record<string, DType>> = {
  float32: 'f32',
  float: 'f32',
  fp32: 'f32',
  float16: 'f16',
  half: 'f16',
  fp16: 'f16',
  bfloat16: 'bf16',
  float64: 'f64',
  double: 'f64',
  fp64: 'f64',
  number: 'f32',
  int32: 'i32',
  int: 'i32',
  int64: 'i64',
  long: 'i64',
  uint8: 'u8',
  byte: 'u8',
  boolean: 'bool',
};

/** Returns a hint for a foreign dtype name: '"float32" is "f32" here.', or an empty text. */
export function dtypeHint(name: unknown): string {
  const equivalent =
    typeof name === 'string' ? foreign[name.toLowerCase().replace('torch.', '')] : '';
  return equivalent ? `${JSON.stringify(name)} is '${equivalent}' here.` : '';
}

/** Returns whether `name` is a dtype. */
export function isDType(name: unknown): name is DType {
  return typeof name === 'string' && typeof codes[name as DType] === 'number';
}

/** Returns `name` if it is a dtype. Throws DS_DTYPE if it is not. */
export function parseDType(name: unknown, op: string): DType {
  if (isDType(name)) return name;
  const expected = `a dtype: ${dtypes.join(', ')}`;
  throw new DsError({
    code: 'DS_DTYPE',
    op,
    expected,
    got: formatValue(name),
    hint: dtypeHint(name),
  });
}
