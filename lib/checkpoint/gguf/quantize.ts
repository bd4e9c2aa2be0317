// Encodes rows of numbers in GGUF's types: f32, f16, and blocks of small integers with scales. The
// scales minimise a weighted squared error. Block layouts are ggml's, searches are llama.cpp's.
import { required } from '../../runtime/required.js';
import { typeId } from './blocks.js';

/** A type that saveGguf() can write. */
export type PackedType = 'F32' | 'F16' | 'Q8_0' | 'MXFP4' | 'Q4_K' | 'Q6_K';

/** Number of values and of bytes of a block. */
const LAYOUTS: Readonly<Record<PackedType, readonly [values: number, bytes: number]>> = {
  F32: [1, 4],
  F16: [1, 2],
  Q8_0: [32, 34],
  MXFP4: [32, 17],
  Q4_K: [256, 144],
  Q6_K: [256, 210],
};

/** Returns the number of values in a block. */
export const blockValues = (type: PackedType): number => LAYOUTS[type][0];

/** Returns the number of bytes of `count` encoded values. */
export const packedBytes = (type: PackedType, count: number): number =>
  (count / LAYOUTS[type][0]) * LAYOUTS[type][1];

/** Returns the id of the type in files. */
export const packedTypeId = (type: PackedType): number => typeId(type);

/** Reads a number without a bounds check, because inner loops call it. */
const valueAt = (values: Float32Array | Float64Array | Uint8Array, i: number): number =>
  values[i] as number;

const FLOAT = new Float32Array(1);
const BITS = new Uint32Array(FLOAT.buffer);

/** Returns the bits of the nearest f16 number. Ties round to even. */
export function halfBits(value: number): number {
  FLOAT[0] = value;
  const bits = required(BITS[0]);
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x47800000) return sign | 0x7c00;
  if (magnitude < 0x38800000) {
    // Subnormal f16 numbers are multiples of 2^-24.
    const scaled = Math.abs(value) * 2 ** 24;
    const floor = Math.floor(scaled);
    const rest = scaled - floor;
    const isUp = rest > 0.5 || (rest === 0.5 && (floor & 1) === 1);
    return sign | (floor + (isUp ? 1 : 0));
  }
  const shifted = magnitude - 0x38000000;
  return sign | ((shifted + 0xfff + ((shifted >>> 13) & 1)) >>> 13);
}

/** Returns `value`, rounded to f16. */
function roundToHalf(value: number): number {
  const bits = halfBits(value);
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const magnitude =
    exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15);
  return bits & 0x8000 ? -magnitude : magnitude;
}

const clamp = (value: number, low: number, high: number): number =>
  Math.min(Math.max(value, low), high);

/** Returns the encoded bytes of `values`. Their number must be a multiple of blockValues(type). */
export function packValues(type: PackedType, values: Float32Array): Uint8Array {
  const out = Buffer.alloc(packedBytes(type, values.length));
  const [size, bytes] = LAYOUTS[type];
  if (type === 'F32') {
    for (let i = 0; i < values.length; ++i) out.writeFloatLE(values[i] as number, 4 * i);
  } else if (type === 'F16') {
    for (let i = 0; i < values.length; ++i) out.writeUInt16LE(halfBits(valueAt(values, i)), 2 * i);
  } else {
    const pack = { Q8_0: q8, MXFP4: packMxfp4, Q4_K: q4k, Q6_K: q6k }[type];
    for (let block = 0; block * size < values.length; ++block) {
      const from = values.subarray(block * size, (block + 1) * size);
      pack(from, out.subarray(block * bytes, (block + 1) * bytes));
    }
  }
  return out;
}

function q8(x: Float32Array, out: Buffer): void {
  const scale = x.reduce((max, value) => Math.max(max, Math.abs(value)), 0) / 127;
  out.writeUInt16LE(halfBits(scale), 0);
  for (let i = 0; i < 32; ++i) out.writeInt8(scale ? round(valueAt(x, i) / scale) : 0, 2 + i);
}

