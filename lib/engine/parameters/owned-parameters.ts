// Which engine has taken a parameter over, and where in its units it lies.
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { Tensor } from '../../tensor/index.js';
import type { Slot } from '../../zero/layout.js';
import type { Partition } from '../../zero/partition.js';
import type { EngineCore as Engine } from '../engine-parts.js';

export interface OwnedParameter {
  engine: Engine;
  partition: Partition;
  slot: Slot;
  parameter: Tensor;
}

const owners = new WeakMap<Tensor, OwnedParameter>();

/** The parameters that `engine` trains. */
export function* ownedBy(engine: Engine): Generator<OwnedParameter> {
  for (const partition of engine.parts.stage.partitions) {
    const { unit } = partition;
    for (const slot of unit.layout.slots) {
      yield { engine, partition, slot, parameter: unit.parameterOf(slot) };
    }
  }
}

export function claimParameters(engine: Engine): void {
  for (const owned of ownedBy(engine)) owners.set(owned.parameter, owned);
}

export function disownParameters(engine: Engine): void {
  for (const { parameter } of ownedBy(engine)) owners.delete(parameter);
}

/** Null for a parameter that no engine trains: it is frozen, in no group, or not yet given to initialize(). */
export function ownerOf(parameter: Tensor): OwnedParameter | null {
  return owners.get(parameter) ?? null;
}

/**
 * Throws DS_ARGUMENT when an engine trains a parameter of `model`: a second one would move it into a flat buffer of its
 * own, and the first would go on with what nobody reads.
 */
export function requireUnowned(model: Module): void {
  for (const [name, parameter] of model.namedParameters()) {
    if (!owners.has(parameter)) continue;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'initialize',
      expected: 'a model that no engine trains',
      got: `one whose ${name} another engine has taken over`,
      hint: 'Call destroy() of that engine first, or build another model.',
    });
  }
}
