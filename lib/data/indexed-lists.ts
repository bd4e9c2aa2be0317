// Reads and writes lists of whole numbers in the files PREFIX.bin and PREFIX.idx. data.analyze()
// writes them. The layout is that of Megatron's indexed dataset, as DeepSpeed's DataAnalyzer writes
// it.

import { replaceFile } from '../checkpoint/index.js';
import { dataError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import { HEADER_BYTES, MAGIC, readIndex, readSequenceLengths } from './megatron-index.js';
import { PositionalFile } from './positional-file.js';
import { bytesPerToken, type TokenDType } from './token-format.js';

/** Several lists, one after the other. */
export interface IndexedLists {
  /** Length of each list. */
  lengths: Int32Array;
  /** The numbers of all lists. */
  numbers: Float64Array;
}

/** Returns a path without its extension .bin or .idx. */
export const withoutExtension = (path: string): string => path.replace(/\.(bin|idx)$/, '');

/**
 * Reads the lists of a pair of files. Throws DS_DATA if a file is missing or damaged, or if a
 * number needs more than 53 bits; the error names file and entry.
 */
export function readIndexedLists(path: string): IndexedLists {
  const prefix = withoutExtension(path);
  const data = new PositionalFile(`${prefix}.bin`);
  try {
    const { dtype } = readIndex(`${prefix}.idx`, data.bytes);
    const lengths = readSequenceLengths(`${prefix}.idx`);
    const bytes = data.read(0, data.bytes);
    return { lengths, numbers: decodeBytes(bytes, dtype, data.path) };
  } finally {
    data.close();
  }
}

type NarrowDType = Exclude<TokenDType, 'i64' | 'u64'>;

const NARROW_ARRAYS = {
  u8: Uint8Array,
  i8: Int8Array,
  u16: Uint16Array,
  i16: Int16Array,
  u32: Uint32Array,
  i32: Int32Array,
};

function decodeBytes(bytes: ArrayBuffer, dtype: TokenDType, path: string): Float64Array {
  if (dtype !== 'i64' && dtype !== 'u64') {
    return new Float64Array(new NARROW_ARRAYS[dtype as NarrowDType](bytes));
  }
  const wide = dtype === 'i64' ? new BigInt64Array(bytes) : new BigUint64Array(bytes);
  const numbers = new Float64Array(wide.length);
  for (let i = 0; i < wide.length; ++i) {
    numbers[i] = Number(wide[i]);
    if (Number.isSafeInteger(numbers[i])) continue;
    throw dataError(`${path}, number ${i}`, 'an integer of at most 53 bits', String(wide[i]));
  }
  return numbers;
}

/** Dtype codes that mean the same in Megatron and DeepSpeed. */
const CODES = { i32: 4, i64: 5 } as const;

/**
 * Writes or replaces both files, the index last. The numbers must be safe integers. Throws DS_IO if
 * a write fails.
 */
export async function writeIndexedLists(prefix: string, lists: IndexedLists): Promise<void> {
  const { numbers, lengths } = lists;
  const dtype = numbers.every((number) => Math.abs(number) < 2 ** 31) ? 'i32' : 'i64';
  const bin =
    dtype === 'i32'
      ? Int32Array.from(numbers)
      : BigInt64Array.from(numbers, (number) => BigInt(number));
  await replaceFile(`${prefix}.bin`, new Uint8Array(bin.buffer));
  await replaceFile(`${prefix}.idx`, encodeIndex(lengths, dtype));
}

/** Encodes an index with one document that contains all lists. */
function encodeIndex(lengths: Int32Array, dtype: 'i32' | 'i64'): Uint8Array {
  const out = Buffer.alloc(HEADER_BYTES + 12 * lengths.length + 16);
  out.write(MAGIC, 0, 'latin1');
  out.writeBigUInt64LE(1n, 9);
  out.writeUInt8(CODES[dtype], 17);
  out.writeBigUInt64LE(BigInt(lengths.length), 18);
  out.writeBigUInt64LE(2n, 26);
  const pointers = HEADER_BYTES + 4 * lengths.length;
  let next = 0;
  for (let i = 0; i < lengths.length; ++i) {
    out.writeInt32LE(required(lengths[i]), HEADER_BYTES + 4 * i);
    out.writeBigInt64LE(BigInt(next), pointers + 8 * i);
    next += bytesPerToken(dtype) * required(lengths[i]);
  }
  out.writeBigInt64LE(BigInt(lengths.length), pointers + 8 * lengths.length + 8);
  return out;
}
