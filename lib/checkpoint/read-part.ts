// Reads elements from a file: the intersection of a stored part and a wanted range.

import {
  type Box,
  type BoxRange,
  boxesOf,
  intersectRanges,
  isSameBox,
  partsOf,
  positionIn,
  runShape,
} from '../runtime/box.js';
import { Buffer } from '../runtime/buffer.js';
import { dtypeSize } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { contiguousStrides, numel } from '../runtime/view.js';
import { held, Tensor } from '../tensor/index.js';
import type { TensorEntry } from './header.js';
import type { SafetensorsFile } from './safetensors-file.js';
import { afterCompute, isHost, STAGING_BYTES } from './staging.js';

/** An entry of a file, and the range of its tensor that the entry stores. */
interface StoredPart {
  entry: TensorEntry;
  range: BoxRange;
}

/**
 * Minimum bytes of contiguous elements for a read of their own. Shorter runs are read together with
 * the bytes between them, because many small reads are slower.
 */
const DIRECT_BYTES = 128 * 2 ** 10;

/**
 * Overwrites the elements of `into` that the file contains. `into` is contiguous and holds the
 * elements of `wanted`. Both ranges are in canonical form. Host memory in addition: at most 32 MiB,
 * if runs of elements are short.
 */
export async function readPart(
  file: SafetensorsFile,
  { entry, range: stored }: StoredPart,
  wanted: BoxRange,
  into: Tensor,
): Promise<void> {
  const both = intersectRanges(stored, wanted);
  if (!both) return;
  if (isSameBox(stored.box, wanted.box)) {
    const [from, to] = [both.from - stored.from, both.from - wanted.from];
    return file.readRange(entry, { from, to, numel: both.numel }, into);
  }
  const reader = new BoxReader(file, { entry, range: stored }, wanted, into);
  try {
    for (const box of boxesOf(both)) await reader.read(box);
  } finally {
    reader.dispose();
  }
}

class BoxReader {
  private readonly itemBytes: number;
  /**
   * Staging buffers: one on the host; a second on the device of `into` if `into` is in device
   * memory.
   */
  private readonly staging: Buffer[] = [];

  constructor(
    private readonly file: SafetensorsFile,
    private readonly stored: StoredPart,
    private readonly wanted: BoxRange,
    private readonly into: Tensor,
  ) {
    this.itemBytes = dtypeSize(into.dtype);
  }

  /** Reads a box, which must lie inside the stored and the wanted box. */
  async read(box: Box): Promise<void> {
    const run = runShape(box, [this.stored.range.box, this.wanted.box]);
    if (numel(run) === numel(box.shape) || numel(run) * this.itemBytes >= DIRECT_BYTES) {
      for (const part of partsOf(box, run)) await this.readRun(part);
      return;
    }
    for (const slab of slabsOf(box, (box) => this.spanOf(box) * this.itemBytes <= STAGING_BYTES)) {
      await this.readSlab(slab);
    }
  }

  dispose(): void {
    for (const buffer of this.staging) buffer.release();
  }

  private async readRun(box: Box): Promise<void> {
    const from = this.positionInFile(box.offset);
    const to = positionIn(this.wanted.box, box.offset) - this.wanted.from;
    await this.file.readRange(this.stored.entry, { from, to, numel: numel(box.shape) }, this.into);
  }

  /**
   * Reads all bytes of the file from the first to the last element of the slab, then copies the
   * elements of the slab to `into`.
   */
  private async readSlab(slab: Box): Promise<void> {
    const { entry, range } = this.stored;
    const span = this.spanOf(slab);
    const from = this.positionInFile(slab.offset);
    const { device, buffer } = this.into;
    const [read, moved] = this.stagingBuffers();
    const flat = held(() => new Tensor(read.retain(), entry.dtype, [span]));
    try {
      await this.file.readRange(entry, { from, to: 0, numel: span }, flat);
    } finally {
      flat.release();
    }
    if (moved !== read) {
      const bytes = span * this.itemBytes;
      moved.copyFrom(read, { to: 0, from: 0, bytes }, device.compute);
    }
    const source = contiguousStrides(range.box.shape);
    const target = contiguousStrides(this.wanted.box.shape);
    const to = positionIn(this.wanted.box, slab.offset) - this.wanted.from;
    const args = {
      in: { buffer: moved, dtype: entry.dtype, offset: 0, shape: slab.shape, strides: source },
      out: {
        buffer,
        dtype: entry.dtype,
        offset: this.into.offset + to,
        shape: slab.shape,
        strides: target,
      },
    };
    if (isHost(buffer)) kernels.copyOnHost(args, device.compute);
    else kernels.copy(args);
    await afterCompute(device);
  }

  private stagingBuffers(): [Buffer, Buffer] {
    const { device, buffer } = this.into;
    const bytes = Math.min(STAGING_BYTES, numel(this.stored.entry.shape) * this.itemBytes);
    this.staging[0] ??= Buffer.allocatePinned(device, bytes);
    if (!isHost(buffer)) this.staging[1] ??= Buffer.allocate(device, bytes);
    const [read, moved = read] = this.staging as [Buffer, Buffer?];
    return [read, moved];
  }

  /**
   * Returns the number of stored elements from the first to the last element of a box, both
   * included.
   */
  private spanOf({ shape }: Box): number {
    const strides = contiguousStrides(this.stored.range.box.shape);
    return 1 + shape.reduce((sum, n, d) => sum + (n - 1) * required(strides[d]), 0);
  }

  private positionInFile(position: readonly number[]): number {
    const { box, from } = this.stored.range;
    return positionIn(box, position) - from;
  }
}

/** Halves `box` along its first dimension longer than 1, until `fits` accepts the parts. */
function* slabsOf(box: Box, fits: (slab: Box) => boolean): Generator<Box> {
  const d = box.shape.findIndex((n) => n > 1);
  if (d < 0 || fits(box)) {
    yield box;
    return;
  }
  const size = required(box.shape[d]);
  const half = Math.ceil(size / 2);
  const part = (low: number, high: number): Box => ({
    offset: box.offset.map((n, i) => (i === d ? n + low : n)),
    shape: box.shape.map((n, i) => (i === d ? high - low : n)),
  });
  yield* slabsOf(part(0, half), fits);
  yield* slabsOf(part(half, size), fits);
}
