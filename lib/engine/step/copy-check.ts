// Detects ranks that must do identical work but got different batches, before their copies of the
// model diverge.

import { createHash } from 'node:crypto';
import type { Axis, MeshShape } from '../../comm/index.js';
import { AXIS } from '../../comm/mesh-shape.js';
import { DsError } from '../../errors.js';
import type { Buffer } from '../../runtime/buffer.js';
import { withoutObserver } from '../../runtime/call.js';
import type { Device } from '../../runtime/device.js';
import { dtypeSize } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import type { View } from '../../runtime/view.js';
import { held, noGrad, Tensor, tensorsIn } from '../../tensor/index.js';
import { MODEL } from '../ranks.js';
import type { BatchUse, DigestOutputs, ReportedRows } from './step-rows.js';

/**
 * Relative tolerance. It is larger than the differences of kernels without a fixed order of sums,
 * and smaller than the differences between batches.
 */
const LOSS_TOLERANCE = 1e-3;
const SQUARES_TOLERANCE = 1e-2;

/**
 * Returns the first two ranks on different positions of the axes `copies` only, if their numbers
 * differ by more than `tolerance`. Returns null if all such numbers agree.
 */
export function findDifferentCopies(
  { shape, copies }: { shape: MeshShape; copies: readonly Axis[] },
  numbersOf: (rank: number) => Float32Array,
  tolerance: number,
): [first: number, other: number] | null {
  for (const [first = 0, ...others] of shape.groups(...copies)) {
    const ownNumbers = numbersOf(first);
    const other = others.find((rank) => !isNear(ownNumbers, numbersOf(rank), tolerance));
    if (other !== undefined) return [first, other];
  }
  return null;
}

function isNear(a: Float32Array, b: Float32Array, tolerance: number): boolean {
  return a.every((value, i) => {
    const other = required(b[i]);
    const largest = Math.max(Math.abs(value), Math.abs(other));
    // A sum may overflow in one order of additions and not in another.
    return !Number.isFinite(largest) || Math.abs(value - other) <= tolerance * largest;
  });
}

/** Two ranks that should have equal numbers, but do not. */
export interface CopyMismatch {
  ranks: readonly [first: number, other: number];
  /** Axes along which a model has several ranks. */
  axes: readonly Axis[];
  /** What differs. */
  what: BatchUse | 'losses or gradients';
}

/** The ranks of a job, and which of their batches to compare. */
interface CopyCheck {
  shape: MeshShape;
  /** Axes along which ranks are identical. */
  copies: readonly Axis[];
  /** Batches that must be equal on all ranks of one model. */
  compared: readonly BatchUse[];
}

/**
 * Returns two ranks of one model with different batches in this step, or null. A rank without such
 * a batch is not compared, because the middle stages of a pipeline read no batch.
 */
export function findOtherBatch(
  rows: Pick<ReportedRows, 'digestOf'>,
  { shape, compared }: CopyCheck,
): CopyMismatch | null {
  for (const group of shape.groups(...MODEL)) {
    for (const what of compared) {
      const reported = group.map((rank) => ({ rank, ...rows.digestOf(rank, what) }));
      const [first, ...others] = reported.filter(({ outline }) => outline !== 0);
      const other = others.find(
        ({ bits, outline }) => bits !== first?.bits || outline !== first.outline,
      );
      if (first && other) return { ranks: [first.rank, other.rank], axes: axesOf(shape), what };
    }
  }
  return null;
}

/**
 * Returns two copies of the model with different results in this step, or null. Compares losses
 * first, because a loss belongs to one rank. Then compares squares of gradients, which include all
 * data ranks of a copy. Use it for the first step only: later, rounding may have made copies
 * differ.
 */
export function findDifferentResults(
  rows: Pick<ReportedRows, 'lossOf' | 'squaresOf'>,
  among: CopyCheck,
): CopyMismatch | null {
  const lossOf = (rank: number) => Float32Array.of(rows.lossOf(rank));
  const squaresOf = (rank: number) => rows.squaresOf(rank);
  const found =
    findDifferentCopies(among, lossOf, LOSS_TOLERANCE) ??
    findDifferentCopies(among, squaresOf, SQUARES_TOLERANCE);
  return found && { ranks: found, axes: axesOf(among.shape), what: 'losses or gradients' };
}

const axesOf = ({ sizes }: MeshShape): Axis[] => MODEL.filter((axis) => sizes[axis] > 1);

/**
 * Returns the error that every rank throws. `step` counts from 1. `difference` names the values
 * that differ.
 */
export function mismatchError(
  { ranks: [first, other], axes, what }: CopyMismatch,
  step: number,
  difference: string = what,
): DsError {
  const isPipeline = axes.includes(AXIS.pipeline) && what !== 'losses or gradients';
  return new DsError({
    code: 'DS_COMM',
    op: 'engine.step',
    expected: `the same batches on ranks that differ only on ${axes.join(', ')}`,
    got: `other ${difference} on rank ${other} than on rank ${first} in step ${step}`,
    hint: `Distribute samples by engine.dpRank and engine.dpWorldSize, like trainLoader.${isPipeline ? ' A pipeline stage that does not read a batch may pass null.' : ''}`,
  });
}

