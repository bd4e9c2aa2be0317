// Selects the dtypes of a configuration: weights, gradient sums, communication.
import type { ResolvedConfig } from '../../../types/config.js';
import type { DType } from '../../runtime/dtype.js';

export const dtypeOf: Record<'fp16' | 'bf16' | 'fp32', DType> = {
  fp16: 'f16',
  bf16: 'bf16',
  fp32: 'f32',
};

/** The dtype of weights, activations and gradients of backward. */
export function weightDType({ fp16, bf16 }: ResolvedConfig): DType {
  if (fp16.enabled) return 'f16';
  return bf16.enabled ? 'bf16' : 'f32';
}

/**
 * The dtype of gradient sums over micro-batches: that of the weights, or f32 by
 * data_types.grad_accum_dtype.
 */
export function gradientDType(config: ResolvedConfig): DType {
  const { grad_accum_dtype: asked } = config.data_types;
  return asked === null ? weightDType(config) : dtypeOf[asked];
}

/** The dtype of floating buffers; undefined keeps the dtype of each. */
export function bufferDType({ data_types: section }: ResolvedConfig): DType | undefined {
  const { buffer_dtype: asked } = section;
  return asked === null ? undefined : dtypeOf[asked];
}
