// Decodes levels and values of Parquet pages. Each decoder returns exactly the announced number of
// values or throws: runs and bytes beyond the page are errors.

import type { SchemaElement } from 'hyparquet';
import { required } from '../../runtime/required.js';

export type Values = ArrayLike<unknown>;

/** Unread bytes of a page. */
export class PageBytes {
  readonly view: DataView;
  at = 0;

  constructor(readonly bytes: Uint8Array) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get left(): number {
    return this.bytes.length - this.at;
  }

  take(count: number): Uint8Array {
    if (count > this.left) throw new Error(`${count} bytes at the end of a page with ${this.left}`);
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }

  varint(): number {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = required(this.take(1)[0]);
      value += (byte & 127) * scale;
      if (byte < 128) return value;
      if (scale > 2 ** 35) throw new Error('a number of more than 32 bits');
    }
  }

  /** Reads a zigzag number of at most 64 bits. */
  bigZigzag(): bigint {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = required(this.take(1)[0]);
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return (value >> 1n) ^ -(value & 1n);
      if (shift > 56n) throw new Error('a number of more than 64 bits');
    }
  }
}

/** Returns the bits of levels or indices up to `largest`. */
export const bitWidth = (largest: number): number => 32 - Math.clz32(largest);

/**
 * Reads runs of equal values and of packed values, which fill `bytes`. Values must be at most
 * `largest`.
 */
export function readRuns(
  bytes: Uint8Array,
  width: number,
  count: number,
  largest: number,
): Uint32Array {
  const output = new Uint32Array(count);
  const page = new PageBytes(bytes);
  if (width > 32) throw new Error(`runs of ${width} bits`);
  for (let at = 0; at < count; ) {
    const head = page.varint();
    const half = Math.floor(head / 2);
    if (head % 2 === 0) {
      if (half > count - at) throw new Error(`a run of ${half} in place of ${count - at}`);
      const stored = page.take((width + 7) >> 3);
      const value = stored.reduceRight((sum, byte) => sum * 256 + byte, 0);
      output.fill(value, at, at + half);
      at += half;
    } else {
      const values = Math.min(half * 8, count - at);
      // The last run may omit its padding.
      const packed = page.take(Math.min(half * width, page.left));
      if (values * width > packed.length * 8) throw new Error('packed values that end early');
      unpack(packed, width, output.subarray(at, at + values));
      at += values;
    }
  }
  for (let i = 0; i < count; ++i) {
    if (required(output[i]) > largest) throw new Error(`${output[i]} in place of 0 to ${largest}`);
  }
  return output;
}

function unpack(packed: Uint8Array, width: number, output: Uint32Array): void {
  let pendingBits = 0;
  let bits = 0;
  let next = 0;
  for (let i = 0; i < output.length; ++i) {
    while (bits < width) {
      pendingBits += required(packed[next++]) * 2 ** bits;
      bits += 8;
    }
    const scale = 2 ** width;
    const rest = Math.floor(pendingBits / scale);
    output[i] = pendingBits - rest * scale;
    pendingBits = rest;
    bits -= width;
  }
}

const WIDTHS: Readonly<Record<string, number>> = {
  INT32: 4,
  FLOAT: 4,
  INT64: 8,
  DOUBLE: 8,
  INT96: 12,
};

function byteWidth({ type, type_length: length }: SchemaElement): number {
  const width = type === 'FIXED_LEN_BYTE_ARRAY' ? length : WIDTHS[type as string];
  if (!width) throw new Error(`values of the type ${type} in this encoding`);
  return width;
}

