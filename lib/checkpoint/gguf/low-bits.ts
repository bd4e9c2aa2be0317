// Decodes GGUF blocks of 1 to 5 bits per value, the types that blocks.ts lacks. The formulas are
// ggml's. Products are exact in f64, so each value is rounded once, as in ggml.

import {
  GRID_IQ1,
  GRID_IQ2_S,
  GRID_IQ2_XS,
  GRID_IQ2_XXS,
  GRID_IQ3_S,
  GRID_IQ3_XXS,
} from './grids.js';

/** The values of all f16 numbers, by their 16 bits. A table is faster than a conversion. */
const HALVES = new Float32Array(65_536);
for (let bits = 0; bits < 65_536; ++bits) {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  HALVES[bits] =
    exponent === 0
      ? sign * fraction * 2 ** -24
      : exponent === 31
        ? fraction
          ? Number.NaN
          : sign * Number.POSITIVE_INFINITY
        : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** Returns the f16 number with these bits. */
const halfOf = (bits: number): number => HALVES[bits] as number;

/** Returns the f16 number at byte `at`. */
export const halfAt = (bytes: Uint8Array, at: number): number =>
  HALVES[(bytes[at] as number) | ((bytes[at + 1] as number) << 8)] as number;

/** Decodes `count` blocks of `bytes` to `out`. */
type Unpack = (bytes: Uint8Array, count: number, out: Float32Array) => void;

/** A type: its id and name in files, the bytes and number of values of a block, and its decoder. */
type LowBitType = readonly [id: number, name: string, bytes: number, values: number, Unpack];

/** Reads a byte without a bounds check, because inner loops call it. */
const byteAt = (bytes: Uint8Array, i: number): number => bytes[i] as number;
const wordAt = (bytes: Uint8Array, i: number): number =>
  byteAt(bytes, i) | (byteAt(bytes, i + 1) << 8);
const nibbleAt = (bytes: Uint8Array, at: number, i: number): number =>
  (byteAt(bytes, at + (i >> 1)) >> (4 * (i & 1))) & 15;

/** The values of the 16 codes of IQ4_NL and IQ4_XS. */
export const NONLINEAR = [
  -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
] as const;

/** Returns a number for value `e` or group `g` of the block that starts at byte `at`. */
type NumberAt = (bytes: Uint8Array, at: number, e: number) => number;

/**
 * A block layout: value = d * scale(group) * code(value) + offset(group). `size`: bytes of a block.
 */
interface ScaledGroups {
  readonly size: number;
  readonly values: 32 | 256;
  /** Byte of the block's scale, an f16 number. */
  readonly d: number;
  /** Number of values in a group. */
  readonly width: 16 | 32;
  readonly code: NumberAt;
  /** Factor of a group. Default: 1. */
  readonly scale?: NumberAt;
  /** Offset of a group. Default: 0. */
  readonly offset?: NumberAt;
}

const one: NumberAt = () => 1;
/** The sum of -0 and any number is that number: with +0, the sum of -0 would lose its sign. */
const none: NumberAt = () => -0;

function scaledGroups({
  size,
  values,
  d: scaleAt,
  width,
  code,
  scale = one,
  offset = none,
}: ScaledGroups): Unpack {
  return (bytes, count, out) => {
    for (let block = 0; block < count; ++block) {
      const at = block * size;
      const d = halfAt(bytes, at + scaleAt);
      for (let first = 0; first < values; first += width) {
        const step = d * scale(bytes, at, first / width);
        const shift = offset(bytes, at, first / width);
        for (let e = first; e < first + width; ++e) {
          out[block * values + e] = step * code(bytes, at, e) + shift;
        }
      }
    }
  };
}

/**
 * Returns the four-bit code of value `e` of 32. Byte i has code i in its low half and code 16 + i
 * in its high half.
 */
const code32 = (bytes: Uint8Array, at: number, e: number): number =>
  (byteAt(bytes, at + (e & 15)) >> (4 * (e >> 4))) & 15;
/** Returns the fifth bit of the code of value `e` of 32, at its place in the code. */
const fifth = (bytes: Uint8Array, at: number, e: number): number =>
  ((byteAt(bytes, at + (e >> 3)) >> (e & 7)) & 1) << 4;
/** Returns the two-bit code of value `e` of 256. A byte has the codes of four values, 32 apart. */
const code2 = (bytes: Uint8Array, at: number, e: number): number =>
  (byteAt(bytes, at + 32 * (e >> 7) + (e & 31)) >> (2 * ((e >> 5) & 3))) & 3;

/** Returns the f16 number at byte 2 of a block. */
const secondHalf: NumberAt = (bytes, at) => halfAt(bytes, at + 2);

const q41 = scaledGroups({
  size: 20,
  values: 32,
  d: 0,
  width: 32,
  code: (bytes, at, e) => code32(bytes, at + 4, e),
  offset: secondHalf,
});
const q50 = scaledGroups({
  size: 22,
  values: 32,
  d: 0,
  width: 32,
  code: (bytes, at, e) => (code32(bytes, at + 6, e) | fifth(bytes, at + 2, e)) - 16,
});
const q51 = scaledGroups({
  size: 24,
  values: 32,
  d: 0,
  width: 32,
  code: (bytes, at, e) => code32(bytes, at + 8, e) | fifth(bytes, at + 4, e),
  offset: secondHalf,
});

const q2k = scaledGroups({
  size: 84,
  values: 256,
  d: 80,
  width: 16,
  code: (bytes, at, e) => code2(bytes, at + 16, e),
  scale: (bytes, at, g) => byteAt(bytes, at + g) & 15,
  offset: (bytes, at, g) => -halfAt(bytes, at + 82) * (byteAt(bytes, at + g) >> 4),
});
const q3k = scaledGroups({
  size: 110,
  values: 256,
  d: 108,
  width: 16,
  code: (bytes, at, e) => {
    const isPositive = (byteAt(bytes, at + (e & 31)) >> (e >> 5)) & 1;
    return code2(bytes, at + 32, e) - (isPositive ? 0 : 4);
  },
  scale: (bytes, at, g) => {
    const low = (byteAt(bytes, at + 96 + (g & 7)) >> (4 * (g >> 3))) & 15;
    const high = (byteAt(bytes, at + 104 + (g & 3)) >> (2 * (g >> 2))) & 3;
    return (low | (high << 4)) - 32;
  },
});
const iq4xs = scaledGroups({
  size: 136,
  values: 256,
  d: 0,
  width: 32,
  code: (bytes, at, e) => NONLINEAR[code32(bytes, at + 8 + 16 * (e >> 5), e & 31)] as number,
  scale: (bytes, at, g) => {
    const high = (wordAt(bytes, at + 2) >> (2 * g)) & 3;
    return (nibbleAt(bytes, at + 4, g) | (high << 4)) - 32;
  },
});

/**
 * Byte of value `e` of a TQ1_0 block. The block has 32 bytes of 5 ternary digits, then 16 bytes of
 * 5, then 4 bytes of 4.
 */
const TERNARY_BYTES = Uint8Array.from({ length: 256 }, (_, e) =>
  e < 160 ? e % 32 : e < 240 ? 32 + (e % 16) : 48 + (e % 4),
);
/** The power of 3 that makes the digit of value `e` the leading digit of its byte. */
const TERNARY_POWERS = Uint8Array.from(
  { length: 256 },
  (_, e) => 3 ** Math.floor(e < 160 ? e / 32 : e < 240 ? (e - 160) / 16 : (e - 240) / 4),
);

const tq1 = scaledGroups({
  size: 54,
  values: 256,
  d: 52,
  width: 32,
  code: (bytes, at, e) => {
    const byte = byteAt(bytes, at + byteAt(TERNARY_BYTES, e));
    return ((((byte * byteAt(TERNARY_POWERS, e)) & 255) * 3) >> 8) - 1;
  },
});
const tq2 = scaledGroups({
  size: 66,
  values: 256,
  d: 64,
  width: 32,
  code: (bytes, at, e) => code2(bytes, at, e) - 1,
});

/**
 * A block layout of 32 groups of 8 values: value = sign * d * scale(group) * entry of a code book.
 */
interface SignedGroups {
  readonly size: number;
  readonly grid: () => Float32Array;
  /** Number of values in an entry of the code book. */
  readonly width: 8 | 4;
  /** Factor of a group. */
  readonly scale: NumberAt;
  /** The signs of a group: bit i is set if value i is negative. */
  readonly signs: NumberAt;
  /** Index in the code book of entry `i` of the block. */
  readonly index: NumberAt;
}

function signedGroups({ size, grid, width, scale, signs, index }: SignedGroups): Unpack {
  return (bytes, count, out) => {
    const entries = grid();
    for (let block = 0; block < count; ++block) {
      const at = block * size;
      const d = halfAt(bytes, at);
      for (let g = 0; g < 32; ++g) {
        const step = d * scale(bytes, at, g);
        const negative = signs(bytes, at, g);
        for (let first = 0; first < 8; first += width) {
          const entry = width * index(bytes, at, (8 * g + first) / width);
          for (let i = 0; i < width; ++i) {
            const value = step * (entries[entry + i] as number);
            const isNegative = (negative >> (first + i)) & 1;
            out[block * 256 + 8 * g + first + i] = isNegative ? -value : value;
          }
        }
      }
    }
  };
}

/**
 * Returns eight sign bits for the stored seven. The eighth makes the number of negative values
 * even.
 */
function evenSigns(seven: number): number {
  let parity = seven;
  parity ^= parity >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven | ((parity & 1) << 7);
}

/**
 * Returns the signs of group `g`. A word of 32 bits serves four groups: it has four fields of seven
 * signs, and a scale in its top four bits.
 */
const signsInWord = (bytes: Uint8Array, at: number, g: number): number => {
  const word = wordAt(bytes, at) | (wordAt(bytes, at + 2) << 16);
  return evenSigns((word >> (7 * (g & 3))) & 127);
};
const scaleInWord = (bytes: Uint8Array, at: number): number => 0.5 + (byteAt(bytes, at + 3) >> 4);
/** Returns the factor of group `g`. Each 16 values share a scale of four bits. */
const scaleOf16 = (bytes: Uint8Array, at: number, g: number): number =>
  (0.5 + nibbleAt(bytes, at, g >> 1)) / 4;

const iq2xxs = signedGroups({
  size: 66,
  grid: GRID_IQ2_XXS,
  width: 8,
  scale: (bytes, at, g) => scaleInWord(bytes, at + 6 + 8 * (g >> 2)) / 4,
  signs: (bytes, at, g) => signsInWord(bytes, at + 6 + 8 * (g >> 2), g),
  index: (bytes, at, g) => byteAt(bytes, at + 2 + 8 * (g >> 2) + (g & 3)),
});
const iq2xs = signedGroups({
  size: 74,
  grid: GRID_IQ2_XS,
  width: 8,
  scale: (bytes, at, g) => scaleOf16(bytes, at + 66, g),
  signs: (bytes, at, g) => evenSigns(wordAt(bytes, at + 2 + 2 * g) >> 9),
  index: (bytes, at, g) => wordAt(bytes, at + 2 + 2 * g) & 511,
});
const iq2s = signedGroups({
  size: 82,
  grid: GRID_IQ2_S,
  width: 8,
  scale: (bytes, at, g) => scaleOf16(bytes, at + 74, g),
  signs: (bytes, at, g) => byteAt(bytes, at + 34 + g),
  index: (bytes, at, g) =>
    byteAt(bytes, at + 2 + g) | (((byteAt(bytes, at + 66 + (g >> 2)) >> (2 * (g & 3))) & 3) << 8),
});
const iq3xxs = signedGroups({
  size: 98,
  grid: GRID_IQ3_XXS,
  width: 4,
  scale: (bytes, at, g) => scaleInWord(bytes, at + 66 + 4 * (g >> 2)) / 2,
  signs: (bytes, at, g) => signsInWord(bytes, at + 66 + 4 * (g >> 2), g),
  index: (bytes, at, i) => byteAt(bytes, at + 2 + i),
});
const iq3s = signedGroups({
  size: 110,
  grid: GRID_IQ3_S,
  width: 4,
  scale: (bytes, at, g) => 1 + 2 * nibbleAt(bytes, at + 106, g >> 2),
  signs: (bytes, at, g) => byteAt(bytes, at + 74 + g),
  index: (bytes, at, i) =>
    byteAt(bytes, at + 2 + i) | (((byteAt(bytes, at + 66 + (i >> 3)) >> (i & 7)) & 1) << 8),
});

/**
 * A block layout of 32 groups of 8 values: value = d * (2 scale(group) + 1) * (t + offset), where t
 * is an entry of a ternary code book and the offset is 1/8 or -1/8.
 */
interface ShiftedGroups {
  readonly size: number;
  /** Returns the block's scale. */
  readonly d: (bytes: Uint8Array, at: number) => number;
  readonly scale: NumberAt;
  /**
   * Returns the high three bits of the index of a group; bit 3 is set if the offset is negative.
   */
  readonly high: NumberAt;
  /** Byte of the low eight bits of the index of group 0. */
  readonly low: number;
}

function shiftedGroups({ size, d, scale, high, low }: ShiftedGroups): Unpack {
  return (bytes, count, out) => {
    const entries = GRID_IQ1();
    for (let block = 0; block < count; ++block) {
      const at = block * size;
      const step = d(bytes, at);
      for (let g = 0; g < 32; ++g) {
        const bits = high(bytes, at, g);
        const entry = 8 * (byteAt(bytes, at + low + g) | ((bits & 7) << 8));
        const offset = bits & 8 ? -0.125 : 0.125;
        const odd = step * (2 * scale(bytes, at, g) + 1);
        for (let i = 0; i < 8; ++i) {
          out[block * 256 + 8 * g + i] = odd * ((entries[entry + i] as number) + offset);
        }
      }
    }
  };
}

const iq1s = shiftedGroups({
  size: 50,
  d: halfAt,
  scale: (bytes, at, g) => (byteAt(bytes, at + 35 + 2 * (g >> 2)) >> 4) & 7,
  high: (bytes, at, g) => {
    const word = wordAt(bytes, at + 34 + 2 * (g >> 2));
    return ((word >> (3 * (g & 3))) & 7) | ((word >> 15) << 3);
  },
  low: 2,
});
const iq1m = shiftedGroups({
  size: 56,
  // The f16 scale of the block consists of the top four bits of four words.
  d: (bytes, at) => {
    const top = (i: number): number => byteAt(bytes, at + 49 + 2 * i) >> 4;
    return halfOf(top(0) | (top(1) << 4) | (top(2) << 8) | (top(3) << 12));
  },
  scale: (bytes, at, g) => (wordAt(bytes, at + 48 + 2 * (g >> 3)) >> (3 * ((g >> 1) & 3))) & 7,
  high: (bytes, at, g) => nibbleAt(bytes, at + 32, g),
  low: 0,
});

export const LOW_BIT_TYPES: readonly LowBitType[] = [
  [3, 'Q4_1', 20, 32, q41],
  [6, 'Q5_0', 22, 32, q50],
  [7, 'Q5_1', 24, 32, q51],
  [10, 'Q2_K', 84, 256, q2k],
  [11, 'Q3_K', 110, 256, q3k],
  [16, 'IQ2_XXS', 66, 256, iq2xxs],
  [17, 'IQ2_XS', 74, 256, iq2xs],
  [18, 'IQ3_XXS', 98, 256, iq3xxs],
  [19, 'IQ1_S', 50, 256, iq1s],
  [21, 'IQ3_S', 110, 256, iq3s],
  [22, 'IQ2_S', 82, 256, iq2s],
  [23, 'IQ4_XS', 136, 256, iq4xs],
  [29, 'IQ1_M', 56, 256, iq1m],
  [34, 'TQ1_0', 54, 256, tq1],
  [35, 'TQ2_0', 66, 256, tq2],
];
