// Reads the weight quantization from an engine's configuration.
import type { QuantizeModelOptions } from '../models/quantize-model.js';
import type { ResolvedInferenceConfig } from './config/index.js';

type Weight = NonNullable<ResolvedInferenceConfig['quant']>['weight'];

/**
 * Returns the quantization of linear layers; null without it. `quant` takes precedence over dtype
 * "int8", which is 8 bits with one scale per row. Source: DeepSpeed's int8 of init_inference, and
 * its quantized_initialization.
 */
export function readQuantization({
  dtype,
  quant,
}: Pick<ResolvedInferenceConfig, 'dtype' | 'quant'>): QuantizeModelOptions | null {
  if (quant?.enabled && quant.weight.enabled) return readWeightOptions(quant.weight);
  return dtype === 'int8' ? { bits: 8 } : null;
}

function readWeightOptions({
  num_bits,
  quantized_initialization: initialization,
}: Weight): QuantizeModelOptions {
  const bits = initialization.num_bits ?? num_bits;
  return {
    bits,
    ...(initialization.group_size !== null && { groupSize: initialization.group_size }),
  };
}
