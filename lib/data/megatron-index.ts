// Reads and checks the .idx file of a Megatron indexed dataset (MMapIndexedDataset, version 1).
// Source: megatron/core/datasets/indexed_dataset.py, and DeepSpeed's copy in data_sampling.

import { dataError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import { PositionalFile } from './positional-file.js';
import { bytesPerToken, type TokenDType } from './token-format.js';

export const MAGIC = 'MMIDIDX\0\0';
/** Bytes of the header: magic, version (u64), dtype code (u8), sequences (u64), documents (u64). */
export const HEADER_BYTES = 34;
/** Number of entries that are read at a time, so that the whole index is never in memory. */
const CHUNK = 1 << 16;

/**
 * Dtypes by code. Megatron and DeepSpeed use the codes 6 to 8 differently; the size of the .bin
 * file shows which of the two is meant.
 */
const DTYPES_OF_CODE: Record<number, TokenDType[]> = {
  1: ['u8'],
  2: ['i8'],
  3: ['i16'],
  4: ['i32'],
  5: ['i64'],
  6: ['u16'], // DeepSpeed; float64 in Megatron, which tokens never have
  7: ['u32'], // DeepSpeed; float32 in Megatron, which tokens never have
  8: ['u16', 'u64'], // Megatron; DeepSpeed
};

/** The dtype and the number of tokens in the .bin file. */
interface IndexedTokens {
  dtype: TokenDType;
  tokens: number;
}

/**
 * Checks the whole index against its .bin file of `binBytes` bytes: header, sizes, pointers and
 * documents. Sequences must be contiguous. Throws DS_DATA if the index contradicts itself or the
 * file.
 */
export function readIndex(path: string, binBytes: number): IndexedTokens {
  const file = new PositionalFile(path);
  try {
    const header = readHeader(file);
    const tokens = sumLengths(file, header.sequences);
    const dtype = chooseDType(path, header.code, tokens, binBytes);
    requirePointers(file, header.sequences, bytesPerToken(dtype));
    requireDocuments(file, header);
    return { dtype, tokens };
  } finally {
    file.close();
  }
}

/**
 * Returns the length of every sequence. readIndex() must have checked the index. Throws DS_DATA if
 * the file cannot be read.
 */
export function readSequenceLengths(path: string): Int32Array {
  const file = new PositionalFile(path);
  try {
    const { sequences } = readHeader(file);
    return new Int32Array(file.read(HEADER_BYTES, 4 * sequences));
  } finally {
    file.close();
  }
}

interface Header {
  code: number;
  sequences: number;
  documents: number;
}

function readHeader(file: PositionalFile): Header {
  const { path, bytes } = file;
  if (bytes < HEADER_BYTES) {
    throw dataError(path, `a header of ${HEADER_BYTES} bytes`, `${bytes} bytes`);
  }
  const view = new DataView(file.read(0, HEADER_BYTES));
  const magic = Buffer.from(view.buffer, 0, MAGIC.length).toString('latin1');
  if (magic !== MAGIC) {
    const hint = 'Pass the .idx file of an indexed dataset.';
    throw dataError(path, `the magic ${JSON.stringify(MAGIC)}`, JSON.stringify(magic), hint);
  }
  const version = view.getBigUint64(9, true);
  if (version !== 1n) throw dataError(path, 'version 1', String(version));
  const code = view.getUint8(17);
  if (!DTYPES_OF_CODE[code]) throw dataError(path, 'a dtype code of 1 to 8', String(code));
  const sequences = Number(view.getBigUint64(18, true));
  const documents = Number(view.getBigUint64(26, true));
  const min = HEADER_BYTES + 12 * sequences + 8 * documents;
  // Indexes of multimodal datasets have one more byte per sequence at the end.
  if (bytes !== min && bytes !== min + sequences) {
    const expected = `${min} bytes for ${sequences} sequences and ${documents} documents`;
    throw dataError(path, expected, `${bytes} bytes`, 'It is truncated or damaged.');
  }
  return { code, sequences, documents };
}

function sumLengths(file: PositionalFile, sequences: number): number {
  let tokens = 0;
  for (let first = 0; first < sequences; first += CHUNK) {
    const lengths = readLengths(file, first, sequences);
    for (let i = 0; i < lengths.length; ++i) {
      const length = required(lengths[i]);
      if (length < 0) throw entryError(file, 'length', first + i, 'at least 0', length);
      tokens += length;
    }
  }
  return tokens;
}

function chooseDType(path: string, code: number, tokens: number, binBytes: number): TokenDType {
  const candidates = required(DTYPES_OF_CODE[code]);
  const fitting = candidates.find((dtype) => bytesPerToken(dtype) * tokens === binBytes);
  if (fitting) return fitting;
  const sizes = candidates
    .map((dtype) => `${bytesPerToken(dtype) * tokens} (${dtype})`)
    .join(' or ');
  const hint = 'The .bin file is truncated, or belongs to another index.';
  throw dataError(path, `a .bin file of ${sizes} bytes`, `${binBytes}`, hint);
}

function requirePointers(file: PositionalFile, sequences: number, size: number): void {
  let next = 0;
  for (let first = 0; first < sequences; first += CHUNK) {
    const lengths = readLengths(file, first, sequences);
    const at = HEADER_BYTES + 4 * sequences + 8 * first;
    const pointers = new BigInt64Array(file.read(at, 8 * lengths.length));
    for (let i = 0; i < lengths.length; ++i) {
      const pointer = Number(pointers[i]);
      if (pointer !== next) throw entryError(file, 'pointer', first + i, String(next), pointer);
      next += size * required(lengths[i]);
    }
  }
}

function requireDocuments(file: PositionalFile, { sequences, documents }: Header): void {
  const start = HEADER_BYTES + 12 * sequences;
  let last = 0;
  for (let first = 0; first < documents; first += CHUNK) {
    const count = Math.min(CHUNK, documents - first);
    const ends = new BigInt64Array(file.read(start + 8 * first, 8 * count));
    for (let i = 0; i < count; ++i) {
      const end = Number(ends[i]);
      if (end >= last && end <= sequences && (first + i > 0 || end === 0)) last = end;
      else throw entryError(file, 'document', first + i, `of [${last}, ${sequences}]`, end);
    }
  }
}

function readLengths(file: PositionalFile, first: number, sequences: number): Int32Array {
  const count = Math.min(CHUNK, sequences - first);
  return new Int32Array(file.read(HEADER_BYTES + 4 * first, 4 * count));
}

function entryError(
  { path }: PositionalFile,
  kind: string,
  at: number,
  expected: string,
  got: number,
): Error {
  return dataError(path, `${kind} ${at} ${expected}`, String(got), 'The index is damaged.');
}
