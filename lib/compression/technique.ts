// Declares compression techniques, which transform the weight and the bias of a layer.

import type { ResolvedConfig } from '../../types/config.js';
import { required } from '../runtime/required.js';
import { customFunction, noGrad, scope, type Tensor } from '../tensor/index.js';

/** The section of a configuration, with its defaults. */
export type CompressionSection = ResolvedConfig['compression_training'];

/** The parameters that all layers of a technique share. */
export type Shared<Kind extends TechniqueKind> = CompressionSection[Kind]['shared_parameters'];

/** The parameters of a group of layers. */
export type Params<Kind extends TechniqueKind> =
  CompressionSection[Kind]['different_groups'][string]['params'];

type TechniqueKind = Exclude<keyof CompressionSection, 'layer_reduction'>;

/** Weight and bias of a layer's forward. */
export interface Values {
  /** The weight [outputs, inputs], or a table [rows, channels]. */
  readonly weight: Tensor;
  /** The bias [outputs]; null without one. */
  readonly bias: Tensor | null;
}

/** The step number after the end of a run, at which all techniques have their final values. */
export const FINISHED = Number.POSITIVE_INFINITY;

/** Computes compressed values from a layer's values; differentiable. */
export interface Technique {
  /** Key of the technique in compression_training. */
  readonly kind: keyof CompressionSection;
  /** Global steps before it acts. */
  readonly offset: number;
  /** Returns the values after `step` global steps, at least `offset`. */
  compress(values: Values, step: number): Values;
  /** Returns 1 for remaining and 0 for removed elements, for a technique that can shrink layers. */
  readonly mask?: () => Tensor;
}

/** Computes a compressed input from a layer's input; differentiable. */
export interface InputTechnique {
  /** Global steps before it acts. */
  readonly offset: number;
  /** Returns the input that the layer computes with, in its shape and dtype. */
  compress(x: Tensor): Tensor;
}

/**
 * Returns a function with the values of `body`, which keeps shape and dtype, and with the gradient
 * 1. Source: the straight-through estimator of Bengio et al. 2013.
 */
export function straightThrough(body: (x: Tensor) => Tensor): (x: Tensor) => Tensor {
  return customFunction<Tensor>({
    name: 'straight_through',
    forward: (_context, x) => noGrad(() => scope(() => body(x))),
    backward: (_context, grad) => required(grad),
  });
}
