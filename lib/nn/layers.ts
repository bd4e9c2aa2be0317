// Layers with PyTorch's parameter names, shapes and default initialisation.
import { DsError } from '../errors.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { phrase } from '../runtime/phrase.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import {
  dropout,
  embedding,
  gelu,
  layerNorm,
  linear,
  linearGelu,
  relu,
  rmsNorm,
  sigmoid,
  silu,
  type Tensor,
  tanh,
} from '../tensor/index.js';
import { type Initializer, normal, ones, uniform, zeros } from './initializers.js';
import { Module } from './module.js';
import { Parameter } from './parameter.js';

/** Options of Linear. */
export interface LinearOptions {
  /** Default true. */
  bias?: boolean;
  /** Default U(-1/sqrt(in), 1/sqrt(in)), for weight and bias. */
  weightInit?: Initializer;
  biasInit?: Initializer;
}

const LINEAR: OptionNames<LinearOptions> = { bias: true, weightInit: true, biasInit: true };

/** x W^T + b with weight [out, in]. x [.., in] gives [.., out]. */
export class Linear extends Module {
  readonly weight: Parameter;
  readonly bias: Parameter | null;

  /** Throws DS_ARGUMENT. */
  constructor(inputs: number, outputs: number, given: LinearOptions = {}) {
    super();
    const { name } = new.target;
    requireInteger(`${name} inputs`, inputs, 1);
    requireInteger(`${name} outputs`, outputs, 1);
    const options = readOptions(name, given, LINEAR);
    for (const init of ['weightInit', 'biasInit'] as const) {
      if (options[init] !== undefined) requireType(`${name} ${init}`, options[init], 'function');
    }
    const bound = 1 / Math.sqrt(inputs);
    this.weight = new Parameter([outputs, inputs], options.weightInit ?? uniform(bound));
    const withBias = requireType(`${name} bias`, options.bias ?? true, 'boolean');
    this.bias = withBias ? new Parameter([outputs], options.biasInit ?? uniform(bound)) : null;
  }

  override forward(x: Tensor): Tensor {
    return linear(x, this.weight, this.bias);
  }
}

/** Linear followed by gelu_tanh, in one GEMM. */
export class LinearGelu extends Linear {
  override forward(x: Tensor): Tensor {
    return linearGelu(x, this.weight, this.bias);
  }
}

/** A table [V, C] of rows; indices [..] (i32 or i64) give [.., C]. Default N(0, 1). */
export class Embedding extends Module {
  readonly weight: Parameter;

  /** Throws DS_ARGUMENT. */
  constructor(count: number, channels: number, init: Initializer = normal(1)) {
    super();
    requireInteger('Embedding count', count, 1);
    requireInteger('Embedding channels', channels, 1);
    this.weight = new Parameter([count, channels], init);
  }

  override forward(index: Tensor): Tensor {
    return embedding(this.weight, index);
  }
}

/** Normalises the last dim to mean 0 and variance 1, then weight and bias [C]. */
export class LayerNorm extends Module {
  readonly weight: Parameter;
  readonly bias: Parameter;

  constructor(
    channels: number,
    readonly eps = 1e-5,
  ) {
    super();
    requireInteger('LayerNorm channels', channels, 1);
    requireFinite('LayerNorm eps', eps, 0);
    this.weight = new Parameter([channels], ones);
    this.bias = new Parameter([channels], zeros);
  }

  override forward(x: Tensor): Tensor {
    return layerNorm(x, this.weight, this.bias, this.eps);
  }
}

/** Normalises the last dim to root mean square 1, then weight [C]. */
export class RMSNorm extends Module {
  readonly weight: Parameter;

  constructor(
    channels: number,
    readonly eps = 1e-5,
  ) {
    super();
    requireInteger('RMSNorm channels', channels, 1);
    requireFinite('RMSNorm eps', eps, 0);
    this.weight = new Parameter([channels], ones);
  }

  override forward(x: Tensor): Tensor {
    return rmsNorm(x, this.weight, this.eps);
  }
}

/** Zeroes elements with probability `p` while training. */
export class Dropout extends Module {
  /** Throws DS_ARGUMENT. */
  constructor(readonly p = 0.5) {
    super();
    requireFinite('Dropout p', p, 0, 1);
  }

  override forward(x: Tensor): Tensor {
    return this.training ? dropout(x, this.p) : x;
  }
}

/** max(x, 0), element by element; see relu. */
export class ReLU extends Module {
  override forward(x: Tensor): Tensor {
    return relu(x);
  }
}

/** x sigmoid(x), element by element; see silu. */
export class SiLU extends Module {
  override forward(x: Tensor): Tensor {
    return silu(x);
  }
}

/** The hyperbolic tangent, element by element. */
export class Tanh extends Module {
  override forward(x: Tensor): Tensor {
    return tanh(x);
  }
}

/** 1 / (1 + exp(-x)), element by element. */
export class Sigmoid extends Module {
  override forward(x: Tensor): Tensor {
    return sigmoid(x);
  }
}

/** Gaussian error linear unit, exact ("none", as in PyTorch) or GPT-2's approximation ("tanh"); see gelu. */
export class GELU extends Module {
  constructor(readonly approximate: 'tanh' | 'none' = 'none') {
    super();
  }

  override forward(x: Tensor): Tensor {
    return gelu(x, this.approximate);
  }
}

function requireLayer(layer: unknown, index: number): void {
  if (layer instanceof Module) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: `Sequential layer ${index}`,
    expected: 'a module',
    got: phrase(layer),
    hint: 'A function becomes one as the forward of a class that extends nn.Module; new makes one of a class.',
  });
}

/** Modules one after the other; their names are "0", "1", ... as in PyTorch. */
export class Sequential extends Module {
  private readonly layers: readonly Module[];

  /** Modules one after the other, or one list of them. Throws DS_ARGUMENT for what is no module. */
  constructor(...layers: readonly Module[] | readonly [readonly Module[]]) {
    super();
    const [first] = layers;
    const list = layers.length === 1 && Array.isArray(first) ? first : layers;
    for (const [i, layer] of list.entries()) requireLayer(layer, i);
    this.layers = list as readonly Module[];
  }

  protected override *fields(): Generator<[string, Module]> {
    for (const [i, layer] of this.layers.entries()) yield [String(i), layer];
  }

  /** The modules in order, as checkpointSequential() takes them. */
  [Symbol.iterator](): Iterator<Module> {
    return this.layers[Symbol.iterator]();
  }

  override forward(x: Tensor): Tensor {
    let out = x;
    for (const layer of this.layers) out = layer.call(out) as Tensor;
    return out;
  }
}
