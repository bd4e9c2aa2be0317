// Losses as modules, with the options of the functions that they call. Each returns a scalar by
// default.
import { namesOf, readOptions } from '../runtime/options.js';
import {
  type BceWithLogitsOptions,
  binaryCrossEntropyWithLogits,
  type CrossEntropyOptions,
  crossEntropy,
  type HuberLossOptions,
  huberLoss,
  type KlDivOptions,
  klDiv,
  type LossOptions,
  l1Loss,
  mse,
  type NllLossOptions,
  nllLoss,
  type SmoothL1LossOptions,
  smoothL1Loss,
  type Tensor,
} from '../tensor/index.js';
import { Module } from './module.js';

/** Mean squared error, (x - target)^2, as a module: see mse(). */
export class MSELoss extends Module {
  private readonly options: LossOptions;

  /** Throws DS_ARGUMENT for unknown options, as do all losses here. */
  constructor(options: LossOptions = {}) {
    super();
    this.options = readOptions('MSELoss', options, namesOf.LossOptions);
  }

  /** Maps input and target of one shape to a scalar; with reduction "none" to that shape. */
  override forward(x: Tensor, target: Tensor): Tensor {
    return mse(x, target, this.options);
  }
}

/** Mean absolute error, |x - target|, as a module: see l1Loss(). */
export class L1Loss extends Module {
  private readonly options: LossOptions;

  /** Throws DS_ARGUMENT for an unknown option. */
  constructor(options: LossOptions = {}) {
    super();
    this.options = readOptions('L1Loss', options, namesOf.LossOptions);
  }

  /** Maps input and target of one shape to a scalar; with reduction "none" to that shape. */
  override forward(x: Tensor, target: Tensor): Tensor {
    return l1Loss(x, target, this.options);
  }
}

/** Huber loss, squared below `delta` and linear above, as a module: see huberLoss(). */
export class HuberLoss extends Module {
  private readonly options: HuberLossOptions;

  /** Throws DS_ARGUMENT for an unknown option. */
  constructor(options: HuberLossOptions = {}) {
    super();
    this.options = readOptions('HuberLoss', options, namesOf.HuberLossOptions);
  }

  /** Maps input and target of one shape to a scalar; with reduction "none" to that shape. */
  override forward(x: Tensor, target: Tensor): Tensor {
    return huberLoss(x, target, this.options);
  }
}

/**
 * Smooth L1 loss as a module: see smoothL1Loss(). It is quadratic below `beta`, and above it the
 * absolute difference minus a constant.
 */
export class SmoothL1Loss extends Module {
  private readonly options: SmoothL1LossOptions;

  /** Throws DS_ARGUMENT for an unknown option. */
  constructor(options: SmoothL1LossOptions = {}) {
    super();
    this.options = readOptions('SmoothL1Loss', options, namesOf.SmoothL1LossOptions);
  }

  /** Maps input and target of one shape to a scalar; with reduction "none" to that shape. */
  override forward(x: Tensor, target: Tensor): Tensor {
    return smoothL1Loss(x, target, this.options);
  }
}

/** Kullback-Leibler divergence of log-probabilities and probabilities as a module: see klDiv(). */
export class KLDivLoss extends Module {
  private readonly options: KlDivOptions;

  /** Throws DS_ARGUMENT for an unknown option. */
  constructor(options: KlDivOptions = {}) {
    super();
    this.options = readOptions('KLDivLoss', options, namesOf.KlDivOptions);
  }

  /**
   * Maps log probabilities and a target of their shape to a scalar; with reduction "none" to that
   * shape.
   */
  override forward(x: Tensor, target: Tensor): Tensor {
    return klDiv(x, target, this.options);
  }
}

/**
 * Binary cross-entropy of logits as a module: see binaryCrossEntropyWithLogits(). The weights are
 * buffers of the module.
 */
export class BCEWithLogitsLoss extends Module {
  /** Factor of each element, broadcast to the input; null: 1. */
  readonly weight: Tensor | null;
  /** Factor of positive targets, broadcast to the input; null: 1. */
  readonly posWeight: Tensor | null;
  private readonly reduction: BceWithLogitsOptions['reduction'];

  /** The caller owns the tensors: keep() them if a scope made them. */
  constructor(given: BceWithLogitsOptions = {}) {
    super();
    const options = readOptions('BCEWithLogitsLoss', given, namesOf.BceWithLogitsOptions);
    this.weight = options.weight ?? null;
    this.posWeight = options.posWeight ?? null;
    this.reduction = options.reduction;
  }

  /**
   * Maps logits and targets in [0, 1] of one shape to a scalar; with reduction "none" to that
   * shape.
   */
  override forward(x: Tensor, target: Tensor): Tensor {
    return binaryCrossEntropyWithLogits(x, target, {
      weight: this.weight ?? undefined,
      posWeight: this.posWeight ?? undefined,
      reduction: this.reduction,
    });
  }
}

/**
 * Negative log-likelihood of log-probabilities as a module: see nllLoss(). The class weights are a
 * buffer of the module.
 */
export class NLLLoss extends Module {
  /** Weight of each class, [classes]; null: 1. */
  readonly weight: Tensor | null;
  private readonly options: NllLossOptions;

  /** The caller owns the class weights: keep() them if a scope made them. */
  constructor(given: NllLossOptions = {}) {
    super();
    const { weight, ...options } = readOptions('NLLLoss', given, namesOf.NllLossOptions);
    this.weight = weight ?? null;
    this.options = options;
  }

  /** Maps log-probabilities x [.., V] and classes [..] (i32 or i64) to the loss. */
  override forward(x: Tensor, target: Tensor): Tensor {
    return nllLoss(x, target, { ...this.options, weight: this.weight ?? undefined });
  }
}

/**
 * Cross-entropy of logits as a module: see crossEntropy(). The class weights are a buffer of the
 * module.
 */
export class CrossEntropyLoss extends Module {
  /** Weight of each class, [classes]; null: 1. */
  readonly weight: Tensor | null;
  private readonly options: CrossEntropyOptions;

  /**
   * Takes options, or only the ignored target. The caller owns the class weights: keep() them if a
   * scope made them.
   */
  constructor(given: CrossEntropyOptions | number = {}) {
    super();
    const options = typeof given === 'number' ? { ignoreIndex: given } : given;
    const { weight, ...rest } = readOptions<CrossEntropyOptions>(
      'CrossEntropyLoss',
      options,
      namesOf.CrossEntropyOptions,
    );
    this.weight = weight ?? null;
    this.options = rest;
  }

  /** Maps logits [.., V] and classes [..] (i32 or i64), or probabilities [.., V], to the loss. */
  override forward(logits: Tensor, target: Tensor): Tensor {
    return crossEntropy(logits, target, { ...this.options, weight: this.weight ?? undefined });
  }
}