/** Reads numbers of fixed width; `bytes` must contain nothing else. */
function readNumbers(bytes: Uint8Array, element: SchemaElement): Values {
  const width = byteWidth(element);
  // Typed arrays need an aligned start, and a Buffer's slice() would be a view of a shared pool.
  const { buffer } = new Uint8Array(bytes);
  if (element.type === 'INT32') return new Int32Array(buffer);
  if (element.type === 'INT64') return new BigInt64Array(buffer);
  if (element.type === 'FLOAT') return new Float32Array(buffer);
  if (element.type === 'DOUBLE') return new Float64Array(buffer);
  const view = new DataView(buffer);
  return Array.from({ length: bytes.length / width }, (_, i) => {
    const at = i * width;
    if (element.type !== 'INT96') return new Uint8Array(buffer, at, width);
    return (BigInt(view.getInt32(at + 8, true)) << 64n) | view.getBigUint64(at, true);
  });
}

/** Reads values without encoding, which fill the rest of the page. */
export function readPlain(page: PageBytes, count: number, element: SchemaElement): Values {
  if (element.type === 'BOOLEAN') {
    const packed = page.take((count + 7) >> 3);
    return Array.from(
      { length: count },
      (_, i) => ((required(packed[i >> 3]) >> (i & 7)) & 1) === 1,
    );
  }
  if (element.type !== 'BYTE_ARRAY') {
    const numbers = page.take(count * byteWidth(element));
    requireEnd(page);
    return readNumbers(numbers, element);
  }
  const values: Uint8Array[] = [];
  for (let i = 0; i < count; ++i) {
    if (page.left < 4) throw new Error(`${i} values in place of ${count}`);
    const length = page.view.getUint32(page.at, true);
    page.at += 4;
    values.push(page.take(length));
  }
  requireEnd(page);
  return values;
}

/** Zero bytes that fastparquet writes after the values. */
const PADDING = 8;

function requireEnd(page: PageBytes): void {
  const { left } = page;
  if (left > PADDING || page.take(left).some((byte) => byte !== 0)) {
    throw new Error(`${left} bytes behind the values of a page`);
  }
}

function readByteStreamSplit(page: PageBytes, count: number, element: SchemaElement): Values {
  const width = byteWidth(element);
  const split = page.take(count * width);
  requireEnd(page);
  const bytes = new Uint8Array(split.length);
  for (let i = 0; i < count; ++i) {
    for (let b = 0; b < width; ++b) bytes[i * width + b] = required(split[b * count + i]);
  }
  return readNumbers(bytes, element);
}

/** Reads differences in blocks of packed numbers, modulo 2^64. */
function readDeltas(page: PageBytes, count: number): BigInt64Array {
  const block = page.varint();
  const parts = page.varint();
  const total = page.varint();
  const size = block / parts;
  if (!(block > 0 && parts > 0 && block % 128 === 0 && size % 32 === 0)) {
    throw new Error(`blocks of ${block} values in ${parts} parts`);
  }
  if (total !== count) throw new Error(`${total} values in place of ${count}`);
  const output = new BigInt64Array(count);
  let value = page.bigZigzag();
  if (count > 0) output[0] = value;
  for (let at = 1; at < count; ) {
    const min = page.bigZigzag();
    for (const width of page.take(parts)) {
      if (at >= count) break;
      if (width > 64) throw new Error(`differences of ${width} bits`);
      const packed = page.take((size * width) / 8);
      const values = Math.min(size, count - at);
      for (let i = 0; i < values; ++i) {
        value = BigInt.asIntN(64, value + min + readBits(packed, i * width, width));
        output[at++] = value;
      }
    }
  }
  return output;
}

function readBits(packed: Uint8Array, bit: number, width: number): bigint {
  if (width === 0) return 0n;
  let value = 0n;
  const last = (bit + width - 1) >> 3;
  for (let i = last; i >= bit >> 3; --i) value = (value << 8n) | BigInt(required(packed[i]));
  return (value >> BigInt(bit & 7)) & ((1n << BigInt(width)) - 1n);
}

function readLengths(page: PageBytes, count: number): number[] {
  return Array.from(readDeltas(page, count), (length) => {
    if (length < 0n || length > 2n ** 31n) throw new Error(`a value of ${length} bytes`);
    return Number(length);
  });
}

