// Engines without training: a placeholder optimizer, and quantized weights (DeepSpeed's
// ZeRO-Inference).
import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import { quantizeModel } from '../../models/quantize-model.js';
import type { Module } from '../../nn/module.js';
import type { DeclaredState } from '../../optim/declared-state.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { ParamGroup } from '../../optim/param-groups.js';

/** An optimizer without groups: every parameter is frozen. */
export class NoOptimizer implements Optimizer {
  readonly name = 'no optimizer';
  readonly groups: ParamGroup[] = [];

  declareState(): DeclaredState {
    return {};
  }

  update(): void {}
}

/**
 * Quantizes linear layers by the configuration before they move. Throws DS_CONFIG with an
 * optimizer, because quantized weights are not trained.
 */
export function quantizeWeights(
  module: Module,
  { weight_quantization: section }: ResolvedConfig,
  optimizer: Optimizer,
): void {
  const said = section?.quantized_initialization;
  if (!said) return;
  if (!(optimizer instanceof NoOptimizer)) {
    throw new DsError({
      code: 'DS_CONFIG',
      op: 'weight_quantization.quantized_initialization',
      expected: 'no optimizer, because quantized weights are not trained',
      got: optimizer.name,
      hint: 'To train adapters on them, call nn.quantizeModel() and peft.addLora() before initialize().',
    });
  }
  const { num_bits: bits, group_size: groupSize } = said;
  quantizeModel(module, { bits, ...(groupSize !== null && { groupSize }) });
}
