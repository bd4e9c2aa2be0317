// Checks the conditions of exact rollouts: training must compute the same forward as the sampler.
import type { ResolvedConfig } from '../../config/index.js';
import type { CausalLM } from '../../models/causal-lm.js';
import { groupOf } from '../../parallel/index.js';
import { argumentError } from '../../runtime/input-errors.js';

/** Throws DS_ARGUMENT if layers of the model are split over ranks. */
export function requireWholeLayers(op: string, model: CausalLM): void {
  if (groupOf(model) === null) return;
  throw argumentError(
    op,
    'a model without tensor parallelism',
    'a model with layers divided over ranks',
  );
}

/** Throws DS_ARGUMENT if a section of the configuration changes the forward of training. */
export function requireExact(method: string, config: ResolvedConfig): void {
  const { fp8, progressive_layer_drop, compression_training, data_efficiency } = config;
  const { data_routing: routing } = data_efficiency;
  const { layer_reduction: _, ...techniques } = compression_training;
  const sections = {
    fp8: fp8.enabled,
    progressive_layer_drop: progressive_layer_drop?.enabled,
    compression_training: Object.values(techniques).some(
      (technique) => technique.shared_parameters.enabled,
    ),
    random_ltd: data_efficiency.enabled && routing.enabled && routing.random_ltd.enabled,
  };
  const odd = Object.entries(sections).find(([, acts]) => acts);
  if (odd)
    throw argumentError(
      `${method} exactRollouts`,
      `a configuration without ${odd[0]}`,
      `a configuration with ${odd[0]}`,
    );
}
