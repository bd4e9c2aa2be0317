// Reads tensors of a GGUF file in the form of a model: unpacked, in its row order, under its names.

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

/** A tensor of the model, as a range of a tensor in the file. */
export interface GgufPart {
  /** The name in the model. */
  readonly name: string;
  readonly source: GgufTensor;
  readonly shape: readonly number[];
  /** Index of its first value in `source`. Default: 0. */
  readonly first?: number;
  /** More tensors. Their values follow the values of `source`. Default: none. */
  readonly further?: readonly GgufTensor[];
  /** Default: the order of the file. With `codes`, it counts blocks instead of values. */
  readonly order?: ValueOrder;
  /** Changes every value, which is then f32. Default: no change. */
  readonly change?: (value: number) => number;
  /** The codes or the scales of MXFP4 instead of values. Default: values. */
  readonly codes?: 'blocks' | 'scales';
}

/** A tensor of the model, and its bytes after unpacking. */
interface GgufEntry extends TensorEntry {
  readonly part: GgufPart;
}

/** Number of values that are unpacked at a time. */
const CHUNK = 2 ** 18;

/** An open GGUF file, or the files of a model in several. The caller of open() closes it. */
export class GgufFile {
  private readonly parts: ReadonlyMap<string, GgufPart>;
  /** Unpacked values of tensors whose values are not contiguous. */
  private readonly planes = new Map<GgufTensor, Plane>();

  private constructor(
    private readonly files: readonly InputFile[],
    readonly header: GgufHeader,
    readonly entries: readonly GgufEntry[],
  ) {
    this.parts = new Map(entries.map(({ name, part }) => [name, part]));
  }

  /**
   * Opens `path`, and the files that follow it. `partsOf` lists the tensors of the model. Throws
   * DS_CHECKPOINT for a damaged header, DS_IO, and errors of `partsOf`.
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
   * Fills `bytes` from byte `from` of an unpacked entry; blocks. Throws DS_IO if the file cannot be
   * read.
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
        const { source, start } = placeOf(part, run.from);
        if (isPlain) this.copy(source, start, into);
        else this.unpack(source, start, into);
      }
    }
    if (part.change) changeAll(bytes, part.change);
    // The next tensor has other planes.
    const { shape, order } = part;
    if (order && range.from + range.count === numel(shape)) this.planes.clear();
  }

  /**
   * Overwrites `tensor` with all values of the entry. It must be contiguous and have the dtype of
   * the entry.
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

  /** Fills `into` with the bytes of a tensor from byte `from` on. */
  private readBytes(tensor: GgufTensor, from: number, into: Uint8Array): void {
    const { file = 0, start, values } = tensor;
    if (values) into.set(new Uint8Array(Float32Array.from(values).buffer, from, into.length));
    else required(this.files[file]).readNow(start + from, into);
  }

  private copy(tensor: GgufTensor, first: number, into: Uint8Array): void {
    this.readBytes(tensor, first * tensor.type.bytes, into);
  }

  /** Writes values from `first` on as f32. */
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

  /** Writes values that are not contiguous in the file. */
  private gather(part: GgufPart, run: ValueRun, into: Uint8Array, isPlain: boolean): void {
    const { count, lanes, distance } = run;
    const size = into.length / count / lanes;
    const bytes = Buffer.from(into.buffer, into.byteOffset, into.length);
    for (let lane = 0; lane < lanes; ++lane) {
      let plane: Plane | null = null;
      // The index, in the whole part, of the first value of the plane's tensor.
      let base = 0;
      for (let i = 0; i < count; ++i) {
        const index = run.from + i * distance + lane * run.apart;
        if (plane === null || index < base + plane.first || index >= base + plane.end) {
          const { source, start } = placeOf(part, index);
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

  /** Unpacks the plane with value `at` of a tensor. Keeps the last plane of each tensor. */
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

  /** Fills `bytes` from byte `from` of the codes or the scales of MXFP4 blocks. */
  private readCodes(part: GgufPart, from: number, bytes: Uint8Array): void {
    const { codes, source } = part;
    const size = codes === 'scales' ? 1 : MXFP4_BLOCK.codes;
    const first = Math.floor(from / size);
    const count = Math.ceil((from + bytes.length) / size) - first;
    const whole = new Uint8Array(count * size);
    for (const run of rangesOf(part, { from: first, count })) {
      const { source: tensor, start } = placeOf(part, run.from, source.type.values);
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

/** Unpacked values [first, end) of a tensor. */
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
 * Finds value (or block) `at` of a part. Returns its tensor in the file, and its index in that
 * tensor.
 */
function placeOf(
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

/** Yields the runs of a range of a part. */
const rangesOf = (
  { order, first = 0 }: GgufPart,
  { from, count }: { from: number; count: number },
): Iterable<ValueRun> =>
  order
    ? runsOf(order, from, count)
    : [{ at: 0, from: first + from, count, distance: 1, lanes: 1, apart: 0 }];
