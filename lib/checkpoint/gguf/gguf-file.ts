// Reads tensors of a GGUF file as a model needs them: decoded, in the model's order of values, and
// under the model's names.

import { dtypeSize } from '../../runtime/dtype.js';
import { waitForEventLoop } from '../../runtime/event-loop.js';
import type { InputFile } from '../../runtime/input-file.js';
import { required } from '../../runtime/required.js';
import { numel } from '../../runtime/view.js';
import type { Tensor } from '../../tensor/index.js';
import type { TensorEntry } from '../header.js';
import { openGgufFiles } from './files.js';
import type { GgufHeader, GgufTensor } from './header.js';
import { MXFP4_BLOCK, mxfp4Codes } from './mxfp4-codes.js';
import { runsOf, type ValueOrder, type ValueRun } from './value-order.js';

/** A tensor of the model, and the values of tensors of the file that it consists of. */
export interface GgufPart {
  /** Name of the tensor in the model. */
  readonly name: string;
  readonly source: GgufTensor;
  readonly shape: readonly number[];
  /** Index in `source` of the first value. Default: 0. */
  readonly first?: number;
  /** More tensors of the file. Their values follow the values of `source`. Default: []. */
  readonly further?: readonly GgufTensor[];
  /** The order of the values, if it differs from the file's. With `codes`, it counts blocks. */
  readonly order?: ValueOrder;
  /** Replaces every value; the tensor is then f32. Default: no change. */
  readonly change?: (value: number) => number;
  /** Reads the codes or the scales of MXFP4 blocks instead of their values. Default: values. */
  readonly codes?: 'blocks' | 'scales';
}

/** A tensor of the model. `start` and `end` count bytes of the decoded values. */
interface GgufEntry extends TensorEntry {
  readonly part: GgufPart;
}

/** Number of values that are decoded at a time. */
const CHUNK = 2 ** 18;

/** An open GGUF file, or all files of a split model. The caller of open() closes it. */
export class GgufFile {
  private readonly parts: ReadonlyMap<string, GgufPart>;
  /** Decoded values of tensors with an order in the file that differs from the model's. */
  private readonly planes = new Map<GgufTensor, Plane>();

  private constructor(
    private readonly files: readonly InputFile[],
    readonly header: GgufHeader,
    readonly entries: readonly GgufEntry[],
  ) {
    this.parts = new Map(entries.map(({ name, part }) => [name, part]));
  }

  /**
   * Opens `path`, and its other files if the model is split. `partsOf` returns the tensors of the
   * model for the header. Throws DS_CHECKPOINT for a damaged header, DS_IO, and the errors of
   * `partsOf`.
   */
  static async open(
    path: string,
    partsOf: (header: GgufHeader) => readonly GgufPart[],
  ): Promise<GgufFile> {
    const { files, header } = await openGgufFiles(path);
    try {
      return new GgufFile(files, header, partsOf(header).map(entryOf));
    } catch (error) {
      for (const file of files) await file.close();
      throw error;
    }
  }

  get path(): string {
    return required(this.files[0]).path;
  }

