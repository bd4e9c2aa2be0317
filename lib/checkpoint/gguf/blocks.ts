// Decodes the values of GGUF tensors: plain numbers, and blocks. A block stores small integer codes
// with a common scale. The formulas are ggml's. low-bits.ts has the types of 1 to 5 bits.

import type { DType } from '../../runtime/dtype.js';
import { required } from '../../runtime/required.js';
import { halfAt, LOW_BIT_TYPES, NONLINEAR } from './low-bits.js';

/** A type of stored values. */
export interface BlockType {
  readonly name: string;
  /** Number of values in a block. */
  readonly values: number;
  /** Number of bytes of a block. */
  readonly bytes: number;
  /** The dtype of plain numbers. Null for blocks, which are decoded to f32. */
  readonly dtype: DType | null;
  /** Decodes `count` blocks of `bytes` to `out`. */
  readonly unpack: (bytes: Uint8Array, count: number, out: Float32Array) => void;
}

/** Reads a byte without a bounds check, because inner loops call it. */
const byteAt = (bytes: Uint8Array, i: number): number => bytes[i] as number;

/** The values of the 16 codes of MXFP4, which are e2m1 numbers. */
const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6];

const toSigned = (byte: number): number => (byte << 24) >> 24;

/**
 * Decodes blocks of 32 four-bit codes. A block starts with a scale of `head` bytes. Byte i of the
 * codes has code i in its low half and code 16 + i in its high half. `value`: the number of each
 * code.
 */
function codes(
  bytes: Uint8Array,
  count: number,
  out: Float32Array,
  {
    head,
    scale,
    value,
  }: {
    head: number;
    scale: (bytes: Uint8Array, at: number) => number;
    value: readonly number[];
  },
): void {
  for (let block = 0; block < count; ++block) {
    const at = block * (head + 16);
    const d = scale(bytes, at);
    for (let i = 0; i < 16; ++i) {
      const code = byteAt(bytes, at + head + i);
      out[block * 32 + i] = d * required(value[code & 15]);
      out[block * 32 + 16 + i] = d * required(value[code >> 4]);
    }
  }
}

const CENTERED = Array.from({ length: 16 }, (_, code) => code - 8);

function q8(bytes: Uint8Array, count: number, out: Float32Array): void {
  for (let block = 0; block < count; ++block) {
    const at = block * 34;
    const d = halfAt(bytes, at);
    for (let i = 0; i < 32; ++i) out[block * 32 + i] = d * toSigned(byteAt(bytes, at + 2 + i));
  }
}

/**
 * Returns the six-bit scale and six-bit minimum of group `j` of 8. They are packed into 12 bytes
 * from `at`.
 */
function scaleAndMin(s: Uint8Array, at: number, j: number): [scale: number, min: number] {
  const byte = (i: number): number => byteAt(s, at + i);
  if (j < 4) return [byte(j) & 63, byte(j + 4) & 63];
  return [
    (byte(j + 4) & 15) | ((byte(j - 4) >> 6) << 4),
    (byte(j + 4) >> 4) | ((byte(j) >> 6) << 4),
  ];
}

/** Decodes Q4_K blocks; with `hasFifth`, Q5_K blocks, which have a fifth bit of each code. */
function withMinimum(bytes: Uint8Array, count: number, out: Float32Array, hasFifth: boolean): void {
  const size = hasFifth ? 176 : 144;
  for (let block = 0; block < count; ++block) {
    const at = block * size;
    const [d, m] = [halfAt(bytes, at), halfAt(bytes, at + 2)];
    const [high, low] = [at + 16, at + (hasFifth ? 48 : 16)];
    for (let j = 0; j < 8; ++j) {
      const [six, minimum] = scaleAndMin(bytes, at + 4, j);
      const [scale, min, shift] = [d * six, m * minimum, 4 * (j & 1)];
      const [codes, to] = [low + 32 * (j >> 1), block * 256 + 32 * j];
      for (let l = 0; l < 32; ++l) {
        const nibble = (byteAt(bytes, codes + l) >> shift) & 15;
        const fifth = hasFifth ? ((byteAt(bytes, high + l) >> j) & 1) << 4 : 0;
        out[to + l] = scale * (nibble + fifth) - min;
      }
    }
  }
}

