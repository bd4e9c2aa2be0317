// The optimizer of a Trainer whose configuration has none: AdamW, which decays matrices alone.

import type { Module } from '../nn/index.js';
import { AdamW, type AdamWOptions } from '../optim/adamw.js';
import type { Optimizer } from '../optim/optimizer.js';

type Hyperparameter = 'lr' | 'betas' | 'eps' | 'weightDecay';

/**
 * AdamW over what wants a gradient: tensors of two dims and more decay, biases and the weights of
 * norms do not. Source: transformers' Trainer.
 */
export function ownOptimizer(
  model: Module,
  { lr, betas, eps, weightDecay }: Required<Pick<AdamWOptions, Hyperparameter>>,
  fp32OptimizerStates: boolean,
): Optimizer {
  const trained = model.parameters().filter(({ requiresGrad }) => requiresGrad);
  const groups = [
    { params: trained.filter(({ ndim }) => ndim >= 2), weightDecay },
    { params: trained.filter(({ ndim }) => ndim < 2), weightDecay: 0 },
  ];
  return new AdamW(
    groups.filter(({ params }) => params.length > 0),
    { lr, betas, eps, fp32OptimizerStates },
  );
}
