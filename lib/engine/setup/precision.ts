// Precision of an engine: dtypes of weights, gradients and buffers, the loss scaler, and quantized
// weights.

import type { ResolvedConfig } from '../../../types/config.js';
import { quantizeModel } from '../../models/quantize-model.js';
import { DynamicLossScaler, type LossScaler, StaticLossScaler } from '../../optim/loss-scale.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { DType } from '../../runtime/dtype.js';
import { configError } from '../../runtime/input-errors.js';
import type { BuildInputs } from './clients.js';
import { NoOptimizer } from './optimizer.js';

/**
 * Returns the loss scaler: scale 1 without fp16, a static scale if loss_scale is set, else a
 * dynamic one.
 */
export function buildScaler({ fp16 }: ResolvedConfig): LossScaler {
  if (!fp16.enabled) return new StaticLossScaler(1);
  if (fp16.loss_scale > 0) return new StaticLossScaler(fp16.loss_scale);
  return new DynamicLossScaler({
    initialScalePower: fp16.initial_scale_power,
    window: fp16.loss_scale_window,
    hysteresis: fp16.hysteresis,
    consecutiveHysteresis: fp16.consecutive_hysteresis,
    minScale: fp16.min_loss_scale,
  });
}

/** By precision: its dtype. */
export const dtypeOf = { fp16: 'f16', bf16: 'bf16', fp32: 'f32' } as const;

/** Returns the dtype of weights, activations and gradients of backward. */
export function weightDType({ fp16, bf16 }: ResolvedConfig): DType {
  if (fp16.enabled) return 'f16';
  return bf16.enabled ? 'bf16' : 'f32';
}

/** Returns the dtype of gradient sums over micro-batches (data_types.grad_accum_dtype). */
export function gradientDType(config: ResolvedConfig): DType {
  const { grad_accum_dtype: dtype } = config.data_types;
  return dtype === null ? weightDType(config) : dtypeOf[dtype];
}

/** Returns the dtype of floating-point buffers. Undefined: each buffer keeps its dtype. */
export function bufferDType({ data_types: section }: ResolvedConfig): DType | undefined {
  const { buffer_dtype: dtype } = section;
  return dtype === null ? undefined : dtypeOf[dtype];
}

/**
 * Quantizes linear layers, before they move to the device. Throws DS_CONFIG if there is an
 * optimizer.
 */
export function quantizeWeights(
  { module, config: { weight_quantization: section } }: BuildInputs,
  optimizer: Optimizer,
): void {
  const initialization = section?.quantized_initialization;
  if (!initialization) return;
  if (!(optimizer instanceof NoOptimizer)) {
    throw configError(
      'weight_quantization.quantized_initialization',
      'no optimizer, because quantized weights are not trained',
      optimizer.name,
      'To train adapters on them, call nn.quantizeModel() and peft.addLora() before initialize().',
    );
  }
  const { num_bits: bits, group_size: groupSize } = initialization;
  quantizeModel(module, { bits, ...(groupSize !== null && { groupSize }) });
}