function q6k(bytes: Uint8Array, count: number, out: Float32Array): void {
  for (let block = 0; block < count; ++block) {
    const at = block * 210;
    const d = halfAt(bytes, at + 208);
    for (let e = 0; e < 256; ++e) {
      const [t, k, l] = [e >> 7, (e >> 5) & 3, e & 31];
      const low = (byteAt(bytes, at + 64 * t + 32 * (k & 1) + l) >> (4 * (k >> 1))) & 15;
      const high = (byteAt(bytes, at + 128 + 32 * t + l) >> (2 * k)) & 3;
      const scale = toSigned(byteAt(bytes, at + 192 + (e >> 4)));
      out[block * 256 + e] = d * scale * ((low | (high << 4)) - 32);
    }
  }
}

/** Converts bf16 to f32: the bits of a bf16 number are the upper half of its f32 bits. */
const WIDE = new Float32Array(1);
const WIDE_BITS = new Uint32Array(WIDE.buffer);

function plain(name: string, dtype: DType, bytes: number): BlockType {
  const unpack: BlockType['unpack'] = (from, count, out) => {
    const view = new DataView(from.buffer, from.byteOffset, from.byteLength);
    for (let i = 0; i < count; ++i) {
      if (dtype === 'f32') out[i] = view.getFloat32(4 * i, true);
      else if (dtype === 'f16') out[i] = halfAt(from, 2 * i);
      else {
        WIDE_BITS[0] = view.getUint16(2 * i, true) << 16;
        out[i] = required(WIDE[0]);
      }
    }
  };
  return { name, values: 1, bytes, dtype, unpack };
}

function blocks(
  name: string,
  [bytes, values]: readonly [bytes: number, values: number],
  unpack: BlockType['unpack'],
): BlockType {
  return { name, values, bytes, dtype: null, unpack };
}

const power = (bytes: Uint8Array, at: number): number => 2 ** (byteAt(bytes, at) - 127);

/**
 * The supported types by their ids in files. `[bytes, values]`: bytes and number of values of a
 * block.
 */
export const BLOCK_TYPES: ReadonlyMap<number, BlockType> = new Map([
  [0, plain('F32', 'f32', 4)],
  [1, plain('F16', 'f16', 2)],
  [30, plain('BF16', 'bf16', 2)],
  [8, blocks('Q8_0', [34, 32], q8)],
  [
    2,
    blocks('Q4_0', [18, 32], (bytes, count, out) =>
      codes(bytes, count, out, { head: 2, scale: halfAt, value: CENTERED }),
    ),
  ],
  [
    20,
    blocks('IQ4_NL', [18, 32], (bytes, count, out) =>
      codes(bytes, count, out, { head: 2, scale: halfAt, value: NONLINEAR }),
    ),
  ],
  [
    39,
    blocks('MXFP4', [17, 32], (bytes, count, out) =>
      codes(bytes, count, out, { head: 1, scale: power, value: E2M1 }),
    ),
  ],
  [12, blocks('Q4_K', [144, 256], (bytes, count, out) => withMinimum(bytes, count, out, false))],
  [13, blocks('Q5_K', [176, 256], (bytes, count, out) => withMinimum(bytes, count, out, true))],
  [14, blocks('Q6_K', [210, 256], q6k)],
  ...LOW_BIT_TYPES.map(
    ([id, name, bytes, values, unpack]) => [id, blocks(name, [bytes, values], unpack)] as const,
  ),
]);

/** Names of ggml's unsupported types by their ids, for error messages. */
const OTHERS: Readonly<Record<number, string>> = {
  9: 'Q8_1',
  15: 'Q8_K',
  24: 'I8',
  25: 'I16',
  26: 'I32',
  27: 'I64',
  28: 'F64',
  40: 'NVFP4',
  41: 'Q1_0',
};

/** Returns the name of a type, for error messages. */
export const typeName = (id: number): string =>
  BLOCK_TYPES.get(id)?.name ?? OTHERS[id] ?? `type ${id}`;

/** Returns the id in files of the supported type `name`. */
export function typeId(name: string): number {
  for (const [id, type] of BLOCK_TYPES) if (type.name === name) return id;
  throw new RangeError(name);
}
