// Computes a digest of the input tensors of a step, on their device.

import { createHash } from 'node:crypto';
import type { Buffer } from '../../runtime/buffer.js';
import { withoutObserver } from '../../runtime/call.js';
import type { Device } from '../../runtime/device.js';
import { dtypeSize } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import type { View } from '../../runtime/view.js';
import { held, noGrad, Tensor, tensorsIn } from '../../tensor/index.js';

/** Bytes per kernel call; longer tensors are divided. */
const CHUNK = 2 ** 20;
/** Each chunk starts at different weights, so the order of tensors counts. */
const SHIFTS = 4096;
const SHIFT = 97;
/** A weight times a byte fits into an i32. */
const WEIGHT_BITS = 23;
/** Outlines are integers below this limit, which f32 represents exactly. */
const OUTLINES = 2 ** 24;

/** Weights of the byte sum: the same pseudo-random numbers on every rank. */
export class DigestWeights {
  private weights: Tensor | null = null;

  constructor(private readonly device: Device) {}

  /** Returns `count` weights from index `first` as a contiguous i32 view. */
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

/** Xorshift32 with a fixed seed; never 0. */
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

/** The outputs of a digest: f32 elements in this rank's row. */
export interface DigestOutputs {
  /** Holds the bits of an i32. */
  bits: Tensor;
  /** Holds an integer below 2^24; 0 without a tensor. */
  outline: Tensor;
}

/**
 * Digests the tensors between two calls of report(). The device sums weighted bytes in the order of
 * its compute stream; the host does not wait. Shapes, dtypes, and values in host memory of a GPU
 * engine enter through the outline.
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

  /** Writes the digest since the last call into the outputs, and restarts. */
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
    // The next chunk overwrites the bits; without one, report() clears them.
    if (this.chunks > 0) this.areBitsReported = true;
    this.outline = 0x811c9dc5;
    this.chunks = 0;
    this.isEmpty = true;
  }

  /** FNV-1a hash. */
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

  /** The sum modulo 2^32 does not depend on the order of additions. */
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