/** Bytes per kernel call. Longer tensors are divided into chunks. */
const CHUNK = 2 ** 20;

/** Each chunk starts at another weight, so that the order of tensors changes the digest. */
const SHIFTS = 4096;
const SHIFT = 97;

/** A weight has this many bits, so that weight times byte fits into an i32. */
const WEIGHT_BITS = 23;

/** Outlines are below this limit. f32 represents integers up to here exactly. */
const OUTLINES = 2 ** 24;

/** The weights of the byte sum: the same pseudo-random numbers on every rank. */
export class DigestWeights {
  private weights: Tensor | null = null;

  constructor(private readonly device: Device) {}

  /** Returns `count` weights from index `first` on, as a contiguous i32 view. */
  view(first: number, count: number): View {
    const { buffer, offset } = this.upTo(count);
    return vector(buffer, 'i32', offset + first, count);
  }

  dispose(): void {
    this.weights?.release();
    this.weights = null;
  }

  private upTo(count: number): Tensor {
    const known = this.weights;
    if (known && known.numel >= count + SHIFTS) return known;
    const size = 2 ** Math.ceil(Math.log2(count)) + SHIFTS;
    known?.release();
    const next = held(() => Tensor.from(randomWeights(size), { device: this.device }));
    this.weights = next;
    return next;
  }
}

/** Returns numbers of Xorshift32 with a fixed seed. They are never 0. */
function randomWeights(count: number): Int32Array {
  const weights = new Int32Array(count);
  let state = 0x9e3779b9;
  for (let i = 0; i < count; ++i) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    weights[i] = (state >>> (32 - WEIGHT_BITS)) | 1;
  }
  return weights;
}

/**
 * A digest of batches, so that ranks can compare them. The device sums weighted bytes in the order
 * of its compute stream; the host does not wait. The outline contains shapes, dtypes, and values of
 * tensors that are not on the engine's device.
 */
export class InputDigest {
  private outline = 0x811c9dc5;
  private chunks = 0;
  private isEmpty = true;
  private reportedOutline = 0;
  private areBitsReported = false;

  constructor(
    private readonly outputs: DigestOutputs,
    private readonly weights: DigestWeights,
  ) {}

  /** Adds the tensors in `values`, in order. */
  add(values: unknown): void {
    const { device } = this.outputs.bits;
    for (const tensor of tensorsIn(values)) {
      this.isEmpty = false;
      this.hashText(`${tensor.dtype} ${tensor.shape.join()};`);
      if (tensor.numel === 0) continue;
      if (tensor.device === device) withoutObserver(() => this.addBytes(tensor));
      else this.hashText(createHash('sha256').update(tensor.toRaw()).digest('base64'));
    }
  }

  /**
   * Writes the digest of all tensors since the last call to the outputs, and begins a new digest.
   */
  report(): void {
    const { bits, outline } = this.outputs;
    const value = this.isEmpty ? 0 : 1 + ((this.outline >>> 0) % (OUTLINES - 1));
    if (value !== this.reportedOutline) kernels.fill({ out: outline, value });
    if (this.chunks === 0 && this.areBitsReported) kernels.fill({ out: bits, value: 0 });
    this.reportedOutline = value;
    this.areBitsReported = this.chunks > 0;
    this.drop();
  }

  /** Drops the tensors since the last report(). */
  drop(): void {
    // The next chunk overwrites the bits. Without a next chunk, report() clears them.
    if (this.chunks > 0) this.areBitsReported = true;
    this.outline = 0x811c9dc5;
    this.chunks = 0;
    this.isEmpty = true;
  }

  /** Adds text to the outline by the FNV-1a hash. */
  private hashText(text: string): void {
    for (let i = 0; i < text.length; ++i) {
      this.outline = Math.imul(this.outline ^ text.charCodeAt(i), 0x01000193);
    }
  }

  private addBytes(tensor: Tensor): void {
    const flat = tensor.isContiguous ? tensor : noGrad(() => held(() => tensor.contiguous()));
    const size = dtypeSize(flat.dtype);
    const bytes = flat.numel * size;
    for (let at = 0; at < bytes; at += CHUNK) {
      const count = Math.min(CHUNK, bytes - at);
      this.addChunk(vector(flat.buffer, 'u8', flat.offset * size + at, count));
    }
    if (flat !== tensor) flat.release();
  }

  /** Adds bytes to the sum. The sum modulo 2^32 does not depend on the order of additions. */
  private addChunk(bytes: View): void {
    const { bits } = this.outputs;
    const count = required(bytes.shape[0]);
    const weights = this.weights.view((this.chunks * SHIFT) % SHIFTS, count);
    const wide = held(() => Tensor.empty([count], 'i32', bits.device));
    kernels.copy({ in: bytes, out: wide });
    kernels.binary({ a: wide, b: weights, out: wide, op: 'mul', accumulate: false });
    const out = vector(bits.buffer, 'i32', bits.offset, 1);
    kernels.reduce({ in: wide, out, op: 'sum', accumulate: this.chunks > 0 });
    wide.release();
    this.chunks++;
  }
}

const vector = (buffer: Buffer, dtype: View['dtype'], offset: number, count: number): View => ({
  buffer,
  dtype,
  offset,
  shape: [count],
  strides: [1],
});