/** Reads byte arrays with their lengths. Calls `spend` with the bytes before it copies them. */
function readByteArrays(
  page: PageBytes,
  count: number,
  { type, type_length: width }: SchemaElement,
  hasPrefixes: boolean,
  spend: (bytes: number) => void,
): Values {
  if (type !== 'BYTE_ARRAY' && type !== 'FIXED_LEN_BYTE_ARRAY') {
    throw new Error(`values of the type ${type} in this encoding`);
  }
  const prefixes = hasPrefixes ? readLengths(page, count) : null;
  const lengths = readLengths(page, count);
  let before = new Uint8Array(0);
  const values = lengths.map((length, i) => {
    const suffix = page.take(length);
    const prefix = prefixes?.[i] ?? 0;
    if (prefix > before.length) throw new Error(`a prefix of ${prefix} bytes of ${before.length}`);
    let value = suffix;
    if (prefix > 0) {
      spend(prefix + length);
      value = new Uint8Array(prefix + length);
      value.set(before.subarray(0, prefix));
      value.set(suffix, prefix);
    }
    if (type === 'FIXED_LEN_BYTE_ARRAY' && value.length !== width) {
      throw new Error(`a value of ${value.length} bytes, not ${width}`);
    }
    before = value as Uint8Array<ArrayBuffer>;
    return value;
  });
  requireEnd(page);
  return values;
}

/** Encoding of a page's values, and the decoder's state. */
interface ValueSource {
  encoding: string;
  element: SchemaElement;
  /** Converted values of the dictionary; null without one. */
  dictionary: Values | null;
  spend(bytes: number): void;
}

/**
 * Returns values of a page. `isConverted` is false for raw values, which the caller must convert.
 */
export function readValues(
  page: PageBytes,
  count: number,
  { encoding, element, dictionary, spend }: ValueSource,
): { values: Values; isConverted: boolean } {
  const raw = (values: Values) => ({ values, isConverted: false });
  const { type } = element;
  if (encoding === 'PLAIN') return raw(readPlain(page, count, element));
  if (encoding === 'PLAIN_DICTIONARY' || encoding === 'RLE_DICTIONARY') {
    if (!dictionary) throw new Error('indices without a dictionary');
    const indices = readIndices(page, count, dictionary.length);
    return { values: Array.from(indices, (index) => dictionary[index]), isConverted: true };
  }
  if (encoding === 'RLE' && type === 'BOOLEAN') {
    const stored = page.take(page.left < 4 ? 4 : page.view.getUint32(page.at, true) + 4);
    return raw(Array.from(readRuns(stored.subarray(4), 1, count, 1), (run) => run === 1));
  }
  if (encoding === 'DELTA_BINARY_PACKED' && (type === 'INT32' || type === 'INT64')) {
    const values = readDeltas(page, count);
    return raw(
      type === 'INT64'
        ? values
        : Int32Array.from(values, (value) => Number(BigInt.asIntN(32, value))),
    );
  }
  if (encoding === 'DELTA_LENGTH_BYTE_ARRAY' || encoding === 'DELTA_BYTE_ARRAY') {
    const hasPrefixes = encoding === 'DELTA_BYTE_ARRAY';
    return raw(readByteArrays(page, count, element, hasPrefixes, spend));
  }
  if (encoding === 'BYTE_STREAM_SPLIT') return raw(readByteStreamSplit(page, count, element));
  throw new Error(`values of the type ${type} in the encoding ${encoding}`);
}

function readIndices(page: PageBytes, count: number, size: number): Uint32Array {
  if (count === 0) return new Uint32Array(0);
  const width = required(page.take(1)[0]);
  if (size === 0) throw new Error('indices of an empty dictionary');
  return width === 0
    ? new Uint32Array(count)
    : readRuns(page.take(page.left), width, count, size - 1);
}
