// Blocks of 8- or 4-bit codes as messages between ranks: ZeRO++'s quantization. Source: Wang et al.
// 2023, arXiv:2306.10209.
import { type DType, isFloating } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import type { View } from '../runtime/view.js';
import { held, Tensor } from '../tensor/index.js';
import { slotAlignment } from './layout.js';

/** Elements with one scale: parameters begin at multiples of it, so that none shares one. */
export const BLOCK = slotAlignment;

/** Whether values of `dtype` can become codes; others travel as they are. */
export const hasCodes = (dtype: DType): boolean => isFloating(dtype) && dtype !== 'f64';

/**
 * A message of `numel` values, a multiple of BLOCK: words of codes, 32 / bits in each, and behind
 * them an f32 scale per block. A code is a value over its block's scale, which is the block's
 * largest magnitude over (2^bits - 1) / 2, rounded to the nearest.
 */
export class BlockCodes {
  constructor(
    /** Bits of a code. */
    private readonly bits: 8 | 4,
    /** Values of a message. */
    private readonly numel: number,
  ) {}

  /** 32-bit words of a message. */
  get words(): number {
    return this.codeWords + this.numel / BLOCK;
  }

  private get codeWords(): number {
    return (this.numel * this.bits) / 32;
  }

  /** Memory for `count` messages, contents undefined; the caller releases it. */
  allocate(count: number, { device }: Tensor): Tensor {
    return held(() => Tensor.empty([count * this.words], 'i32', device));
  }

  /** `values` [numel] as message number `index` of `messages`. */
  write(values: View, messages: Tensor, index: number, stream: Stream): void {
    const { bits } = this;
    const shaped = { in: matrix(values, this.numel), ...this.partsOf(messages, index) };
    kernels.quantizeWeights({ ...shaped, bits, group: BLOCK }, stream);
  }

  /** The values of message number `index` into `values` [numel]. */
  read(messages: Tensor, index: number, values: View, stream: Stream): void {
    const { bits } = this;
    const shaped = { ...this.partsOf(messages, index), out: matrix(values, this.numel) };
    kernels.dequantizeWeights({ ...shaped, zero: null, bits, group: BLOCK }, stream);
  }

  /** Codes and scales of a message: both have four bytes an element. */
  private partsOf(messages: Tensor, index: number): { packed: View; scale: View } {
    const from = messages.offset + index * this.words;
    const packed = { ...matrix(messages, this.codeWords), offset: from };
    const scales = matrix(messages, this.numel / BLOCK);
    return { packed, scale: { ...scales, dtype: 'f32', offset: from + this.codeWords } };
  }
}

/** `count` neighbouring elements from where `of` begins, as one row. */
function matrix({ buffer, dtype, offset }: View, count: number): View {
  return { buffer, dtype, offset, shape: [1, count], strides: [count, 1] };
}

/** The last user of `tensor` is `stream`. */
export function releaseOn(stream: Stream, tensor: Tensor): void {
  tensor.buffer.releaseOn(stream);
  tensor.release();
}
