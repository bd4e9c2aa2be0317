// Reads tensors of a GGUF file in the form of a model: unpacked, in its row order, under its names.

import { dtypeSize } from '../../runtime/dtype.js';
import { InputFile } from '../../runtime/input-file.js';
import { required } from '../../runtime/required.js';
import { numel } from '../../runtime/view.js';
import type { Tensor } from '../../tensor/index.js';
import type { TensorEntry } from '../header.js';
import { type GgufHeader, type GgufTensor, readGgufHeader } from './header.js';

/** A tensor of the model, as a range of a tensor in the file. */
export interface GgufPart {
  /** The name in the model. */
  readonly name: string;
  readonly source: GgufTensor;
  readonly shape: readonly number[];
  /** Index of its first value in `source`. Default 0. */
  readonly first?: number;
  /** More tensors of the same width. Their rows follow the rows of `source`. Default: none. */
  readonly further?: readonly GgufTensor[];
  /** Returns the row in the file of a row of the model. Default: the same row. */
  readonly rowOf?: (row: number) => number;
  /** Added to every value. Default 0. */
  readonly add?: number;
}

/** A tensor of the model, and its bytes after unpacking. */
export interface GgufEntry extends TensorEntry {
  readonly part: GgufPart;
}

/** Number of values that are unpacked at a time. */
const CHUNK = 2 ** 18;

/** An open GGUF file. The caller of open() closes it. */
export class GgufFile {
  private readonly parts: ReadonlyMap<string, GgufPart>;

  private constructor(
    private readonly file: InputFile,
    readonly header: GgufHeader,
    readonly entries: readonly GgufEntry[],
  ) {
    this.parts = new Map(entries.map(({ name, part }) => [name, part]));
  }

  /**
   * Opens `path`. `partsOf` lists the tensors of the model. Throws DS_CHECKPOINT for a damaged
   * header, DS_IO, and errors of `partsOf`.
   */
  static async open(
    path: string,
    partsOf: (header: GgufHeader) => readonly GgufPart[],
  ): Promise<GgufFile> {
    const file = await InputFile.open(path);
    try {
      const read = (at: number, into: Uint8Array): void => file.readNow(at, into);
      const header = readGgufHeader(path, file.bytes, read);
      return new GgufFile(file, header, partsOf(header).map(entryOf));
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  get path(): string {
    return this.file.path;
  }

  get bytes(): number {
    return this.file.bytes;
  }

  /** Throws DS_IO if the file has changed since open(). */
  requireUnchanged(): Promise<void> {
    return this.file.requireUnchanged();
  }

  close(): Promise<void> {
    return this.file.close();
  }

  /** Fills `bytes` from byte `from` of an unpacked entry; blocks. Throws DS_IO. */
  readNow({ name, dtype }: TensorEntry, from: number, bytes: Uint8Array): void {
    const part = required(this.parts.get(name));
    const size = dtypeSize(dtype);
    const range = { from: from / size, count: bytes.length / size };
    for (const { at, from: first, count } of runsOf(part, range)) {
      const into = bytes.subarray(at * size, (at + count) * size);
      const { source, start } = placeOf(part, (part.first ?? 0) + first);
      if (source.type.dtype === dtype && !part.add) this.copy(source, start, into);
      else this.unpack({ source, add: part.add ?? 0 }, start, into);
    }
  }

  /** Overwrites a contiguous tensor of the entry's dtype with all values of it. */
  async readInto(entry: TensorEntry, tensor: Tensor): Promise<void> {
    const size = dtypeSize(entry.dtype);
    const step = CHUNK * size;
    for (let done = 0; done < tensor.bytes; done += step) {
      const bytes = new Uint8Array(Math.min(step, tensor.bytes - done));
      this.readNow(entry, done, bytes);
      tensor.buffer.write(tensor.offset * size + done, bytes);
      // Other work gets its turn between chunks.
      await new Promise(setImmediate);
    }
  }

  private copy({ start, type }: GgufTensor, first: number, into: Uint8Array): void {
    this.file.readNow(start + first * type.bytes, into);
  }

  /** Writes values from `first` on as f32. */
  private unpack(
    { source, add }: { source: GgufTensor; add: number },
    first: number,
    into: Uint8Array,
  ): void {
    const { type, start } = source;
    const end = first + into.length / 4;
    const out = Buffer.from(into.buffer, into.byteOffset, into.length);
    for (let from = first; from < end; ) {
      const block = Math.floor(from / type.values);
      const until = Math.min(end, (block + 1) * type.values + CHUNK);
      const count = Math.ceil(until / type.values) - block;
      const packed = new Uint8Array(count * type.bytes);
      this.file.readNow(start + block * type.bytes, packed);
      const values = new Float32Array(count * type.values);
      type.unpack(packed, count, values);
      for (let i = from; i < until; ++i) {
        const value = required(values[i - block * type.values]);
        out.writeFloatLE(value + add, 4 * (i - first));
      }
      from = until;
    }
  }
}

function entryOf(part: GgufPart): GgufEntry {
  const { name, shape, add, source, further = [] } = part;
  const isSame = further.every(({ type }) => type.dtype === source.type.dtype);
  const dtype = add || !isSame ? 'f32' : (source.type.dtype ?? 'f32');
  return { name, dtype, shape, start: 0, end: numel(shape) * dtypeSize(dtype), part };
}

/** The tensor with value `at` of all tensors of a part, and the index of the value in it. */
function placeOf(
  { source, further = [] }: GgufPart,
  at: number,
): { source: GgufTensor; start: number } {
  let start = at;
  for (const tensor of [source, ...further]) {
    const values = numel(tensor.shape);
    if (start < values) return { source: tensor, start };
    start -= values;
  }
  throw new RangeError(`${source.name}: ${at}`);
}

/** Values [at, at + count) of a range, which are contiguous in the file from value `from` on. */
interface Run {
  readonly at: number;
  readonly from: number;
  readonly count: number;
}

/** The runs of a range that are contiguous in the file. */
function* runsOf(
  { shape, rowOf }: GgufPart,
  { from, count }: { from: number; count: number },
): Generator<Run> {
  if (!rowOf) {
    yield { at: 0, from, count };
    return;
  }
  const width = shape.length > 1 ? required(shape.at(-1)) : 1;
  for (let at = 0; at < count; ) {
    const [row, column] = [Math.floor((from + at) / width), (from + at) % width];
    const run = Math.min(width - column, count - at);
    yield { at, from: rowOf(row) * width + column, count: run };
    at += run;
  }
}
