// Creates the optimizer of a Trainer if the configuration has none.

import type { Module, Parameter } from '../nn/index.js';
import { AdamW, type AdamWOptions } from '../optim/adamw.js';
import { AdamW8bit } from '../optim/adamw8bit.js';
import type { Optimizer } from '../optim/optimizer.js';

/** Optimizers that a Trainer builds, by name. */
export const OWN_OPTIMIZERS = { AdamW, AdamW8bit } as const;

/** Names of these optimizers, as in `optimizer.type`. */
export type OwnOptimizerName = keyof typeof OWN_OPTIMIZERS;

type Hyperparameter = 'lr' | 'betas' | 'eps' | 'weightDecay';

/** DoRA's magnitude vectors, which have one dim but are neither biases nor norms. */
const MAGNITUDE = /(^|\.)lora_magnitude_vector$/;

/**
 * Creates the optimizer `name` over all trained parameters. Tensors with two or more dims decay,
 * and so do DoRA's magnitudes; biases and the weights of norms do not. Source: transformers'
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