/** Magnitudes of the codes 0 to 7 of MXFP4. Bit 3 of a code is the sign. */
const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6];

/**
 * Encodes a block in MXFP4. The scale is a power of 2. Divided by it, the largest magnitude is at
 * least 4 and less than 8.
 */
function packMxfp4(x: Float32Array, out: Buffer): void {
  const most = x.reduce((max, value) => Math.max(max, Math.abs(value)), 0);
  const exponent = most > 0 ? clamp(Math.floor(Math.log2(most)) - 2 + 127, 0, 254) : 0;
  const scale = 2 ** (exponent - 127);
  out[0] = exponent;
  for (let i = 0; i < 32; ++i) {
    const value = valueAt(x, i);
    const target = Math.abs(value) / scale;
    let code = 0;
    while (code < 7 && 2 * target > (E2M1[code] as number) + (E2M1[code + 1] as number)) ++code;
    // Value i is in the low half of byte i, value 16 + i in its high half.
    const nibble = value < 0 && code > 0 ? code | 8 : code;
    out[1 + (i & 15)] = valueAt(out, 1 + (i & 15)) | (nibble << (i < 16 ? 0 : 4));
  }
}

/** Rounds halves away from zero, as C's round() does. */
const round = (value: number): number => Math.sign(value) * Math.round(Math.abs(value));

/** A scale and a minimum: a value is about scale * code - min, for a code of 0 to 15. */
interface Affine {
  readonly scale: number;
  readonly min: number;
}

/** Weights of the values of a group. All groups reuse the memory. */
const WEIGHTS = new Float64Array(32);

/**
 * Returns the scale and minimum of 32 values with the smallest weighted squared error. It tries 21
 * scales, and solves each for the best minimum. Larger values have larger weights.
 */
function affineOf(x: Float32Array): Affine {
  let [low, high, squares] = [0, Number.NEGATIVE_INFINITY, 0];
  for (const value of x) {
    low = Math.min(low, value);
    high = Math.max(high, value);
    squares += value * value;
  }
  if (high <= low) return { scale: 0, min: -low };
  const base = Math.sqrt(squares / x.length);
  let [w, wx, wxx] = [0, 0, 0];
  for (let i = 0; i < x.length; ++i) {
    const value = valueAt(x, i);
    const by = base + Math.abs(value);
    WEIGHTS[i] = by;
    w += by;
    wx += by * value;
    wxx += by * value * value;
  }
  let [scale, min, best] = [(high - low) / 15, -low, Number.POSITIVE_INFINITY];
  for (let step = 0; step <= 20; ++step) {
    const inverse = (15 - 1 + step * 0.1) / (high - low);
    let [wc, wcc, wcx] = [0, 0, 0];
    for (let i = 0; i < x.length; ++i) {
      const value = valueAt(x, i);
      // No value is less than `low`, so `| 0` rounds down.
      const code = Math.min((inverse * (value - low) + 0.5) | 0, 15);
      const weighted = valueAt(WEIGHTS, i) * code;
      wc += weighted;
      wcc += weighted * code;
      wcx += weighted * value;
    }
    // Solves x = a code + b by weighted least squares, with b at most 0.
    const determinant = w * wcc - wc * wc;
    if (determinant <= 0) continue;
    let [a, b] = [(w * wcx - wc * wx) / determinant, (wcc * wx - wc * wcx) / determinant];
    if (b > 0) [a, b] = [wcx / wcc, 0];
    const error = wxx - 2 * (a * wcx + b * wx) + a * a * wcc + 2 * a * b * wc + b * b * w;
    if (error >= best) continue;
    [scale, min, best] = [a, -b, error];
  }
  return { scale, min };
}

