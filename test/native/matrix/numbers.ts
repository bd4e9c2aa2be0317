// Element types in JavaScript: rounding to a dtype, raw bits of values, and a seeded generator.
import { type DType, type NumericArray, rawArray } from '../../../lib/runtime/dtype.js';

// Local copies: jest's sandbox makes every global look-up slow.
const { abs, cos, floor, fround, imul, log, sqrt, trunc, PI } = Math;
const { is } = Object;
const { isNaN: nan } = Number;

const float = new Float32Array(1);
const word = new Uint32Array(float.buffer);

function bitsOfFloat(x: number): number {
  float[0] = x;
  return word[0]!;
}

function floatOfBits(bits: number): number {
  word[0] = bits;
  return float[0]!;
}

/** The f32 `x` as bfloat16 bits, ties to even. */
function toBfloat16(x: number): number {
  if (nan(x)) return 0x7fff;
  const bits = bitsOfFloat(x);
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) / 65536) & 0xffff;
}

/** The f32 `x` as binary16 bits, ties to even. */
function toHalf(x: number): number {
  if (nan(x)) return 0x7e00;
  const sign = x < 0 || is(x, -0) ? 0x8000 : 0;
  const magnitude = abs(x);
  if (magnitude >= 65520) return sign | 0x7c00;
  // Adding such a large number and subtracting it again rounds to multiples of 2^-24.
  if (magnitude < 2 ** -14) return sign | ((magnitude + 2 ** 28 - 2 ** 28) * 2 ** 24);
  // A mantissa that rounds up carries into the exponent, which is correct.
  const bits = bitsOfFloat(magnitude);
  return sign | ((bits - 0x38000000 + 0xfff + ((bits >>> 13) & 1)) >>> 13);
}

function halfOf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const mantissa = bits & 1023;
  if (exponent === 31) return mantissa ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  if (exponent === 0) return sign * mantissa * 2 ** -24;
  return sign * (1024 + mantissa) * 2 ** (exponent - 25);
}

/** The value of each binary16, built on first use. */
let halves: Float64Array | null = null;

function fromHalf(bits: number): number {
  halves ??= Float64Array.from({ length: 0x10000 }, (_, half) => halfOf(half));
  return halves[bits]!;
}

/** Stores `value` as element `at` of a raw array of `dtype`, like a cast from f64. */
export function encode(raw: NumericArray, at: number, value: number, dtype: DType): void {
  if (dtype === 'i64') raw[at] = value >= 2 ** 63 ? 2n ** 63n - 1n : BigInt(trunc(value));
  else if (dtype === 'bf16') raw[at] = toBfloat16(fround(value));
  else if (dtype === 'f16') raw[at] = toHalf(fround(value));
  else if (dtype === 'bool') raw[at] = value !== 0 ? 1 : 0;
  else raw[at] = value;
}

/** Element `at` of a raw array of `dtype` as a number. */
export function decode(raw: NumericArray, at: number, dtype: DType): number {
  const bits = raw[at] as number;
  if (dtype === 'bf16') return floatOfBits(bits << 16);
  if (dtype === 'f16') return fromHalf(bits);
  return dtype === 'i64' ? Number(bits) : bits;
}

type Encode = (raw: never, at: Int32Array, values: ArrayLike<number>) => void;
type Decode = (raw: never, at: Int32Array, values: Float64Array) => void;

// A separate function per dtype: a loop that has seen many array types is several times slower.
const encoders: Partial<Record<DType, Encode>> = {
  f64(raw: Float64Array, at, values) {
    for (let i = 0; i < at.length; ++i) raw[at[i]!] = values[i]!;
  },
  f32(raw: Float32Array, at, values) {
    for (let i = 0; i < at.length; ++i) raw[at[i]!] = values[i]!;
  },
  f16(raw: Uint16Array, at, values) {
    for (let i = 0; i < at.length; ++i) raw[at[i]!] = toHalf(fround(values[i]!));
  },
  bf16(raw: Uint16Array, at, values) {
    for (let i = 0; i < at.length; ++i) raw[at[i]!] = toBfloat16(fround(values[i]!));
  },
};
const decoders: Partial<Record<DType, Decode>> = {
  f64(raw: Float64Array, at, values) {
    for (let i = 0; i < at.length; ++i) values[i] = raw[at[i]!]!;
  },
  f32(raw: Float32Array, at, values) {
    for (let i = 0; i < at.length; ++i) values[i] = raw[at[i]!]!;
  },
  f16(raw: Uint16Array, at, values) {
    for (let i = 0; i < at.length; ++i) values[i] = fromHalf(raw[at[i]!]!);
  },
  bf16(raw: Uint16Array, at, values) {
    for (let i = 0; i < at.length; ++i) values[i] = floatOfBits(raw[at[i]!]! << 16);
  },
};

/** Stores each value at its index in `at`. */
export function encodeAll(
  raw: NumericArray,
  at: Int32Array,
  values: ArrayLike<number>,
  dtype: DType,
): void {
  const all = encoders[dtype];
  if (all) all(raw as never, at, values);
  else for (let i = 0; i < at.length; ++i) encode(raw, at[i]!, values[i]!, dtype);
}

/** The elements at `at` as numbers. */
export function decodeAll(raw: NumericArray, at: Int32Array, dtype: DType): Float64Array {
  const values = new Float64Array(at.length);
  const all = decoders[dtype];
  if (all) all(raw as never, at, values);
  else for (let i = 0; i < at.length; ++i) values[i] = decode(raw, at[i]!, dtype);
  return values;
}

/** One element of each dtype. */
const cells: Partial<Record<DType, NumericArray>> = {};

/** `value` rounded to `dtype`. */
export function roundTo(value: number, dtype: DType): number {
  if (dtype === 'f64') return value;
  if (dtype === 'f32') return fround(value);
  cells[dtype] ??= rawArray(dtype, 1);
  const raw = cells[dtype];
  encode(raw, 0, value, dtype);
  return decode(raw, 0, dtype);
}

/** A small seeded generator (mulberry32), so that a case has the same inputs everywhere. */
export class Random {
  private state: number;

  /** `text` is the seed, usually the name of the case. */
  constructor(text: string) {
    this.state = 0x811c9dc5;
    for (const letter of text) this.state = imul(this.state ^ letter.charCodeAt(0), 0x01000193);
  }

  /** In [0, 1). */
  unit(): number {
    this.state = (this.state + 0x6d2b79f5) | 0;
    let t = imul(this.state ^ (this.state >>> 15), 1 | this.state);
    t = (t + imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  /** An integer in [low, high). */
  integer(low: number, high: number): number {
    return low + floor(this.unit() * (high - low));
  }

  /** `n` values in [low, high). */
  uniform(n: number, low = -1, high = 1): Float64Array {
    return this.draw(n, () => low + this.unit() * (high - low));
  }

  /** `n` integers in [low, high). */
  integers(n: number, low: number, high: number): Float64Array {
    return this.draw(n, () => this.integer(low, high));
  }

  /** `n` values of about unit variance. */
  normal(n: number): Float64Array {
    return this.draw(n, () => {
      const radius = sqrt(-2 * log(1 - this.unit()));
      return radius * cos(2 * PI * this.unit());
    });
  }

  private draw(n: number, next: () => number): Float64Array {
    const out = new Float64Array(n);
    for (let i = 0; i < n; ++i) out[i] = next();
    return out;
  }
}
