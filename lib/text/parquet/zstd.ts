// Decodes Zstandard frames (RFC 8878) to a fixed output size. Node 20 has no decoder, and decoders
// on npm neither bound their output nor refuse truncated frames.
import { leading, required } from '../../runtime/required.js';
import {
  BackwardBits,
  buildFse,
  decodeHuffmanStream,
  type Fse,
  fail,
  type Huffman,
  readFse,
  readHuffman,
} from './zstd-entropy.js';

/** Maximum bytes of a block, compressed or not. */
const BLOCK = 128 << 10;
const MAGIC = 0xfd2fb528;
const SKIPPABLE = 0x184d2a50;

/** State that a block inherits from earlier blocks. */
interface FrameState {
  huffman: Huffman | null;
  tables: (Fse | null)[];
  offsets: [number, number, number];
  /** Output of all frames; this frame starts at byte `start`. */
  output: Uint8Array;
  start: number;
}

/** Reads the literals of a block. Returns them and the position after them. */
function readLiterals(
  bytes: Uint8Array,
  from: number,
  end: number,
  frame: FrameState,
): [Uint8Array, number] {
  const head = bytes[from] ?? 0;
  const type = head & 3;
  const format = (head >> 2) & 3;
  const raw = type < 2;
  const headBytes = raw ? required([1, 2, 1, 3][format]) : required([3, 3, 4, 5][format]);
  let at = from + headBytes;
  if (at > end) fail('a block that ends early');
  let number = 0;
  for (let i = headBytes - 1; i >= 0; --i) number = number * 256 + required(bytes[from + i]);
  if (raw) {
    const size = Math.floor(number / (headBytes === 1 ? 8 : 16));
    const stored = type === 0 ? size : 1;
    if (size > BLOCK || at + stored > end) fail(`${size} literals`);
    const copied = bytes.subarray(at, at + stored);
    return [type === 0 ? copied : new Uint8Array(size).fill(required(copied[0])), at + stored];
  }
  const width = required([10, 10, 14, 18][format]);
  const size = Math.floor(number / 16) % 2 ** width;
  const stop = at + (Math.floor(number / 2 ** (4 + width)) % 2 ** width);
  if (size > BLOCK || stop > end) fail(`${size} literals`);
  if (type === 2) [frame.huffman, at] = readHuffman(bytes, at, stop);
  const { huffman } = frame;
  if (!huffman) return fail('literals without a Huffman table');
  const output = new Uint8Array(size);
  if (format === 0) {
    decodeHuffmanStream(bytes, at, stop, huffman, output);
    return [output, stop];
  }
  if (at + 6 > stop) fail('a block that ends early');
  const part = (size + 3) >> 2;
  if (part * 3 > size) fail(`${size} literals in four streams`);
  let begin = at + 6;
  for (let i = 0; i < 4; ++i) {
    const length = required(bytes[at + 2 * i]) | (required(bytes[at + 2 * i + 1]) << 8);
    const until = i < 3 ? begin + length : stop;
    if (until > stop) fail('a stream that exceeds its block');
    decodeHuffmanStream(
      bytes,
      begin,
      until,
      huffman,
      output.subarray(i * part, i < 3 ? (i + 1) * part : size),
    );
    begin = until;
  }
  return [output, stop];
}

