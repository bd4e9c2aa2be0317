// Reads the header of a GGUF file of version 2 or 3: metadata by key, and the table of tensors.
// Compares all counts and sizes with the file before it allocates memory, because a damaged file
// may state any size.
import { DsError } from '../../errors.js';
import { required } from '../../runtime/required.js';
import { BLOCK_TYPES, type BlockType, typeName } from './blocks.js';

/** A value of the metadata. Integers of all widths are numbers. */
export type GgufValue = number | boolean | string | readonly GgufValue[];

/** An entry of the table of tensors. */
export interface GgufTensor {
  readonly name: string;
  /** Dimensions, outermost first. The file stores them innermost first. */
  readonly shape: readonly number[];
  readonly type: BlockType;
  /** Position in the file of the first byte. */
  readonly start: number;
  readonly bytes: number;
  /** Index of its file, in a split model. Default: 0. */
  readonly file?: number;
  /** Values from the metadata, in f32. Default: the values are in the file. */
  readonly values?: readonly number[];
}

/** Returns a tensor with values from the metadata instead of the file. */
export const metadataTensor = (
  name: string,
  shape: readonly number[],
  values: readonly number[],
): GgufTensor => ({ name, shape, type: F32_TYPE, start: 0, bytes: 4 * values.length, values });

/** The header of a GGUF file. */
export interface GgufHeader {
  readonly metadata: ReadonlyMap<string, GgufValue>;
  readonly tensors: readonly GgufTensor[];
  /**
   * Returns all values of a small tensor. Throws DS_CHECKPOINT for a tensor of more than 1 MiB,
   * DS_IO.
   */
  readonly read: (tensor: GgufTensor) => readonly number[];
}

/** Fills `into` with the bytes of the file from byte `at` on. Blocks the thread. */
type ReadBytes = (at: number, into: Uint8Array) => void;

/** The first four bytes of a GGUF file. */
export const GGUF_MAGIC = 'GGUF';

const WINDOW = 1 << 20;
const MAX_TEXT = 64 * 2 ** 20;
const MAX_ITEMS = 2 ** 24;
const MAX_TENSORS = 1_000_000;
const MAX_PAIRS = 100_000;
const MAX_DIMS = 4;
const MAX_DEPTH = 3;
const F32_TYPE = required(BLOCK_TYPES.get(0));
const DAMAGED = 'The file is damaged, or its download did not finish.';

/**
 * Bytes of a value, by its metadata type. For a text: bytes of its length. For a list: bytes of the
 * type of its values and of its length. They are the least that an item occupies.
 */
const SIZES = [1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8] as const;
const [TEXT, LIST] = [8, 9];

/** Reads a file from its start, in windows of 1 MiB. */
class Reader {
  private window = new DataView(new ArrayBuffer(0));
  private windowAt = 0;
  at = 0;

  constructor(
    readonly path: string,
    readonly size: number,
    private readonly read: ReadBytes,
  ) {}

  /** Number of bytes from `at` to the end of the file. */
  get left(): number {
    return this.size - this.at;
  }

  damagedError(expected: string, got: string, hint = DAMAGED): DsError {
    const op = `${this.path}, byte ${this.at}`;
    return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
  }

  /** Returns a view that contains the next `count` bytes, and their offset in it. Advances `at`. */
  private take(count: number): [view: DataView, offset: number] {
    if (count > this.left) throw this.damagedError(`${count} bytes more`, `${this.left}`);
    const from = this.at - this.windowAt;
    if (from < 0 || from + count > this.window.byteLength) {
      const bytes = new Uint8Array(Math.min(Math.max(count, WINDOW), this.left));
      this.read(this.at, bytes);
      this.window = new DataView(bytes.buffer);
      this.windowAt = this.at;
    }
    const offset = this.at - this.windowAt;
    this.at += count;
    return [this.window, offset];
  }

  u32(): number {
    const [view, at] = this.take(4);
    return view.getUint32(at, true);
  }

  /** Returns an unsigned 64-bit count or size. Throws DS_CHECKPOINT if it is 2^53 or larger. */
  size64(): number {
    const [view, at] = this.take(8);
    const value = view.getBigUint64(at, true);
    if (value <= Number.MAX_SAFE_INTEGER) return Number(value);
    throw this.damagedError('a number below 2^53', String(value));
  }

  text(): string {
    const length = this.size64();
    if (length > MAX_TEXT)
      throw this.damagedError(`a string of at most ${MAX_TEXT} bytes`, `${length}`);
    const [view, at] = this.take(length);
    return Buffer.from(view.buffer, at, length).toString('utf8');
  }

  value(type: number, depth = 0): GgufValue {
    if (type === TEXT) return this.text();
    if (type === LIST) return this.list(depth);
    const bytes = SIZES[type];
    if (bytes === undefined) throw this.damagedError('a metadata type from 0 to 12', `${type}`);
    const [view, at] = this.take(bytes);
    switch (type) {
      case 0:
        return view.getUint8(at);
      case 1:
        return view.getInt8(at);
      case 2:
        return view.getUint16(at, true);
      case 3:
        return view.getInt16(at, true);
      case 4:
        return view.getUint32(at, true);
      case 5:
        return view.getInt32(at, true);
      case 6:
        return view.getFloat32(at, true);
      case 7:
        return view.getUint8(at) !== 0;
      case 10:
        return Number(view.getBigUint64(at, true));
      case 11:
        return Number(view.getBigInt64(at, true));
      default:
        return view.getFloat64(at, true);
    }
  }

