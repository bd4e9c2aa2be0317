// UnitHooks: hooks on modules that gather the weights of units before modules read them, and
// release sharded weights afterwards.
import { externalParameters } from '../../nn/external-parameters.js';
import type { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import { beforeBackward, type Tensor, tensorsIn } from '../../tensor/index.js';
import type { OptimizerState } from '../../zero/optimizer-state.js';
import type { WeightShard } from '../../zero/partition.js';
import type { ZeroStages } from '../../zero/stage.js';
import type { WeightUnit } from '../../zero/unit.js';
import type { GradientCollector } from './gradient-collector.js';

interface HookParts {
  stage: ZeroStages;
  state: OptimizerState;
  gradients: GradientCollector;
}

/**
 * Gathers the weights of a unit before its readers (modules) run, and before their stateDict(). If
 * the stage shards weights, the following events gather and release them:
 *
 * - The forward of a reader begins: gather.
 * - The forward of the last running reader ends: release.
 * - Backward reaches an output of a reader: gather.
 * - The last gradient of a trained unit is complete: release.
 * - Backward reaches the inputs of a frozen unit's reader: release.
 *
 * Frozen units have no gradient. When backward reaches the inputs of a module, it has passed all
 * operations of its forward. Owns the hooks.
 */
export class UnitHooks {
  private readonly removers: (() => void)[] = [];
  /** By unit: how many callers of hold() need it. */
  private readonly holdCounts = new Map<WeightUnit, number>();
  /** By unit: the number of running forwards that read it. */
  private readonly readers = new Map<WeightUnit, number>();
  /** By frozen unit: the number of its readers that backward has entered and not left. */
  private readonly backwardReaders = new Map<WeightUnit, number>();
  private readonly frozen: ReadonlySet<WeightShard>;

  constructor(
    model: Module,
    private readonly parts: HookParts,
  ) {
    const { partitions, frozen, shardsWeights } = parts.stage;
    this.frozen = new Set(frozen);
    const attach = shardsWeights ? this.attachSharded : this.attachWhole;
    for (const [module, read] of readersOf(model, [...partitions, ...frozen])) {
      attach.call(this, module, [...read]);
    }
    this.removers.push(parts.gradients.onEnd(() => this.backwardReaders.clear()));
    const awaitWeights = (): void => this.awaitWeights();
    for (const [, module] of model.namedModules()) {
      this.removers.push(module.registerStateDictPreHook(awaitWeights));
    }
  }

  /** Releases the units of a forward that threw. */
  reset(): void {
    for (const unit of this.readers.keys()) this.release(unit);
    this.readers.clear();
    this.backwardReaders.clear();
  }

  /** Gathers units. They stay gathered until the caller calls the returned function. */
  hold(shards: readonly WeightShard[]): () => void {
    for (const shard of shards) {
      const { unit } = shard;
      this.holdCounts.set(unit, (this.holdCounts.get(unit) ?? 0) + 1);
      this.acquire(shard);
    }
    return () => {
      for (const { unit } of shards) {
        const others = (this.holdCounts.get(unit) ?? 1) - 1;
        if (others > 0) this.holdCounts.set(unit, others);
        else this.holdCounts.delete(unit);
        this.release(unit);
      }
    };
  }

  /** Returns whether a caller of hold() needs the unit. */
  isHeld(unit: WeightUnit): boolean {
    return this.holdCounts.has(unit);
  }

  /**
   * Makes later compute work wait for the last update. For sharded weights, acquire() does this per
   * unit.
   */
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

  private attachWhole(module: Module, shards: readonly WeightShard[]): void {
    const acquire = (): void => {
      for (const shard of shards) this.acquire(shard);
    };
    this.removers.push(module.registerForwardPreHook(acquire));
  }

  private attachSharded(module: Module, shards: readonly WeightShard[]): void {
    const before = module.registerForwardPreHook(() => {
      for (const shard of shards) this.enter(shard);
    });
    const after = module.registerForwardHook((_module, inputs, output) => {
      this.followBackward(shards, inputs, output);
      for (const { unit } of shards) this.leave(unit);
    });
    this.removers.push(before, after);
  }

  /**
   * Gathers the units when backward reaches `output` of a call. Releases frozen units when it
   * reaches `inputs`.
   */
  private followBackward(shards: readonly WeightShard[], inputs: unknown, output: unknown): void {
    const frozen = shards.filter((shard) => this.frozen.has(shard));
    let reached: 'nothing' | 'output' | 'inputs' = 'nothing';
    const enter = (): void => {
      if (reached === 'inputs') return;
      for (const shard of shards) this.acquire(shard);
      if (reached === 'output') return;
      reached = 'output';
      for (const { unit } of frozen)
        this.backwardReaders.set(unit, (this.backwardReaders.get(unit) ?? 0) + 1);
    };
    const leave = (): void => {
      if (reached !== 'output') return;
      reached = 'inputs';
      for (const { unit } of frozen) this.leaveBackward(unit);
    };
    for (const tensor of tensorsIn(output)) beforeBackward(tensor, enter);
    if (frozen.length === 0) return;
    for (const tensor of tensorsIn(inputs)) beforeBackward(tensor, leave);
  }

  private leaveBackward(unit: WeightUnit): void {
    const others = (this.backwardReaders.get(unit) ?? 1) - 1;
    this.backwardReaders.set(unit, others);
    if (others === 0) this.release(unit);
  }

  private acquire(shard: WeightShard): void {
    this.parts.state.awaitWeights(shard);
    this.parts.stage.acquire(shard.unit);
  }

  private enter(shard: WeightShard): void {
    const { unit } = shard;
    const others = this.readers.get(unit) ?? 0;
    this.readers.set(unit, others + 1);
    if (others === 0 || !unit.memory) this.acquire(shard);
  }

  private leave(unit: WeightUnit): void {
    const others = (this.readers.get(unit) ?? 1) - 1;
    if (others > 0) {
      this.readers.set(unit, others);
      return;
    }
    this.readers.delete(unit);
    // A forward inside backward is a recomputation. Its own backward follows at once and reads the
    // weights.
    if (!this.parts.gradients.inBackward) this.release(unit);
  }

  private release(unit: WeightUnit): void {
    if (!this.holdCounts.has(unit)) this.parts.stage.release(unit);
  }
}

/**
 * Returns, by module, the units that it reads. A unit is read by:
 * - its own module;
 * - other units, and modules outside of units, that share parameters with it (tied weights);
 * - modules that registered its parameters as external;
 * - for the unit of the root: also the modules directly below the root, because a program may call
 *   them alone.
 */
function readersOf(
  model: Module,
  shards: readonly WeightShard[],
): Map<Module, ReadonlySet<WeightShard>> {
  const shardByTensor = new Map<Tensor, WeightShard>();
  const readers = new Map<Module, Set<WeightShard>>();
  const addReader = (module: Module, shard: WeightShard | undefined): void => {
    if (!shard) return;
    const known = readers.get(module) ?? new Set();
    readers.set(module, known.add(shard));
  };
  for (const shard of shards) {
    addReader(shard.unit.module, shard);
    for (const { parameter } of shard.unit.parameters) shardByTensor.set(parameter, shard);
  }
  const inner = new Set(model.units().map(({ module }) => module));
  const innerModules = new Set([...inner].flatMap((module) => module.modules()));
  for (const [name, module] of model.namedModules()) {
    const isUnit = inner.has(module);
    const isBelowRoot = name !== '' && !name.includes('.');
    for (const parameter of isUnit || isBelowRoot ? module.parameters() : []) {
      const shard = shardByTensor.get(parameter);
      if (isUnit || shard?.unit.module === model) addReader(module, shard);
    }
    for (const parameter of innerModules.has(module) ? [] : ownParameters(module)) {
      const shard = shardByTensor.get(parameter);
      if (shard?.unit.module !== model) addReader(module, shard);
    }
    for (const parameter of externalParameters(module))
      addReader(module, shardByTensor.get(parameter));
  }
  return readers;
}

/** Returns the parameters of a module that no submodule has. */
function ownParameters(module: Module): Parameter[] {
  const below = new Set(module.children().flatMap((child) => child.parameters()));
  return module.parameters().filter((parameter) => !below.has(parameter));
}
