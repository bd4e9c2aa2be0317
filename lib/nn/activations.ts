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

/** The activation max(x, 0), element by element; see relu. */
export class ReLU extends Module {
  /** Returns max(0, x), of any shape. */
  override forward(x: Tensor): Tensor {
    return relu(x);
  }
}

/** The activation x sigmoid(x), element by element; see silu. */
export class SiLU extends Module {
  /** Returns x sigmoid(x), of any shape. */
  override forward(x: Tensor): Tensor {
    return silu(x);
  }
}

/** The activation tanh(x), element by element. */
export class Tanh extends Module {
  /** Returns tanh(x), of any shape. */
  override forward(x: Tensor): Tensor {
    return tanh(x);
  }
}

/** The activation 1 / (1 + exp(-x)), element by element. */
export class Sigmoid extends Module {
  /** Returns 1 / (1 + e^-x), of any shape. */
  override forward(x: Tensor): Tensor {
    return sigmoid(x);
  }
}

/**
 * Gaussian error linear unit, exact ("none", the default as in PyTorch) or GPT-2's approximation
 * ("tanh"); see gelu.
 */
export class GELU extends Module {
  /** `approximate`: "none" for the exact function, "tanh" for the approximation. */
  constructor(
    /** "tanh": the approximation by tanh; "none": the exact form. */
    readonly approximate: 'tanh' | 'none' = 'none',
  ) {
    super();
  }

  /** Returns gelu(x), of any shape. */
  override forward(x: Tensor): Tensor {
    return gelu(x, this.approximate);
  }
}

/** The activation with values x above 0, slope x below, element by element; see leakyRelu. */
export class LeakyReLU extends Module {
  /** `slope`: the factor of negative values. */
  constructor(
    /** Slope below 0. */
    readonly slope = 0.01,
  ) {
    super();
  }

  /** Returns leakyRelu(x, slope), of any shape. */
  override forward(x: Tensor): Tensor {
    return leakyRelu(x, this.slope);
  }
}

/** The activation with values x above 0, alpha (e^x - 1) below, element by element; see elu. */
export class ELU extends Module {
  /** `alpha`: the negated limit for large negative values. */
  constructor(
    /** The negated limit of the result for large negative values. */
    readonly alpha = 1,
  ) {
    super();
  }

  /** Returns elu(x, alpha), of any shape. */
  override forward(x: Tensor): Tensor {
    return elu(x, this.alpha);
  }
}

/** The activation log(1 + e^(beta x)) / beta, element by element; see softplus. */
export class Softplus extends Module {
  /** `options`: beta and threshold. */
  constructor(
    /** The options of softplus(). */
    readonly options: SoftplusOptions = {},
  ) {
    super();
  }

  /** Returns softplus(x, options), of any shape. */
  override forward(x: Tensor): Tensor {
    return softplus(x, this.options);
  }
}