  private list(depth: number): readonly GgufValue[] {
    if (depth >= MAX_DEPTH)
      throw this.damagedError(`lists in at most ${MAX_DEPTH} levels`, 'more levels');
    const type = this.u32();
    const count = this.size64();
    const smallest = SIZES[type];
    if (smallest === undefined) throw this.damagedError('a metadata type from 0 to 12', `${type}`);
    const max = Math.min(MAX_ITEMS, Math.floor(this.left / smallest));
    if (count > max) throw this.damagedError(`a list of at most ${max} values`, `${count}`);
    const values: GgufValue[] = [];
    for (let i = 0; i < count; ++i) values.push(this.value(type, depth + 1));
    return values;
  }
}

/**
 * Reads the header of the file `path` of `size` bytes. Throws DS_CHECKPOINT if the file is damaged
 * or no GGUF file, or if a tensor has an unsupported type.
 */
export function readGgufHeader(path: string, size: number, read: ReadBytes): GgufHeader {
  const reader = new Reader(path, size, read);
  const magic = reader.left < 4 ? '' : Buffer.from(Uint32Array.of(reader.u32()).buffer).toString();
  if (magic !== GGUF_MAGIC) {
    throw reader.damagedError('a GGUF file', `a file that begins with ${JSON.stringify(magic)}`);
  }
  const version = reader.u32();
  if (version !== 2 && version !== 3) {
    const hint = 'Convert the model again with a current llama.cpp.';
    throw reader.damagedError('version 2 or 3', `${version}`, hint);
  }
  const [tensors, pairs] = [reader.size64(), reader.size64()];
  if (tensors > MAX_TENSORS)
    throw reader.damagedError(`at most ${MAX_TENSORS} tensors`, `${tensors}`);
  if (pairs > MAX_PAIRS) throw reader.damagedError(`at most ${MAX_PAIRS} keys`, `${pairs}`);
  const metadata = new Map<string, GgufValue>();
  for (let i = 0; i < pairs; ++i) {
    const key = reader.text();
    metadata.set(key, reader.value(reader.u32()));
  }
  const entries = Array.from({ length: tensors }, () => entry(reader));
  const align = alignment(reader, metadata);
  const start = Math.ceil(reader.at / align) * align;
  const valuesOf = ({ name, start: at, bytes, type }: GgufTensor): readonly number[] => {
    if (bytes > WINDOW) throw reader.damagedError(`at most ${WINDOW} bytes of ${name}`, `${bytes}`);
    const packed = new Uint8Array(bytes);
    read(at, packed);
    const values = new Float32Array((bytes / type.bytes) * type.values);
    type.unpack(packed, bytes / type.bytes, values);
    return [...values];
  };
  return { metadata, tensors: locate(reader, entries, { start, align }), read: valuesOf };
}

type Entry = Omit<GgufTensor, 'start'> & { offset: number };

function entry(reader: Reader): Entry {
  const name = reader.text();
  const dims = reader.u32();
  if (dims > MAX_DIMS) throw reader.damagedError(`at most ${MAX_DIMS} dimensions`, `${dims}`);
  const shape = Array.from({ length: dims }, () => reader.size64()).reverse();
  const id = reader.u32();
  const offset = reader.size64();
  const type = BLOCK_TYPES.get(id);
  if (!type) {
    const known = [...BLOCK_TYPES.values()].map((type) => type.name).join(', ');
    const hint = 'Take another file of the model, such as Q4_K_M or Q8_0.';
    throw reader.damagedError(`${name} in ${known}`, typeName(id), hint);
  }
  const values = shape.reduce((product, value) => product * value, 1);
  const width = shape.at(-1) ?? 1;
  if (!Number.isSafeInteger(values) || width % type.values !== 0) {
    const expected = `rows of ${name} in whole blocks of ${type.values} values`;
    throw reader.damagedError(expected, `[${shape}]`);
  }
  return { name, shape, type, offset, bytes: (values / type.values) * type.bytes };
}

function alignment(reader: Reader, metadata: GgufHeader['metadata']): number {
  const stated = metadata.get('general.alignment') ?? 32;
  const isPower = Number.isInteger(stated) && Number.isInteger(Math.log2(stated as number));
  if (isPower && (stated as number) <= 2 ** 20) return stated as number;
  throw reader.damagedError('general.alignment as a power of 2 up to 2^20', JSON.stringify(stated));
}

/**
 * Returns the tensors with their positions in the file. Throws DS_CHECKPOINT if they overlap or
 * extend beyond the end of the file.
 */
function locate(
  reader: Reader,
  entries: readonly Entry[],
  { start, align }: { start: number; align: number },
): GgufTensor[] {
  const tensors = entries.map(({ offset, ...rest }) => ({ ...rest, start: start + offset }));
  const names = new Set<string>();
  let end = start;
  for (const tensor of [...tensors].sort((a, b) => a.start - b.start)) {
    const isPlaced = tensor.start >= end && (tensor.start - start) % align === 0;
    end = tensor.start + tensor.bytes;
    if (!isPlaced || end > reader.size) {
      const expected = `${tensor.name} inside of the file's ${reader.size} bytes, without overlap`;
      throw reader.damagedError(expected, `bytes ${tensor.start} to ${end}`);
    }
    if (names.has(tensor.name))
      throw reader.damagedError('tensors with distinct names', tensor.name);
    names.add(tensor.name);
  }
  return tensors;
}