  get bytes(): number {
    return this.files.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Throws DS_IO if a file has changed since open(). */
  async requireUnchanged(): Promise<void> {
    for (const file of this.files) await file.requireUnchanged();
  }

  async close(): Promise<void> {
    for (const file of this.files) await file.close();
  }

  /**
   * Fills `bytes` with the bytes of a decoded entry from byte `from` on. Blocks the thread. Throws
   * DS_IO if the file cannot be read.
   */
  readNow({ name, dtype }: TensorEntry, from: number, bytes: Uint8Array): void {
    const part = required(this.parts.get(name));
    if (part.codes) {
      this.readCodes(part, from, bytes);
      return;
    }
    const size = dtypeSize(dtype);
    const range = { from: from / size, count: bytes.length / size };
    const isPlain = part.source.type.dtype === dtype && !part.change;
    for (const run of rangesOf(part, range)) {
      const values = run.count * run.lanes;
      const into = bytes.subarray(run.at * size, (run.at + values) * size);
      if (run.distance !== 1 || run.lanes > 1) this.gather(part, run, into, isPlain);
      else {
        const { source, start } = locate(part, run.from);
        if (isPlain) this.copy(source, start, into);
        else this.unpack(source, start, into);
      }
    }
    if (part.change) changeAll(bytes, part.change);
    // The next tensor has other planes, so their memory can be freed.
    const { shape, order } = part;
    if (order && range.from + range.count === numel(shape)) this.planes.clear();
  }

  /**
   * Overwrites `tensor` with all values of the entry. `tensor` must be contiguous and have the
   * entry's dtype. Throws DS_IO if the file cannot be read.
   */
  async readInto(entry: TensorEntry, tensor: Tensor): Promise<void> {
    const size = dtypeSize(entry.dtype);
    const step = CHUNK * size;
    for (let done = 0; done < tensor.bytes; done += step) {
      const bytes = new Uint8Array(Math.min(step, tensor.bytes - done));
      this.readNow(entry, done, bytes);
      tensor.buffer.write(tensor.offset * size + done, bytes);
      // Lets the event loop run between chunks.
      await waitForEventLoop();
    }
  }

  /** Fills `into` with the stored bytes of a tensor from byte `from` on. */
  private readBytes(tensor: GgufTensor, from: number, into: Uint8Array): void {
    const { file = 0, start, values } = tensor;
    if (values) into.set(new Uint8Array(Float32Array.from(values).buffer, from, into.length));
    else required(this.files[file]).readNow(start + from, into);
  }

  private copy(tensor: GgufTensor, first: number, into: Uint8Array): void {
    this.readBytes(tensor, first * tensor.type.bytes, into);
  }

  /** Decodes the values of a tensor from index `first` on to f32, and writes them to `into`. */
  private unpack(tensor: GgufTensor, first: number, into: Uint8Array): void {
    const { type } = tensor;
    const end = first + into.length / 4;
    const out = Buffer.from(into.buffer, into.byteOffset, into.length);
    for (let from = first; from < end; ) {
      const block = Math.floor(from / type.values);
      const until = Math.min(end, (block + 1) * type.values + CHUNK);
      const count = Math.ceil(until / type.values) - block;
      const packed = new Uint8Array(count * type.bytes);
      this.readBytes(tensor, block * type.bytes, packed);
      const values = new Float32Array(count * type.values);
      type.unpack(packed, count, values);
      for (let i = from; i < until; ++i) {
        out.writeFloatLE(required(values[i - block * type.values]), 4 * (i - first));
      }
      from = until;
    }
  }

  /** Writes values to `into` that are not contiguous in the file. */
  private gather(part: GgufPart, run: ValueRun, into: Uint8Array, isPlain: boolean): void {
    const { count, lanes, distance } = run;
    const size = into.length / count / lanes;
    const bytes = Buffer.from(into.buffer, into.byteOffset, into.length);
    for (let lane = 0; lane < lanes; ++lane) {
      let plane: Plane | null = null;
      // The index in the part of the first value of the plane's tensor.
      let base = 0;
      for (let i = 0; i < count; ++i) {
        const index = run.from + i * distance + lane * run.apart;
        if (plane === null || index < base + plane.first || index >= base + plane.end) {
          const { source, start } = locate(part, index);
          plane = this.planeOf(part, source, start, isPlain);
          base = index - start;
        }
        const at = (index - base - plane.first) * size;
        const to = (i * lanes + lane) * size;
        if (size === 2) bytes.writeUInt16LE(plane.bytes.readUInt16LE(at), to);
        else bytes.writeUInt32LE(plane.bytes.readUInt32LE(at), to);
      }
    }
  }

  /**
   * Returns the decoded plane that contains value `at` of a tensor. The last plane of each tensor
   * is kept, because the next run usually needs it too.
   */
  private planeOf({ order }: GgufPart, source: GgufTensor, at: number, isPlain: boolean): Plane {
    const known = this.planes.get(source);
    if (known && at >= known.first && at < known.end) return known;
    const all = numel(source.shape);
    const values = order?.plane ?? all;
    const first = Math.floor(at / values) * values;
    const end = Math.min(first + values, all);
    const size = isPlain ? dtypeSize(source.type.dtype ?? 'f32') : 4;
    const bytes = Buffer.alloc((end - first) * size);
    if (isPlain) this.copy(source, first, bytes);
    else this.unpack(source, first, bytes);
    const plane = { first, end, bytes };
    this.planes.set(source, plane);
    return plane;
  }

  /** Fills `bytes` with the codes or the scales of MXFP4 blocks, from byte `from` on. */
  private readCodes(part: GgufPart, from: number, bytes: Uint8Array): void {
    const { codes, source } = part;
    const size = codes === 'scales' ? 1 : MXFP4_BLOCK.codes;
    const first = Math.floor(from / size);
    const count = Math.ceil((from + bytes.length) / size) - first;
    const whole = new Uint8Array(count * size);
    for (const run of rangesOf(part, { from: first, count })) {
      const { source: tensor, start } = locate(part, run.from, source.type.values);
      const packed = new Uint8Array(run.count * MXFP4_BLOCK.bytes);
      this.readBytes(tensor, start * MXFP4_BLOCK.bytes, packed);
      const into = whole.subarray(run.at * size, (run.at + run.count) * size);
      if (codes === 'scales') {
        for (let i = 0; i < run.count; ++i) into[i] = required(packed[i * MXFP4_BLOCK.bytes]);
      } else mxfp4Codes(packed, run.count, into);
    }
    bytes.set(whole.subarray(from - first * size, from - first * size + bytes.length));
  }
}

/** The decoded values with indices from `first` to `end` - 1 of a tensor. */
interface Plane {
  readonly first: number;
  readonly end: number;
  readonly bytes: Buffer;
}

function changeAll(bytes: Uint8Array, change: (value: number) => number): void {
  const floats = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let at = 0; at < floats.length; at += 4) {
    floats.writeFloatLE(change(floats.readFloatLE(at)), at);
  }
}

function entryOf(part: GgufPart): GgufEntry {
  const { name, shape, change, codes, source, further = [] } = part;
  const isSame = further.every(({ type }) => type.dtype === source.type.dtype);
  const plain = change || !isSame ? 'f32' : (source.type.dtype ?? 'f32');
  const dtype = codes ? 'u8' : plain;
  return { name, dtype, shape, start: 0, end: numel(shape) * dtypeSize(dtype), part };
}

/**
 * Returns the tensor of the file that contains value `at` of a part, and the value's index in that
 * tensor. `unit`: 1 if `at` counts values; the number of values in a block if it counts blocks.
 */
function locate(
  { source, further = [] }: GgufPart,
  at: number,
  unit = 1,
): { source: GgufTensor; start: number } {
  let start = at;
  for (const tensor of [source, ...further]) {
    const values = numel(tensor.shape) / unit;
    if (start < values) return { source: tensor, start };
    start -= values;
  }
  throw new RangeError(`${source.name}: value ${at} is outside of the part`);
}

/** Returns the runs of `count` values of a part from index `from` on. */
const rangesOf = (
  { order, first = 0 }: GgufPart,
  { from, count }: { from: number; count: number },
): Iterable<ValueRun> =>
  order
    ? runsOf(order, from, count)
    : [{ at: 0, from: first + from, count, distance: 1, lanes: 1, apart: 0 }];
