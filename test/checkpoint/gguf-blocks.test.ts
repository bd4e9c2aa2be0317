// GGUF blocks: sums of llama.cpp's reader for fixed bytes, and the error of packing.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { BLOCK_TYPES, typeId } from '../../lib/checkpoint/gguf/blocks.js';
import { halfBits, type PackedType, packValues } from '../../lib/checkpoint/gguf/quantize.js';
import { seededRandom } from '../support/random.js';

const typeOf = (name: string) => {
  const type = BLOCK_TYPES.get(typeId(name));
  if (!type) throw new Error(name);
  return type;
};

/** Bytes (37 i + 11) mod 256, with scales of 1/16 and minima of 1/32. */
function block(name: string): Uint8Array {
  const { bytes } = typeOf(name);
  const out = Uint8Array.from({ length: bytes }, (_, i) => (37 * i + 11) & 255);
  const half = (at: number, value: number): void => {
    const bits = halfBits(value);
    out[at] = bits & 255;
    out[at + 1] = bits >> 8;
  };
  if (name === 'MXFP4') out[0] = 126;
  else if (name === 'Q6_K') half(208, 1 / 16);
  else half(0, 1 / 16);
  if (name === 'Q4_K' || name === 'Q5_K') half(2, 1 / 32);
  return out;
}

function unpack(name: string, bytes: Uint8Array): Float32Array {
  const type = typeOf(name);
  const count = bytes.length / type.bytes;
  const out = new Float32Array(count * type.values).fill(Number.NaN);
  type.unpack(bytes, count, out);
  return out;
}

test.each([
  ['Q8_0', -11] as const,
  ['Q4_0', -1.3125] as const,
  ['IQ4_NL', -16.0625] as const,
  ['MXFP4', 6.25] as const,
  ['Q4_K', 3402.5] as const,
  ['Q5_K', 7263.5] as const,
  ['Q6_K', 288.25] as const,
])('the values of a %s block add up to %d', (name, sum) => {
  expect(unpack(name, block(name)).reduce((a, b) => a + b, 0)).toBe(sum);
});

test.each(['Q8_0', 'Q4_0', 'IQ4_NL', 'MXFP4', 'Q4_K', 'Q5_K', 'Q6_K'])(
  'blocks of %s are read one by one',
  (name) => {
    const first = block(name);
    const second = first.map((byte, i) => (i % 5 === 4 ? byte ^ 3 : byte));
    const both = unpack(name, Uint8Array.of(...first, ...second));
    expect([...both]).toEqual([...unpack(name, first), ...unpack(name, second)]);
  },
);

const HASHES = JSON.parse(readFileSync('test/golden/gguf-blocks.json', 'utf8')) as Record<
  string,
  string
>;

/** As random_bytes() of scripts/record-gguf-blocks.py. */
function randomBytes(count: number): Uint8Array {
  let state = 1;
  return Uint8Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff;
    return state >> 16;
  });
}

test.each(Object.entries(HASHES))('random blocks of %s equal those of gguf', (name, hash) => {
  const values = unpack(name, randomBytes(24 * typeOf(name).bytes));
  const plain = values.map((value) => (Number.isNaN(value) ? 0 : value + 0));
  expect(createHash('sha256').update(new Uint8Array(plain.buffer)).digest('hex').slice(0, 16)).toBe(
    hash,
  );
});

test('the codes of MXFP4 are the numbers of e2m1', () => {
  const bytes = Uint8Array.from({ length: 17 }, (_, i) => (i === 0 ? 128 : (i - 1) | 0x70));
  const codes = [...unpack('MXFP4', bytes).subarray(0, 16)];
  const positive = [0, 1, 2, 3, 4, 6, 8, 12];
  expect(codes).toEqual([...positive, ...positive.map((value) => -value)]);
});

test('every f16 number keeps its bits', () => {
  const half = typeOf('F16');
  const bytes = new Uint8Array(new Uint16Array(65_536).map((_, i) => i).buffer);
  const values = new Float32Array(65_536);
  half.unpack(bytes, 65_536, values);
  const wrong = [...values.entries()].filter(
    ([bits, value]) => !Number.isNaN(value) && halfBits(value) !== bits,
  );
  expect(wrong).toEqual([]);
});

test.each([
  [1 + 2 ** -11, 0x3c00],
  [1 + 3 * 2 ** -11, 0x3c02],
  [65_519, 0x7bff],
  [65_520, 0x7c00],
  [-(2 ** -25), 0x8000],
  [1.5 * 2 ** -25, 0x0001],
  [Number.NaN, 0x7e00],
])('%d has the f16 bits %d', (value, bits) => {
  expect(halfBits(value)).toBe(bits);
});

/** The root of the mean squared error of packing, as a share of the values. */
function errorOf(type: PackedType, values: Float32Array): number {
  const back = unpack(type, packValues(type, values));
  const sum = (of: (i: number) => number): number => values.reduce((a, _, i) => a + of(i) ** 2, 0);
  return Math.sqrt(
    sum((i) => (back[i] as number) - (values[i] as number)) / sum((i) => values[i] as number),
  );
}

test.each([
  ['F32', 0],
  ['F16', 4e-4],
  ['Q8_0', 0.006],
  ['Q6_K', 0.02],
  ['Q4_K', 0.075],
] as const)('packing normal numbers as %s changes them by at most %d', (type, limit) => {
  const random = seededRandom(7);
  const normal = (): number =>
    Math.sqrt(-2 * Math.log(random() + 1e-12)) * Math.cos(2 * Math.PI * random());
  for (const size of [1e-6, 1, 300]) {
    const values = Float32Array.from({ length: 256 * 40 }, () => size * normal());
    // Small scales are subnormal f16 numbers.
    const slack = size < 1e-3 && type !== 'F32' ? 3 : limit;
    expect(errorOf(type, values)).toBeLessThanOrEqual(slack);
  }
});

test.each(['Q8_0', 'Q6_K', 'Q4_K'] as const)('%s packs equal and extreme values', (type) => {
  for (const value of [0, 1, -1, 1e4]) {
    const back = unpack(type, packValues(type, new Float32Array(256).fill(value)));
    for (const one of back) expect(Math.abs(one - value)).toBeLessThanOrEqual(Math.abs(value) / 60);
  }
  const single = new Float32Array(256);
  single[37] = -5;
  const back = unpack(type, packValues(type, single));
  expect(back[37]).toBeCloseTo(-5, 1);
  expect(Math.abs(back[200] as number)).toBe(0);
});
