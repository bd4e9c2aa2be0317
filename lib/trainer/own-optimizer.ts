// Creates the optimizer of a Trainer, for a configuration without an optimizer.

import type { Module, Parameter } from '../nn/index.js';
import { AdamW, type AdamWOptions } from '../optim/adamw.js';
import { AdamW8bit } from '../optim/adamw8bit.js';
import type { Optimizer } from '../optim/optimizer.js';

/** The optimizers that a Trainer can create, by name. */
export const OWN_OPTIMIZERS = { AdamW, AdamW8bit } as const;

/** Names of these optimizers, as in `optimizer.type` of the configuration. */
export type OwnOptimizerName = keyof typeof OWN_OPTIMIZERS;

type Hyperparameter = 'lr' | 'betas' | 'eps' | 'weightDecay';

/** Matches DoRA's magnitude vectors, which have one dim but are neither biases nor norms. */
const MAGNITUDE = /(^|\.)lora_magnitude_vector$/;

/**
 * Creates the optimizer `name` for all trained parameters. Weight decay applies to parameters with
 * two or more dims and to DoRA's magnitudes, but not to biases and norms, as in transformers'
 * Trainer.
 */
export function createOptimizer(
  model: Module,
  { lr, betas, eps, weightDecay }: Required<Pick<AdamWOptions, Hyperparameter>>,
  { name, fp32OptimizerStates }: { name: OwnOptimizerName; fp32OptimizerStates: boolean },
): Optimizer {
  const decayed: Parameter[] = [];
  const undecayed: Parameter[] = [];
  for (const [path, parameter] of model.namedParameters()) {
    if (!parameter.requiresGrad) continue;
    (parameter.ndim >= 2 || MAGNITUDE.test(path) ? decayed : undecayed).push(parameter);
  }
  const candidates = [
    { params: decayed, weightDecay },
    { params: undecayed, weightDecay: 0 },
  ];
  const groups = candidates.filter(({ params }) => params.length > 0);
  if (name === 'AdamW8bit') return new AdamW8bit(groups, { lr, betas, eps });
  return new AdamW(groups, { lr, betas, eps, fp32OptimizerStates });
}
