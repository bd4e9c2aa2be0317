// What an engine's configuration says of weights in few bits.
import type { QuantizeModelOptions } from '../models/quantize-model.js';
import type { ResolvedInferenceConfig } from './config/index.js';

type Weight = NonNullable<ResolvedInferenceConfig['quant']>['weight'];

/**
 * How linear layers are to be stored; null where they stay as they are. `quant` says more than
 * dtype "int8", which is 8 bits with a step for each row. Source: DeepSpeed's int8 of
 * init_inference, and its quantized_initialization.
 */
export function quantizationOf({
  dtype,
  quant,
}: Pick<ResolvedInferenceConfig, 'dtype' | 'quant'>): QuantizeModelOptions | null {
  if (quant?.enabled && quant.weight.enabled) return optionsOf(quant.weight);
  return dtype === 'int8' ? { bits: 8 } : null;
}

function optionsOf({ num_bits, quantized_initialization: said }: Weight): QuantizeModelOptions {
  const bits = said.num_bits ?? num_bits;
  return { bits, ...(said.group_size !== null && { groupSize: said.group_size }) };
}
