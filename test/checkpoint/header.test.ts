// Tests the safetensors header: written headers parse back, and hostile input throws without a
// crash.
import {
  encodeHeader,
  headerLength,
  MAX_HEADER_BYTES,
  PREFIX_BYTES,
  parseHeader,
} from '../../lib/checkpoint/header.js';
import { DsError } from '../../lib/errors.js';

const TENSORS = [
  { name: 'wte.weight', dtype: 'bf16', shape: [50257, 768] },
  { name: 'ln.bias', dtype: 'f32', shape: [7] },
  { name: 'step', dtype: 'i64', shape: [] },
  { name: 'empty', dtype: 'f16', shape: [0, 4] },
  { name: '__proto__', dtype: 'bool', shape: [3] },
  { name: 'ünï "quoted"\n', dtype: 'u8', shape: [1, 1, 1] },
] as const;

function bytesOf(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

function parse(table: unknown, dataBytes: number) {
  return parseHeader(bytesOf(JSON.stringify(table)), dataBytes, 'x.safetensors').entries;
}

test('tensors are returned in the order of their bytes, whatever the order of the header', () => {
  const entry = (from: number, to: number) => ({
    dtype: 'U8',
    shape: [to - from],
    data_offsets: [from, to],
  });
  const entries = parse({ last: entry(5, 9), first: entry(0, 2), middle: entry(2, 5) }, 9);
  expect(entries.map(({ name }) => name)).toEqual(['first', 'middle', 'last']);
});

test('an empty tensor may start at the offset of another one and follow it in the list', () => {
  const full = { dtype: 'U8', shape: [4], data_offsets: [0, 4] };
  const empty = { dtype: 'U8', shape: [0], data_offsets: [0, 0] };
  const names = parse({ full, empty }, 4).map(({ name }) => name);
  expect(names).toEqual(['empty', 'full']);
});

test('a written header parses back, aligned to 64 bytes', () => {
  const { bytes, entries } = encodeHeader(TENSORS);
  expect(bytes.length % 64).toBe(0);
  const dataBytes = entries.at(-1)?.end as number;
  const length = headerLength(bytes.subarray(0, 8), bytes.length + dataBytes, 'x');
  expect(length).toBe(bytes.length - PREFIX_BYTES);
  const { entries: parsed, metadata } = parseHeader(bytes.subarray(PREFIX_BYTES), dataBytes, 'x');
  expect(metadata).toEqual({ format: 'pt' });
  expect(parsed).toEqual(entries);
});

test.each([
  ['nothing', new Uint8Array(0), 100],
  ['half a prefix', new Uint8Array(5), 100],
  ['a length of 0', new Uint8Array(8), 100],
  ['a length beyond the file', Uint8Array.of(93, 0, 0, 0, 0, 0, 0, 0), 100],
  ['a length of 2^63', Uint8Array.of(2, 0, 0, 0, 0, 0, 0, 128), 1e12],
  ['a length beyond the limit', Uint8Array.of(1, 225, 245, 5, 0, 0, 0, 0), MAX_HEADER_BYTES * 3],
])('a prefix with %s is refused', (_name, prefix, fileBytes) => {
  expect(() => headerLength(prefix, fileBytes, 'x')).toThrow(
    expect.objectContaining({ code: 'DS_CHECKPOINT' }),
  );
});

const good = { dtype: 'F32', shape: [2], data_offsets: [0, 8] };

test.each<[string, unknown, number, RegExp]>([
  ['an array', [], 0, /JSON object/],
  ['a number', 7, 0, /JSON object/],
  ['an unknown dtype', { a: { ...good, dtype: 'F8_E4M3' } }, 8, /F32, F16/],
  ['a numeric dtype', { a: { ...good, dtype: 0 } }, 8, /F32, F16/],
  ['a dtype that is a method name', { a: { ...good, dtype: 'constructor' } }, 8, /F32/],
  ['a key too many', { a: { ...good, extra: 1 } }, 8, /dtype, shape and/],
  ['a key too few', { a: { dtype: 'F32', shape: [2] } }, 8, /dtype, shape and/],
  ['an entry that is null', { a: null }, 0, /dtype, shape and/],
  ['a negative size', { a: { ...good, shape: [-2] } }, 8, /a shape/],
  ['a fractional size', { a: { ...good, shape: [2.5] } }, 8, /a shape/],
  ['a size as text', { a: { ...good, shape: ['2'] } }, 8, /a shape/],
  ['too many dims', { a: { ...good, shape: new Array(33).fill(1) } }, 8, /a shape/],
  ['a shape that overflows', { a: { ...good, shape: [2 ** 40, 2 ** 40] } }, 8, /bytes for f32/],
  ['sizes whose product wraps to 0', { a: { ...good, shape: [2 ** 32, 2 ** 32] } }, 8, /bytes for/],
  ['three offsets', { a: { ...good, data_offsets: [0, 8, 9] } }, 8, /two data_offsets/],
  ['offsets in reverse', { a: { ...good, data_offsets: [8, 0] } }, 8, /bytes for/],
  ['offsets beyond 2^53', { a: { ...good, data_offsets: [2 ** 60, 2 ** 60] } }, 8, /two data_off/],
  ['an end beyond the data', { a: good }, 4, /8 bytes of data/],
  ['data that nobody names', { a: good }, 12, /8 bytes of data/],
  ['a hole', { a: good, b: { ...good, data_offsets: [12, 20] } }, 20, /data at byte 8/],
  ['an overlap', { a: good, b: { ...good, data_offsets: [4, 12] } }, 12, /data at byte 8/],
  ['metadata that is no text', { __metadata__: { n: 1 } }, 0, /an object of strings/],
])('a header with %s is refused', (_name, table, dataBytes, message) => {
  expect(() => parse(table, dataBytes)).toThrow(message);
});

test.each(['F8_E4M3', 'F8_E8M0', 'F4', 'F6_E2M3', 'I8', 'U16', 'U32', 'C64'])(
  'tensors in %s are no damage: what is not read is named',
  (dtype) => {
    const message = new RegExp(
      `a: expected F32, F16.*, got "${dtype}"\\. Weights of this dtype are not supported.*quantization`,
    );
    expect(() => parse({ a: { ...good, dtype } }, 8)).toThrow(message);
  },
);

test('a dtype that safetensors has not got is damage', () => {
  for (const dtype of ['F7', 'f32', 'toString', 8]) {
    expect(() => parse({ a: { ...good, dtype } }, 8)).toThrow(/The file is damaged/);
  }
});

test('deep nesting, bad UTF-8 and leading blanks are refused without a crash', () => {
  for (const text of ['['.repeat(1e6), '{"a":'.repeat(1e5), ' {}', '{"a":1}x', '']) {
    expect(() => parseHeader(bytesOf(text), 0, 'x')).toThrow(DsError);
  }
  expect(() => parseHeader(Uint8Array.of(123, 34, 255, 34, 58, 49, 125), 0, 'x')).toThrow(DsError);
});

test('5,000 mutations of a header parse to something consistent or are refused', () => {
  const { bytes, entries } = encodeHeader(TENSORS);
  const dataBytes = entries.at(-1)?.end as number;
  const json = bytes.subarray(PREFIX_BYTES);
  let state = 12345;
  const random = (n: number): number => {
    state = (state * 48271) % 2147483647;
    return state % n;
  };
  const alphabet = bytesOf('0123456789-.eE[]{}",: \\ntfu\u0000');
  let refused = 0;
  for (let round = 0; round < 5000; ++round) {
    let mutant = Uint8Array.from(json);
    for (let change = 0; change <= random(4); ++change) {
      const at = random(mutant.length);
      if (random(3) > 0) mutant[at] = alphabet[random(alphabet.length)] as number;
      else if (random(2)) mutant = mutant.subarray(0, at + 1).slice();
      else mutant.copyWithin(at, random(mutant.length));
    }
    try {
      let at = 0;
      for (const entry of parseHeader(mutant, dataBytes, 'x').entries) {
        expect(entry.start).toBe(at);
        at = entry.end;
      }
      expect(at).toBe(dataBytes);
    } catch (error) {
      if (!(error instanceof DsError)) throw error;
      expect(error.code).toBe('DS_CHECKPOINT');
      refused++;
    }
  }
  expect(refused).toBeGreaterThan(3000);
});
