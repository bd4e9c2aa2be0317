// Hooks on the modules that read units: weights come before they are read, and sharded ones go after.
import { externalParameters } from '../../nn/external-parameters.js';
import type { Module } from '../../nn/module.js';
import { beforeBackward, type Tensor, tensorsIn } from '../../tensor/index.js';
import type { OptimizerState } from '../../zero/optimizer-state.js';
import type { Partition } from '../../zero/partition.js';
import type { Unit } from '../../zero/unit.js';
import type { ZeroStages } from '../../zero/zero-stage.js';
import type { GradientCollector } from './gradient-collector.js';

interface Attached {
  stage: ZeroStages;
  state: OptimizerState;
  gradients: GradientCollector;
}

/**
 * Brings weights before the forward of each module that reads them, and before its stateDict(). Where the stage shards weights, lets them go when
 * the last module under way that reads them has returned, and brings them again when backward reaches what a module has
 * returned. Owns the hooks.
 */
export class UnitHooks {
  private readonly removers: (() => void)[] = [];
  /** Kept by hold(). */
  private readonly held = new Map<Unit, number>();
  /** How many forwards under way read a unit. */
  private readonly readers = new Map<Unit, number>();

  constructor(
    model: Module,
    private readonly parts: Attached,
  ) {
    const attach = parts.stage.shardsWeights ? this.attachSharded : this.attachWhole;
    for (const [module, partitions] of readersOf(model, parts.stage.partitions)) {
      attach.call(this, module, [...partitions]);
    }
    const awaitWeights = (): void => this.awaitWeights();
    for (const [, module] of model.namedModules()) {
      this.removers.push(module.registerStateDictPreHook(awaitWeights));
    }
  }

  /** What a forward that threw was reading is no longer in use. */
  reset(): void {
    for (const unit of this.readers.keys()) this.release(unit);
    this.readers.clear();
  }

  /** Brings units, which forwards leave in place until the function returned is called. */
  hold(partitions: readonly Partition[]): () => void {
    for (const partition of partitions) {
      const { unit } = partition;
      this.held.set(unit, (this.held.get(unit) ?? 0) + 1);
      this.acquire(partition);
    }
    return () => {
      for (const { unit } of partitions) {
        const others = (this.held.get(unit) ?? 1) - 1;
        if (others > 0) this.held.set(unit, others);
        else this.held.delete(unit);
        this.release(unit);
      }
    };
  }

  /** Later compute work sees the last update, wherever whole weights are kept. */
  awaitWeights(): void {
    const { state, stage } = this.parts;
    for (const partition of stage.partitions) {
      state.awaitWeights(partition);
      if (!stage.shardsWeights) stage.acquire(partition.unit);
    }
  }

  remove(): void {
    for (const remove of this.removers) remove();
  }

  private attachWhole(module: Module, partitions: readonly Partition[]): void {
    const acquire = (): void => {
      for (const partition of partitions) this.acquire(partition);
    };
    this.removers.push(module.registerForwardPreHook(acquire));
  }

  private attachSharded(module: Module, partitions: readonly Partition[]): void {
    const acquire = (): void => {
      for (const partition of partitions) this.acquire(partition);
    };
    const before = module.registerForwardPreHook(() => {
      for (const partition of partitions) this.enter(partition);
    });
    const after = module.registerForwardHook((_module, _inputs, output) => {
      for (const tensor of tensorsIn(output)) beforeBackward(tensor, acquire);
      for (const { unit } of partitions) this.leave(unit);
    });
    this.removers.push(before, after);
  }

  private acquire(partition: Partition): void {
    this.parts.state.awaitWeights(partition);
    this.parts.stage.acquire(partition.unit);
  }

  private enter(partition: Partition): void {
    const { unit } = partition;
    const others = this.readers.get(unit) ?? 0;
    this.readers.set(unit, others + 1);
    if (others === 0 || !unit.hasWeights) this.acquire(partition);
  }

  private leave(unit: Unit): void {
    const others = (this.readers.get(unit) ?? 1) - 1;
    if (others > 0) {
      this.readers.set(unit, others);
      return;
    }
    this.readers.delete(unit);
    // A forward inside backward is a recomputation: its backward follows at once.
    if (!this.parts.gradients.inBackward) this.release(unit);
  }

  private release(unit: Unit): void {
    if (!this.held.has(unit)) this.parts.stage.release(unit);
  }
}

/**
 * The modules that read each unit: the unit's own; units that share parameters with it (tied weights); modules with
 * external parameters; and for the root's unit also the modules directly below the root, which may be called without it.
 */
function readersOf(
  model: Module,
  partitions: readonly Partition[],
): Map<Module, ReadonlySet<Partition>> {
  const home = new Map<Tensor, Partition>();
  const readers = new Map<Module, Set<Partition>>();
  const reads = (module: Module, partition: Partition | undefined): void => {
    if (!partition) return;
    const known = readers.get(module) ?? new Set();
    readers.set(module, known.add(partition));
  };
  for (const partition of partitions) {
    reads(partition.unit.module, partition);
    for (const { parameter } of partition.unit.parameters) home.set(parameter, partition);
  }
  const inner = new Set(model.units().map(({ module }) => module));
  for (const [name, module] of model.namedModules()) {
    const isUnit = inner.has(module);
    const isBelowRoot = name !== '' && !name.includes('.');
    for (const parameter of isUnit || isBelowRoot ? module.parameters() : []) {
      const partition = home.get(parameter);
      if (isUnit || partition?.unit.module === model) reads(module, partition);
    }
    for (const parameter of externalParameters(module)) reads(module, home.get(parameter));
  }
  return readers;
}
