// Activation quantization: rounds the inputs of linear layers to few bits.
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';
import { quantized } from './quantizers.js';
import { type CompressionSection, type InputTechnique, straightThrough } from './technique.js';

type Section = CompressionSection['activation_quantization'];

/**
 * Rounds each row of the last dim by its own range; the gradient passes unchanged. Source:
 * DeepSpeed's range_calibration "dynamic".
 */
export function activationQuantization(
  { quantization_type: type, schedule_offset: offset }: Section['shared_parameters'],
  { bits }: Section['different_groups'][string]['params'],
): InputTechnique {
  const rounded = straightThrough((x) => {
    const groups = x.numel / required(x.shape.at(-1));
    return x.numel === 0 ? x : quantized(x, { bits, type, groups, noise: null });
  });
  return { offset, compress: (x: Tensor) => rounded(x) };
}
