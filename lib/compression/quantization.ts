// Quantization of the weights and inputs of linear layers.
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { inOrder, Tensor } from '../tensor/index.js';
import { quantizeValues, type Rounding } from './quantizers.js';
import {
  type InputTechnique,
  type Params,
  type Shared,
  straightThrough,
  type Technique,
  type Values,
} from './technique.js';

// Weight quantization: forward uses rounded weights, and the unrounded weights receive the
// gradients.

/** How a weight is rounded in a step. */
interface Precision {
  readonly bits: number;
  /** Fraction of the rounded weight in the used weight; the rest is the unrounded weight. */
  readonly fraction: number;
}

/**
 * Returns the precision of the `count`th step with quantization, from 1. It loses a bit at
 * quantization_period steps, at twice, at four times as many and so on; with period 0 in each step.
 * The fraction restarts at each loss of a bit. Source: DeepSpeed's runtime/quantize.py.
 */
export function precisionAt(
  count: number,
  shared: Shared<'weight_quantization'>,
  params: Params<'weight_quantization'>,
): Precision {
  const { start_bits: start, target_bits: target, quantization_period: period } = params;
  if (shared.quantize_weight_in_forward || count === Number.POSITIVE_INFINITY) {
    return { bits: target, fraction: 1 };
  }
  let [bits, last, next] = [start, 0, Math.max(1, period)];
  while (bits > target && count >= next) {
    [bits, last, next] = [bits - 1, next, period === 0 ? next + 1 : 2 * next];
  }
  const { enabled, quantize_change_ratio: change } = shared.fp16_mixed_quantize;
  return { bits, fraction: enabled ? Math.min(1, (count - last) * change) : 1 };
}

/** Returns the FNV-1a hash of `text`, as a seed for each name. */
function hashName(text: string): number {
  let hash = 0x811c9dc5;
  for (const byte of Buffer.from(text)) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return hash;
}

/**
 * Returns noise that depends only on the layer's name and the step: it is equal on every rank, in
 * each micro-batch, in recomputation and after a resume.
 */
function createNoise(name: string, step: number): (like: Tensor) => Tensor {
  return (like) => {
    const out = Tensor.empty(like.shape, 'f32', like.device);
    const range = { low: -0.5, high: 0.5, seed: hashName(name), offset: step };
    kernels.randomUniform({ out, ...range, ...inOrder });
    return out;
  };
}

/**
 * Returns a technique that rounds the weight of the layer `name` in forward, in `groups` parts.
 * DeepSpeed rounds the 16-bit copy after each update, or in forward. Both give the same numbers,
 * because the gradient of the rounded weight goes to the master weight in both.
 */
export function createWeightQuantization(
  { name, groups }: { name: string; groups: number },
  shared: Shared<'weight_quantization'>,
  params: Params<'weight_quantization'>,
): Technique {
  const { schedule_offset: offset, quantization_type: type, rounding } = shared;
  const isNoisy = rounding === 'stochastic' && !shared.quantize_weight_in_forward;
  const roundWeight = (weight: Tensor, step: number): Tensor => {
    const { bits, fraction } = precisionAt(step - offset + 1, shared, params);
    const noise = isNoisy && Number.isFinite(step) ? createNoise(name, step) : null;
    const rule: Rounding = { bits, type, groups, noise };
    const values = quantizeValues(weight, rule);
    return fraction === 1 ? values : weight.mul(1 - fraction).add(values.mul(fraction));
  };
  const compress = ({ weight, bias }: Values, step: number): Values => ({
    weight: straightThrough((values) => roundWeight(values, step))(weight),
    bias,
  });
  return { kind: 'weight_quantization', offset, compress };
}

// Activation quantization: rounds the inputs of linear layers to few bits.

/**
 * Returns a technique that rounds each row of the last dim by its own range; the gradient passes
 * unchanged. Source: DeepSpeed's range_calibration "dynamic".
 */
export function createActivationQuantization(
  { quantization_type: type, schedule_offset: offset }: Shared<'activation_quantization'>,
  { bits }: Params<'activation_quantization'>,
): InputTechnique {
  const roundRows = straightThrough((x) => {
    const groups = x.numel / required(x.shape.at(-1));
    return x.numel === 0 ? x : quantizeValues(x, { bits, type, groups, noise: null });
  });
  return { offset, compress: (x: Tensor) => roundRows(x) };
}
