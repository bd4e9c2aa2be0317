// Which engine has taken a parameter over, and where in its units it lies.
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { Tensor } from '../../tensor/index.js';
import type { Slot } from '../../zero/layout.js';
import type { Partition, WeightPart } from '../../zero/partition.js';
import type { EngineCore } from '../engine-parts.js';

/**
 * A parameter that an engine has in a unit: one that it trains, or a frozen one that is sharded.
 */
export interface HeldParameter {
  engine: EngineCore;
  part: WeightPart;
  slot: Slot;
  parameter: Tensor;
}

/** A parameter that an engine trains. */
export interface OwnedParameter extends HeldParameter {
  partition: Partition;
}

/** A frozen parameter of an engine's module that is in no unit: every rank has all of it. */
export interface WholeParameter {
  engine: EngineCore;
  parameter: Tensor;
}

const holders = new WeakMap<Tensor, HeldParameter | OwnedParameter>();
const wholes = new WeakMap<Tensor, WholeParameter>();

/** The parameters in the units of `engine`. */
export function* heldBy(engine: EngineCore): Generator<HeldParameter | OwnedParameter> {
  const { partitions, frozen } = engine.parts.stage;
  for (const partition of partitions) {
    for (const held of inPart(engine, partition)) yield { ...held, partition };
  }
  for (const part of frozen) yield* inPart(engine, part);
}

function* inPart(engine: EngineCore, part: WeightPart): Generator<HeldParameter> {
  const { unit } = part;
  for (const slot of unit.layout.slots) {
    yield { engine, part, slot, parameter: unit.parameterOf(slot) };
  }
}

/** The parameters of the module of `engine` in none of its units. */
export function* wholeOf(engine: EngineCore): Generator<WholeParameter> {
  for (const parameter of engine.module.parameters()) {
    if (holders.get(parameter)?.engine !== engine) yield { engine, parameter };
  }
}

export function claimParameters(engine: EngineCore): void {
  for (const held of heldBy(engine)) holders.set(held.parameter, held);
  for (const whole of wholeOf(engine)) wholes.set(whole.parameter, whole);
}

export function disownParameters(engine: EngineCore): void {
  for (const { parameter } of wholeOf(engine)) wholes.delete(parameter);
  for (const { parameter } of heldBy(engine)) holders.delete(parameter);
}

/**
 * Null for a parameter in no unit of an engine: it is frozen and whole, or not yet given to
 * initialize().
 */
export function holderOf(parameter: Tensor): HeldParameter | OwnedParameter | null {
  return holders.get(parameter) ?? null;
}

/** Null for a parameter that is in a unit of an engine, or of no engine's module. */
export function wholeIn(parameter: Tensor): WholeParameter | null {
  return holders.has(parameter) ? null : (wholes.get(parameter) ?? null);
}

/**
 * Null for a parameter that no engine trains: it is frozen, in no group, or not yet given to
 * initialize().
 */
export function ownerOf(parameter: Tensor): OwnedParameter | null {
  const held = holderOf(parameter);
  return held && isOwned(held) ? held : null;
}

export const isOwned = (one: HeldParameter | WholeParameter): one is OwnedParameter =>
  'partition' in one;

/**
 * Throws DS_ARGUMENT when an engine trains a parameter of `model`: a second one would move it into
 * a flat buffer of its own, and the first would go on with what nobody reads.
 */
export function requireUnowned(model: Module): void {
  for (const [name, parameter] of model.namedParameters()) {
    if (!holders.has(parameter)) continue;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'initialize',
      expected: 'a model that no engine trains',
      got: `one whose ${name} another engine has taken over`,
      hint: 'Call destroy() of that engine first, or build another model.',
    });
  }
}
