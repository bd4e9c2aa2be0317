// Sequential and ModuleDict, which contain other modules; Identity and Flatten.
import { argumentError, valueError } from '../runtime/input-errors.js';
import type { Tensor } from '../tensor/index.js';
import { requireTensor } from '../tensor/ops/shapes.js';
import { Module } from './module.js';

/** Returns its input unchanged. Replaces an omitted layer. */
export class Identity extends Module {
  /** Returns the input itself. */
  override forward(x: Tensor): Tensor {
    return x;
  }
}

/** Merges dims `startDim` to `endDim`. Default: all except the first. */
export class Flatten extends Module {
  /** Negative dims count from the last one. */
  constructor(
    /** First dim to merge. */
    readonly startDim = 1,
    /** Last dim to merge; a negative dim counts from the end. */
    readonly endDim = -1,
  ) {
    super();
  }

  /** Returns the input with dims startDim to endDim merged. */
  override forward(x: Tensor): Tensor {
    requireTensor('Flatten', x);
    return x.flatten(this.startDim, this.endDim);
  }
}

function requireLayer(layer: unknown, index: number): void {
  if (layer instanceof Module) return;
  throw valueError(
    `Sequential layer ${index}`,
    'a module',
    layer,
    'Call a function in forward() of a class that extends nn.Module; create an instance of a class with new.',
  );
}

/** Consecutive modules with the names "0", "1", ..., as in PyTorch. */
export class Sequential extends Module {
  private readonly layers: readonly Module[];

  /** Takes modules as arguments, or one list of them. Throws DS_ARGUMENT for other values. */
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

  /** Returns the modules in order, as checkpointSequential() takes them. */
  [Symbol.iterator](): Iterator<Module> {
    return this.layers[Symbol.iterator]();
  }

  /** Passes the input through every module, first to last. */
  override forward(x: Tensor): Tensor {
    let out = x;
    for (const layer of this.layers) out = layer.call(out) as Tensor;
    return out;
  }
}

/** Throws DS_ARGUMENT unless `modules` is an object. */
function requireNamed<Modules extends object>(modules: Modules): Modules {
  if (typeof modules === 'object' && modules !== null) return modules;
  throw valueError('ModuleDict', 'modules by name, such as { proj: new nn.Linear(4, 4) }', modules);
}

/** Modules by name, as in PyTorch; its parameters are "name.weight". It has no forward. */
export class ModuleDict extends Module {
  private readonly modulesByName: Map<string, Module>;

  /** Throws DS_ARGUMENT for values that are not modules. */
  constructor(modules: Readonly<Record<string, Module>> = {}) {
    super();
    this.modulesByName = new Map();
    for (const [name, module] of Object.entries(requireNamed(modules))) this.set(name, module);
  }

  protected override *fields(): Generator<[string, Module]> {
    yield* this.modulesByName;
  }

  /** Returns the module `name`. Throws DS_ARGUMENT if there is none. */
  get(name: string): Module {
    const found = this.modulesByName.get(name);
    if (found) return found;
    throw valueError(
      'ModuleDict.get',
      `one of ${[...this.modulesByName.keys()].join(', ') || 'no name: the ModuleDict is empty'}`,
      name,
    );
  }

  /** Adds a module or replaces one; before initialize(). Throws DS_ARGUMENT for other values. */
  set(name: string, module: Module): this {
    if (!(module instanceof Module) || name === '' || name.includes('.')) {
      throw valueError(
        `ModuleDict ${JSON.stringify(name)}`,
        'a module under a name without dots',
        module,
      );
    }
    this.modulesByName.set(name, module);
    return this;
  }

  /** Returns whether there is a module of this name. */
  has(name: string): boolean {
    return this.modulesByName.has(name);
  }

  /** Number of modules. */
  get size(): number {
    return this.modulesByName.size;
  }

  /** Returns names and modules in insertion order. */
  [Symbol.iterator](): Iterator<[string, Module]> {
    return this.modulesByName[Symbol.iterator]();
  }

  /** Throws DS_ARGUMENT: call its modules instead. */
  override forward(): never {
    throw argumentError(
      'ModuleDict.call',
      'a call of one of its modules',
      'a call of the dictionary',
      "Call a module: dict.get('name').call(x).",
    );
  }
}
