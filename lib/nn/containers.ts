// Modules that hold, pass on or reshape: ModuleDict, Identity, Flatten.
import { DsError } from '../errors.js';
import { phrase } from '../runtime/phrase.js';
import type { Tensor } from '../tensor/index.js';
import { Module } from './module.js';

/** What it is given, unchanged; stands where a layer is left out. */
export class Identity extends Module {
  /** The input itself. */
  override forward(x: Tensor): Tensor {
    return x;
  }
}

/** Dims `startDim` to `endDim` as one: by default all but the first. */
export class Flatten extends Module {
  constructor(
    /** First of the dims that become one. */
    readonly startDim = 1,
    /** Last of them; negative counts from the end. */
    readonly endDim = -1,
  ) {
    super();
  }

  /** The input with dims startDim to endDim as one. */
  override forward(x: Tensor): Tensor {
    return x.flatten(this.startDim, this.endDim);
  }
}

/** Throws DS_ARGUMENT for what has no names. */
function named<Modules extends object>(modules: Modules): Modules {
  if (typeof modules === 'object' && modules !== null) return modules;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'ModuleDict',
    expected: 'modules by name, such as { proj: new nn.Linear(4, 4) }',
    got: phrase(modules),
  });
}

/**
 * Modules by name, as in PyTorch; its parameters are "name.weight". It has no forward of its own.
 */
export class ModuleDict extends Module {
  private readonly modulesByName: Map<string, Module>;

  /** Throws DS_ARGUMENT for what is no module. */
  constructor(modules: Readonly<Record<string, Module>> = {}) {
    super();
    this.modulesByName = new Map();
    for (const [name, module] of Object.entries(named(modules))) this.set(name, module);
  }

  protected override *fields(): Generator<[string, Module]> {
    yield* this.modulesByName;
  }

  /** Throws DS_ARGUMENT for a name that it does not have. */
  get(name: string): Module {
    const found = this.modulesByName.get(name);
    if (found) return found;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'ModuleDict.get',
      expected: `one of ${[...this.modulesByName.keys()].join(', ') || 'none: it is empty'}`,
      got: phrase(name),
    });
  }

  /** Adds a module or replaces one; before initialize(). Throws DS_ARGUMENT for what is none. */
  set(name: string, module: Module): this {
    if (!(module instanceof Module) || name === '' || name.includes('.')) {
      throw new DsError({
        code: 'DS_ARGUMENT',
        op: `ModuleDict ${JSON.stringify(name)}`,
        expected: 'a module under a name without dots',
        got: phrase(module),
      });
    }
    this.modulesByName.set(name, module);
    return this;
  }

  /** Whether there is a module of this name. */
  has(name: string): boolean {
    return this.modulesByName.has(name);
  }

  /** Modules in it. */
  get size(): number {
    return this.modulesByName.size;
  }

  /** Names and modules, in the order in which they came. */
  [Symbol.iterator](): Iterator<[string, Module]> {
    return this.modulesByName[Symbol.iterator]();
  }

  /** Throws DS_ARGUMENT: it is its modules that are called. */
  override forward(): never {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'ModuleDict.call',
      expected: 'a call of one of its modules',
      got: 'one of the dictionary',
      hint: "Take one out: dict.get('name').call(x).",
    });
  }
}
