// Messages of 8- or 4-bit codes with a scale per block: ZeRO++'s quantization. Source: Wang et al.
// 2023, arXiv:2306.10209.
import { type DType, isFloating } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import type { View } from '../runtime/view.js';
import { held, Tensor } from '../tensor/index.js';
import { parameterAlignment } from './layout.js';

/** Elements per scale. Parameters begin at multiples of it, so no two share a block. */
export const BLOCK = parameterAlignment;

/** Whether values of `dtype` can be quantized. Other values are sent unchanged. */
export const hasCodes = (dtype: DType): boolean => isFloating(dtype) && dtype !== 'f64';

/**
 * A message of `numel` values, a multiple of BLOCK: 32-bit words of codes, then one f32 scale per
 * block. A code is the value divided by its block's scale, rounded to nearest. The scale is the
 * block's largest magnitude divided by (2^bits - 1) / 2.
 */
export class BlockCodes {
  constructor(
    /** Bits per code. */
    private readonly bits: 8 | 4,
    /** Values per message. */
    private readonly numel: number,
  ) {}

  /** 32-bit words per message. */
  get words(): number {
    return this.codeWords + this.numel / BLOCK;
  }

  private get codeWords(): number {
    return (this.numel * this.bits) / 32;
  }

  /** Returns uninitialized memory for `count` messages. The caller releases it. */
  allocate(count: number, { device }: Tensor): Tensor {
    return held(() => Tensor.empty([count * this.words], 'i32', device));
  }

  /** Quantizes `values` [numel] to message `index` of `messages`. */
  write(values: View, messages: Tensor, index: number, stream: Stream): void {
    const { bits } = this;
    const shaped = { in: matrix(values, this.numel), ...this.viewsOf(messages, index) };
    kernels.quantizeWeights({ ...shaped, bits, group: BLOCK }, stream);
  }

  /** Dequantizes message `index` to `values` [numel]. */
  read(messages: Tensor, index: number, values: View, stream: Stream): void {
    const { bits } = this;
    const shaped = { ...this.viewsOf(messages, index), out: matrix(values, this.numel) };
    kernels.dequantizeWeights({ ...shaped, zero: null, bits, group: BLOCK }, stream);
  }

  /** The codes and scales of a message; both have four bytes per element. */
  private viewsOf(messages: Tensor, index: number): { packed: View; scale: View } {
    const from = messages.offset + index * this.words;
    const packed = { ...matrix(messages, this.codeWords), offset: from };
    const scales = matrix(messages, this.numel / BLOCK);
    return { packed, scale: { ...scales, dtype: 'f32', offset: from + this.codeWords } };
  }
}

/** Returns `count` consecutive elements from the start of `of` as one row. */
function matrix({ buffer, dtype, offset }: View, count: number): View {
  return { buffer, dtype, offset, shape: [1, count], strides: [count, 1] };
}

/** Releases `tensor` in the order of `stream`, its last user. */
export function releaseOn(stream: Stream, tensor: Tensor): void {
  tensor.buffer.releaseOn(stream);
  tensor.release();
}
