// The dtypes that a configuration asks for: of weights, of gradient sums, and on the wire.
import type { ResolvedConfig } from '../../../types/config.js';
import type { DType } from '../../runtime/dtype.js';

/** The configuration's names of dtypes. */
export const dtypeOf: Record<'fp16' | 'bf16' | 'fp32', DType> = {
  fp16: 'f16',
  bf16: 'bf16',
  fp32: 'f32',
};

/** Of weights and activations, and of what backward writes. */
export function weightDType({ fp16, bf16 }: ResolvedConfig): DType {
  if (fp16.enabled) return 'f16';
  return bf16.enabled ? 'bf16' : 'f32';
}

/**
 * In which gradients are summed over micro-batches: that of the weights, unless
 * data_types.grad_accum_dtype says f32.
 */
export function gradientDType(config: ResolvedConfig): DType {
  const { grad_accum_dtype: asked } = config.data_types;
  return asked === null ? weightDType(config) : dtypeOf[asked];
}

/** Of floating buffers; undefined leaves each as it is. */
export function bufferDType({ data_types: section }: ResolvedConfig): DType | undefined {
  const { buffer_dtype: asked } = section;
  return asked === null ? undefined : dtypeOf[asked];
}
