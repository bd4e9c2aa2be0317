// The optimizer of a Trainer whose configuration has none: AdamW, which decays neither biases nor
// norms.

import type { Module, Parameter } from '../nn/index.js';
import { AdamW, type AdamWOptions } from '../optim/adamw.js';
import type { Optimizer } from '../optim/optimizer.js';

type Hyperparameter = 'lr' | 'betas' | 'eps' | 'weightDecay';

/** The lengths that DoRA trains, a tensor of one dim, are neither bias nor norm. */
const MAGNITUDE = /(^|\.)lora_magnitude_vector$/;

/**
 * AdamW over what wants a gradient: tensors of two dims and more decay, and DoRA's magnitudes;
 * biases and the weights of norms do not. Source: transformers' Trainer.
 */
export function ownOptimizer(
  model: Module,
  { lr, betas, eps, weightDecay }: Required<Pick<AdamWOptions, Hyperparameter>>,
  fp32OptimizerStates: boolean,
): Optimizer {
  const decayed: Parameter[] = [];
  const spared: Parameter[] = [];
  for (const [name, parameter] of model.namedParameters()) {
    if (!parameter.requiresGrad) continue;
    (parameter.ndim >= 2 || MAGNITUDE.test(name) ? decayed : spared).push(parameter);
  }
  const groups = [
    { params: decayed, weightDecay },
    { params: spared, weightDecay: 0 },
  ];
  return new AdamW(
    groups.filter(({ params }) => params.length > 0),
    { lr, betas, eps, fp32OptimizerStates },
  );
}
