// The optimizer of a Trainer without one in its configuration.

import type { Module, Parameter } from '../nn/index.js';
import { AdamW, type AdamWOptions } from '../optim/adamw.js';
import { AdamW8bit } from '../optim/adamw8bit.js';
import type { Optimizer } from '../optim/optimizer.js';

/** Optimizers that a Trainer builds by their names. */
export const OWN_OPTIMIZERS = { AdamW, AdamW8bit } as const;

/** Names of these optimizers, as in `optimizer.type`. */
export type OwnOptimizerName = keyof typeof OWN_OPTIMIZERS;

type Hyperparameter = 'lr' | 'betas' | 'eps' | 'weightDecay';

/** The lengths that DoRA trains, a tensor of one dim, are neither bias nor norm. */
const MAGNITUDE = /(^|\.)lora_magnitude_vector$/;

/**
 * The optimizer `name` over all trained parameters. Tensors of two dims and more decay, and DoRA's
 * magnitudes; biases and the weights of norms do not. Source: transformers' Trainer.
 */
export function ownOptimizer(
  model: Module,
  { lr, betas, eps, weightDecay }: Required<Pick<AdamWOptions, Hyperparameter>>,
  { name, fp32OptimizerStates }: { name: OwnOptimizerName; fp32OptimizerStates: boolean },
): Optimizer {
  const decayed: Parameter[] = [];
  const spared: Parameter[] = [];
  for (const [path, parameter] of model.namedParameters()) {
    if (!parameter.requiresGrad) continue;
    (parameter.ndim >= 2 || MAGNITUDE.test(path) ? decayed : spared).push(parameter);
  }
  const all = [
    { params: decayed, weightDecay },
    { params: spared, weightDecay: 0 },
  ];
  const groups = all.filter(({ params }) => params.length > 0);
  if (name === 'AdamW8bit') return new AdamW8bit(groups, { lr, betas, eps });
  return new AdamW(groups, { lr, betas, eps, fp32OptimizerStates });
}