const buildCodes = (
  count: number,
  first: number,
  bits: readonly number[],
): [number[], number[]] => {
  const base = Array.from({ length: count }, (_, i) => first + i);
  let next = first + count;
  for (const n of bits) {
    base.push(next);
    next += 1 << n;
  }
  return [base, [...new Array<number>(count).fill(0), ...bits]];
};
const [LITERAL_BASE, LITERAL_BITS] = buildCodes(
  16,
  0,
  [1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
);
const [MATCH_BASE, MATCH_BITS] = buildCodes(
  32,
  3,
  [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
);

/** Predefined tables and limits of literal lengths, offsets and match lengths. */
const KINDS = [
  {
    largest: 9,
    count: 36,
    log: 6,
    predefined: [
      4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1,
      1, -1, -1, -1, -1,
    ],
  },
  {
    largest: 8,
    count: 32,
    log: 5,
    predefined: [
      1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1,
    ],
  },
  {
    largest: 9,
    count: 53,
    log: 6,
    predefined: [
      1,
      4,
      3,
      2,
      2,
      2,
      2,
      2,
      2,
      ...new Array<number>(37).fill(1),
      -1,
      -1,
      -1,
      -1,
      -1,
      -1,
      -1,
    ],
  },
];

function readTables(
  bytes: Uint8Array,
  from: number,
  end: number,
  frame: FrameState,
): [Fse[], number] {
  const modes = required(bytes[from]);
  if (modes & 3) fail('reserved bits');
  let at = from + 1;
  const tables = KINDS.map(({ largest, count, log, predefined }, kind) => {
    const mode = (modes >> (6 - 2 * kind)) & 3;
    let table = frame.tables[kind] ?? null;
    if (mode === 0) {
      table = buildFse(predefined, log);
    } else if (mode === 1) {
      const symbol = required(bytes[at++]);
      if (at > end || symbol >= count) fail('a symbol that does not exist');
      const singleSymbol = new Uint8Array(1);
      table = {
        log: 0,
        symbols: Uint8Array.of(symbol),
        bits: singleSymbol,
        base: new Uint16Array(1),
      };
    } else if (mode === 2) {
      [table, at] = readFse(bytes, at, end, largest, count);
    }
    return table ?? fail('a table that no block has set');
  });
  frame.tables = tables;
  return [tables, at];
}

/** Reads the number of sequences, in one to three bytes. Returns it and the position after it. */
function readSequenceCount(bytes: Uint8Array, at: number, end: number): [number, number] {
  if (at >= end) fail('a block that ends early');
  const head = bytes[at] ?? 0;
  if (head < 128) return [head, at + 1];
  if (head < 255) return [((head - 128) << 8) | (bytes[at + 1] ?? 0), at + 2];
  return [(bytes[at + 1] ?? 0) + ((bytes[at + 2] ?? 0) << 8) + 0x7f00, at + 3];
}

/** Decodes a compressed block into the output from byte `to` on. Returns the position after it. */
function decodeBlock(
  bytes: Uint8Array,
  from: number,
  end: number,
  frame: FrameState,
  to: number,
): number {
  const { output } = frame;
  const limit = Math.min(output.length, to + BLOCK);
  let [literals, at] = readLiterals(bytes, from, end, frame);
  let position = to;
  const copy = (count: number): void => {
    if (count > literals.length || position + count > limit) fail('more bytes than announced');
    output.set(literals.subarray(0, count), position);
    literals = literals.subarray(count);
    position += count;
  };
  const [count, tablesAt] = readSequenceCount(bytes, at, end);
  at = tablesAt;
  if (count > 0) {
    if (at >= end) fail('a block that ends early');
    const [tables, streamAt] = readTables(bytes, at, end, frame);
    const [lengths, offsets, matches] = leading(tables, 3);
    const stream = new BackwardBits(bytes, streamAt, end);
    let length = stream.read(lengths.log);
    let offset = stream.read(offsets.log);
    let match = stream.read(matches.log);
    for (let i = 0; i < count; ++i) {
      const offsetCode = required(offsets.symbols[offset]);
      const matchCode = required(matches.symbols[match]);
      const lengthCode = required(lengths.symbols[length]);
      const far = 2 ** offsetCode + stream.read(offsetCode);
      const matchLength =
        required(MATCH_BASE[matchCode]) + stream.read(required(MATCH_BITS[matchCode]));
      const literalLength =
        required(LITERAL_BASE[lengthCode]) + stream.read(required(LITERAL_BITS[lengthCode]));
      if (stream.left < 0) fail('sequences that end early');
      if (i < count - 1) {
        length = required(lengths.base[length]) + stream.read(required(lengths.bits[length]));
        match = required(matches.base[match]) + stream.read(required(matches.bits[match]));
        offset = required(offsets.base[offset]) + stream.read(required(offsets.bits[offset]));
      }
      copy(literalLength);
      const distance = resolveOffset(frame.offsets, far, literalLength === 0);
      if (distance > position - frame.start) fail('a match before the first byte');
      if (position + matchLength > limit) fail('more bytes than announced');
      copyMatch(output, position, distance, matchLength);
      position += matchLength;
    }
    if (stream.left !== 0) fail('sequences that do not fill their stream');
  } else if (at !== end) {
    fail('bytes behind the literals');
  }
  copy(literals.length);
  return position;
}

/**
 * Converts an offset code to a distance; codes up to 3 refer to one of the last three distances.
 */
function resolveOffset(last: [number, number, number], code: number, isEmpty: boolean): number {
  const which = code > 3 ? 3 : code - 1 + (isEmpty ? 1 : 0);
  let distance: number;
  if (code > 3) distance = code - 3;
  else distance = which === 3 ? last[0] - 1 : required(last[which]);
  if (distance < 1) fail('an offset of 0');
  if (which > 1) last[2] = last[1];
  if (which > 0) last[1] = last[0];
  last[0] = distance;
  return distance;
}

/** Appends `count` bytes that start `distance` bytes back; source and copy may overlap. */
export function copyMatch(output: Uint8Array, at: number, distance: number, count: number): void {
  if (distance === 1) {
    output.fill(required(output[at - 1]), at, at + count);
    return;
  }
  for (let done = 0; done < count; ) {
    const length = Math.min(count - done, distance + done);
    output.copyWithin(at + done, at - distance, at - distance + length);
    done += length;
  }
}

interface FrameHeader {
  /** Position after the header. */
  at: number;
  /** Bytes of the content; null if the frame does not have the size. */
  size: number | null;
  hasChecksum: boolean;
}

function readHeader(bytes: Uint8Array, from: number, end: number): FrameHeader {
  const flags = bytes[from + 4] ?? 0;
  const isSingle = (flags & 32) !== 0;
  const sizeFlag = flags >> 6;
  if (flags & 8) fail('reserved bits');
  let at = from + 5 + (isSingle ? 0 : 1);
  const number = (count: number): number => {
    let value = 0;
    for (let i = count - 1; i >= 0; --i) value = value * 256 + (bytes[at + i] ?? 0);
    at += count;
    return value;
  };
  if (number(required([0, 1, 2, 4][flags & 3])) !== 0) fail('a dictionary');
  const sizeBytes = sizeFlag === 0 ? Number(isSingle) : 1 << sizeFlag;
  const size = sizeBytes === 0 ? null : number(sizeBytes) + (sizeFlag === 1 ? 256 : 0);
  if (at > end) fail('a header that ends early');
  return { at, size, hasChecksum: (flags & 4) !== 0 };
}

/** Decodes frames to exactly `size` bytes. Throws an Error for another size. */
export function decodeZstd(stored: Uint8Array, size: number): Uint8Array {
  const output = new Uint8Array(size);
  // Four zero bytes at the end: readers of bits take whole words, and reads out of bounds are slow.
  const bytes = new Uint8Array(stored.length + 4);
  bytes.set(stored);
  const end = stored.length;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let position = 0;
  for (let at = 0; at < end; ) {
    const magic = at + 8 <= end ? view.getUint32(at, true) : 0;
    if ((magic & ~15) >>> 0 === SKIPPABLE) {
      at += 8 + view.getUint32(at + 4, true);
      if (at > end) fail('a frame that ends early');
      continue;
    }
    if (magic !== MAGIC) fail('no frame');
    const header = readHeader(bytes, at, end);
    const frame: FrameState = {
      huffman: null,
      tables: [null, null, null],
      offsets: [1, 4, 8],
      start: position,
      output,
    };
    at = header.at;
    for (let isLast = false; !isLast; ) {
      if (at + 3 > end) fail('a frame that ends early');
      const head = view.getUint16(at, true) | (required(bytes[at + 2]) << 16);
      isLast = (head & 1) !== 0;
      const type = (head >> 1) & 3;
      const length = head >> 3;
      const stored = type === 1 ? 1 : length;
      at += 3;
      if (type === 3 || length > BLOCK) fail('an unknown block');
      if (at + stored > end) fail('a frame that ends early');
      if (type === 2) {
        position = decodeBlock(bytes, at, at + stored, frame, position);
      } else {
        if (position + length > size) fail('more bytes than announced');
        if (type === 0) output.set(bytes.subarray(at, at + length), position);
        else output.fill(required(bytes[at]), position, position + length);
        position += length;
      }
      at += stored;
    }
    if (header.hasChecksum) at += 4;
    if (at > end) fail('a frame that ends early');
    if (header.size !== null && position - frame.start !== header.size) {
      fail(`${position - frame.start} bytes in a frame of ${header.size}`);
    }
  }
  if (position !== size) fail(`${position} bytes, not ${size}`);
  return output;
}
