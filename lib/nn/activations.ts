// Activations as modules: for Sequential, and for models that list them in their tree.
import {
  elu,
  gelu,
  leakyRelu,
  relu,
  type SoftplusOptions,
  sigmoid,
  silu,
  softplus,
  type Tensor,
  tanh,
} from '../tensor/index.js';
import { Module } from './module.js';

/** max(x, 0), element by element; see relu. */
export class ReLU extends Module {
  /** max(0, x), of any shape. */
  override forward(x: Tensor): Tensor {
    return relu(x);
  }
}

/** x sigmoid(x), element by element; see silu. */
export class SiLU extends Module {
  /** x sigmoid(x), of any shape. */
  override forward(x: Tensor): Tensor {
    return silu(x);
  }
}

/** The hyperbolic tangent, element by element. */
export class Tanh extends Module {
  /** tanh(x), of any shape. */
  override forward(x: Tensor): Tensor {
    return tanh(x);
  }
}

/** 1 / (1 + exp(-x)), element by element. */
export class Sigmoid extends Module {
  /** 1 / (1 + e^-x), of any shape. */
  override forward(x: Tensor): Tensor {
    return sigmoid(x);
  }
}

/**
 * Gaussian error linear unit, exact ("none", the default as in PyTorch) or GPT-2's approximation
 * ("tanh"); see gelu.
 */
export class GELU extends Module {
  constructor(
    /** "tanh": the approximation by tanh; "none": the exact form. */
    readonly approximate: 'tanh' | 'none' = 'none',
  ) {
    super();
  }

  /** gelu(x), of any shape. */
  override forward(x: Tensor): Tensor {
    return gelu(x, this.approximate);
  }
}

/** x above 0, slope x below, element by element; see leakyRelu. */
export class LeakyReLU extends Module {
  constructor(
    /** Slope below 0. */
    readonly slope = 0.01,
  ) {
    super();
  }

  /** leakyRelu(x, slope), of any shape. */
  override forward(x: Tensor): Tensor {
    return leakyRelu(x, this.slope);
  }
}

/** x above 0, alpha (e^x - 1) below, element by element; see elu. */
export class ELU extends Module {
  constructor(
    /** The curve approaches -alpha below 0. */
    readonly alpha = 1,
  ) {
    super();
  }

  /** elu(x, alpha), of any shape. */
  override forward(x: Tensor): Tensor {
    return elu(x, this.alpha);
  }
}

/** log(1 + e^(beta x)) / beta, element by element; see softplus. */
export class Softplus extends Module {
  constructor(
    /** The options of softplus(). */
    readonly options: SoftplusOptions = {},
  ) {
    super();
  }

  /** softplus(x, options), of any shape. */
  override forward(x: Tensor): Tensor {
    return softplus(x, this.options);
  }
}
