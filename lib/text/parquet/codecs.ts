// Decompresses Parquet pages. Each decoder returns exactly the announced number of bytes or throws,
// and allocates no more.

import { required } from '../../runtime/required.js';
import { copyMatch, decodeZstd } from './zstd.js';

type Decompressor = (stored: Uint8Array, size: number) => Uint8Array;

/** Loaded on first use, because loading is slow. */
const nodeZlib = () => require('node:zlib') as typeof import('node:zlib');

const CODECS: Readonly<Record<string, Decompressor>> = {
  UNCOMPRESSED: (stored) => stored,
  GZIP: (stored, size) => nodeZlib().gunzipSync(stored, { maxOutputLength: Math.max(size, 1) }),
  BROTLI: (stored, size) =>
    nodeZlib().brotliDecompressSync(stored, { maxOutputLength: Math.max(size, 1) }),
  SNAPPY: decodeSnappy,
  LZ4: decodeHadoopLz4,
  LZ4_RAW: decodeLz4,
  ZSTD: decodeZstd,
};

/** Decompresses `stored` to `size` bytes. Throws an Error for another size or an unknown codec. */
export function decompress(codec: string, stored: Uint8Array, size: number): Uint8Array {
  const decode = CODECS[codec];
  if (!decode) throw new Error(`pages compressed by ${codec} are not supported`);
  const page = decode(stored, size);
  if (page.length !== size) throw new Error(`a page of ${page.length} bytes, not ${size}`);
  return page;
}

/** An output of fixed size. literal() copies from the input, match() repeats earlier output. */
class DecodedOutput {
  readonly bytes: Uint8Array;
  at = 0;

  constructor(
    private readonly codec: string,
    size: number,
  ) {
    this.bytes = new Uint8Array(size);
  }

  literal(from: Uint8Array, start: number, count: number): void {
    if (start + count > from.length) this.fail('a literal that ends early');
    if (this.at + count > this.bytes.length) this.fail('more bytes than announced');
    this.bytes.set(from.subarray(start, start + count), this.at);
    this.at += count;
  }

  match(distance: number, count: number): void {
    if (distance < 1 || distance > this.at) this.fail('a match before the first byte');
    if (this.at + count > this.bytes.length) this.fail('more bytes than announced');
    copyMatch(this.bytes, this.at, distance, count);
    this.at += count;
  }

  readonly fail = (what: string): never => {
    throw new Error(`${this.codec}: ${what}`);
  };
}

/** Reads a little-endian number of `count` bytes at `at`; NaN beyond the end. */
function readLittleEndian(bytes: Uint8Array, at: number, count: number): number {
  let value = 0;
  for (let i = count - 1; i >= 0; --i) value = value * 256 + required(bytes[at + i]);
  return value;
}

function decodeSnappy(stored: Uint8Array, size: number): Uint8Array {
  const output = new DecodedOutput('snappy', size);
  let at = 0;
  let announced = 0;
  for (let shift = 0; ; shift += 7) {
    const byte = stored[at++] ?? output.fail('a length that ends early');
    if (shift > 28) output.fail('a length of more than 32 bits');
    announced += (byte & 127) * 2 ** shift;
    if (byte < 128) break;
  }
  if (announced !== size) output.fail(`${announced} bytes, not ${size}`);
  while (at < stored.length) {
    const tag = required(stored[at++]);
    const kind = tag & 3;
    if (kind === 0) {
      const extra = Math.max((tag >> 2) - 59, 0);
      const count = (extra ? readLittleEndian(stored, at, extra) : tag >> 2) + 1;
      if (Number.isNaN(count)) output.fail('a literal that ends early');
      output.literal(stored, at + extra, count);
      at += extra + count;
    } else {
      const extra = required([0, 1, 2, 4][kind]);
      const low = readLittleEndian(stored, at, extra);
      if (Number.isNaN(low)) output.fail('a match that ends early');
      at += extra;
      if (kind === 1) output.match(low + ((tag >> 5) << 8), ((tag >> 2) & 7) + 4);
      else output.match(low, (tag >> 2) + 1);
    }
  }
  if (output.at !== size) output.fail(`${output.at} bytes, not ${size}`);
  return output.bytes;
}

/** Decodes a block of LZ4. */
function decodeLz4(stored: Uint8Array, size: number): Uint8Array {
  const output = new DecodedOutput('lz4', size);
  let at = 0;
  const length = (nibble: number): number => {
    let count = nibble;
    for (let byte = nibble === 15 ? 255 : 0; byte === 255; ) {
      byte = stored[at++] ?? output.fail('a length that ends early');
      count += byte;
    }
    return count;
  };
  while (at < stored.length) {
    const token = required(stored[at++]);
    const literals = length(token >> 4);
    output.literal(stored, at, literals);
    at += literals;
    if (at === stored.length) break;
    const distance = readLittleEndian(stored, at, 2);
    if (Number.isNaN(distance)) output.fail('a match that ends early');
    at += 2;
    output.match(distance, length(token & 15) + 4);
  }
  if (output.at !== size) output.fail(`${output.at} bytes, not ${size}`);
  return output.bytes;
}

/**
 * Decodes Hadoop's frames of LZ4 blocks, with big-endian sizes before each block. Files without
 * frames hold one block.
 */
function decodeHadoopLz4(stored: Uint8Array, size: number): Uint8Array {
  const view = new DataView(stored.buffer, stored.byteOffset, stored.byteLength);
  const blocks: [start: number, end: number, size: number][] = [];
  let at = 0;
  let sum = 0;
  while (at + 8 <= stored.length) {
    const frameSize = view.getUint32(at);
    const end = at + 8 + view.getUint32(at + 4);
    if (end > stored.length || sum + frameSize > size) break;
    blocks.push([at + 8, end, frameSize]);
    at = end;
    sum += frameSize;
  }
  if (at !== stored.length || sum !== size) return decodeLz4(stored, size);
  const output = new Uint8Array(size);
  let position = 0;
  for (const [start, end, whole] of blocks) {
    output.set(decodeLz4(stored.subarray(start, end), whole), position);
    position += whole;
  }
  return output;
}