function q4k(x: Float32Array, out: Buffer): void {
  const groups = Array.from({ length: 8 }, (_, j) => affineOf(x.subarray(32 * j, 32 * j + 32)));
  const max = (values: readonly number[]): number => Math.max(0, ...values);
  const d = roundToHalf(max(groups.map(({ scale }) => scale)) / 63);
  const m = roundToHalf(max(groups.map(({ min }) => min)) / 63);
  out.writeUInt16LE(halfBits(d), 0);
  out.writeUInt16LE(halfBits(m), 2);
  const six = (value: number, unit: number): number =>
    unit === 0 ? 0 : clamp(Math.round(value / unit), 0, 63);
  for (const [j, { scale, min }] of groups.entries()) {
    const [s, n] = [six(scale, d), six(min, m)];
    if (j < 4) {
      out[4 + j] = valueAt(out, 4 + j) | s;
      out[8 + j] = valueAt(out, 8 + j) | n;
    } else {
      out[8 + j] = (s & 15) | ((n & 15) << 4);
      out[j] = valueAt(out, j) | ((s >> 4) << 6);
      out[4 + j] = valueAt(out, 4 + j) | ((n >> 4) << 6);
    }
    const [step, below] = [d * s, m * n];
    for (let l = 0; l < 32; ++l) {
      const value = valueAt(x, 32 * j + l);
      const code = step === 0 ? 0 : clamp(Math.round((value + below) / step), 0, 15);
      const at = 16 + 32 * (j >> 1) + l;
      out[at] = valueAt(out, at) | (code << (4 * (j & 1)));
    }
  }
}

/**
 * Returns the scale of 16 values with the smallest weighted squared error for codes of -32 to 31.
 * The scale may be negative.
 */
function scaleOf(x: Float32Array): number {
  let max = 0;
  for (const value of x) if (Math.abs(value) > Math.abs(max)) max = value;
  if (Math.abs(max) < 1e-15) return 0;
  let [best, score] = [0, -1];
  for (let step = -9; step <= 9; ++step) {
    const inverse = -(32 + step * 0.1) / max;
    let [products, squares] = [0, 0];
    for (let i = 0; i < x.length; ++i) {
      const value = valueAt(x, i);
      const code = Math.min(Math.max(Math.floor(inverse * value + 0.5), -32), 31);
      const weighted = value * value * code;
      products += weighted * value;
      squares += weighted * code;
    }
    if (squares === 0 || (products * products) / squares <= score) continue;
    score = (products * products) / squares;
    best = products / squares;
  }
  return best;
}

function q6k(x: Float32Array, out: Buffer): void {
  const scales = Array.from({ length: 16 }, (_, g) => scaleOf(x.subarray(16 * g, 16 * g + 16)));
  const max = scales.reduce((a, b) => (Math.abs(b) > Math.abs(a) ? b : a), 0);
  const d = roundToHalf(max / -128);
  out.writeUInt16LE(halfBits(d), 208);
  if (d === 0) {
    // Code 32 represents 0.
    for (let e = 0; e < 256; ++e) putSix(out, e, 32);
    return;
  }
  for (const [g, scale] of scales.entries()) {
    const eight = clamp(Math.round(scale / d), -128, 127);
    out.writeInt8(eight, 192 + g);
    const step = d * eight;
    for (let i = 0; i < 16; ++i) {
      const e = 16 * g + i;
      const code = step === 0 ? 0 : clamp(Math.round(valueAt(x, e) / step), -32, 31);
      putSix(out, e, code + 32);
    }
  }
}

/** Stores the six-bit code of value `e` of a Q6_K block: four low bits and two high bits apart. */
function putSix(out: Buffer, e: number, code: number): void {
  const [t, k, l] = [e >> 7, (e >> 5) & 3, e & 31];
  const low = 64 * t + 32 * (k & 1) + l;
  const high = 128 + 32 * t + l;
  out[low] = valueAt(out, low) | ((code & 15) << (4 * (k >> 1)));
  out[high] = valueAt(out, high) | ((code >> 4) << (2 * k));
}
