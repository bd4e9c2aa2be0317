// Element types: their native codes, sizes and typed arrays.
import { DsError } from '../errors.js';

export type DType = 'f32' | 'f16' | 'bf16' | 'i32' | 'i64' | 'u8' | 'bool' | 'f64';

/** Order is that of ds::DType in csrc/core/dtype.h. */
export const dtypes: readonly DType[] = ['f32', 'f16', 'bf16', 'i32', 'i64', 'u8', 'bool', 'f64'];

const codes = Object.fromEntries(dtypes.map((name, code) => [name, code])) as Record<DType, number>;
const sizes: Record<DType, number> = {
  f32: 4,
  f16: 2,
  bf16: 2,
  i32: 4,
  i64: 8,
  u8: 1,
  bool: 1,
  f64: 8,
};

export type NumericArray =
  | Float32Array
  | Float64Array
  | Int32Array
  | BigInt64Array
  | Uint8Array
  | Uint16Array;

export function dtypeCode(dtype: DType): number {
  return codes[dtype];
}

export function dtypeSize(dtype: DType): number {
  return sizes[dtype];
}

export function isFloating(dtype: DType): boolean {
  return dtype === 'f32' || dtype === 'bf16' || dtype === 'f16' || dtype === 'f64';
}

/** The dtype of statistics (means, log-sum-exps, losses) of tensors of `dtype`. */
export function statisticOf(dtype: DType): DType {
  return dtype === 'f64' ? 'f64' : 'f32';
}

/** A typed array of `length` elements that holds the raw bits of `dtype` (f16 and bf16 as Uint16Array). */
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

/** Checks a dtype name that came from outside. Throws DS_DTYPE. */
export function parseDType(name: string, op: string): DType {
  if ((dtypes as readonly string[]).includes(name)) return name as DType;
  throw new DsError({ code: 'DS_DTYPE', op, expected: dtypes.join(', '), got: name });
}
