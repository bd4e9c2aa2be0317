// Finds the engine that owns a parameter, and the parameter's position in the units of this engine.
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { Tensor } from '../../tensor/index.js';
import type { LayoutEntry } from '../../zero/layout.js';
import type { Partition, WeightShard } from '../../zero/partition.js';
import type { EngineCore } from '../engine-parts.js';

/** A parameter in a unit of an engine. It is trained, or frozen and sharded. */
export interface HeldParameter {
  engine: EngineCore;
  shard: WeightShard;
  entry: LayoutEntry;
  parameter: Tensor;
}

export interface OwnedParameter extends HeldParameter {
  partition: Partition;
}

/** A frozen parameter of an engine's model that is in no unit. Every rank holds it whole. */
export interface WholeParameter {
  engine: EngineCore;
  parameter: Tensor;
}

const heldByTensor = new WeakMap<Tensor, HeldParameter | OwnedParameter>();
const wholeByTensor = new WeakMap<Tensor, WholeParameter>();

export function* unitParameters(engine: EngineCore): Generator<HeldParameter | OwnedParameter> {
  const { partitions, frozen } = engine.parts.stage;
  for (const partition of partitions) {
    for (const held of parametersOf(engine, partition)) yield { ...held, partition };
  }
  for (const shard of frozen) yield* parametersOf(engine, shard);
}

function* parametersOf(engine: EngineCore, shard: WeightShard): Generator<HeldParameter> {
  const { unit } = shard;
  for (const entry of unit.layout.entries) {
    yield { engine, shard, entry, parameter: unit.parameterOf(entry) };
  }
}

/** Yields the parameters of the engine's model that are in no unit. */
export function* wholeParameters(engine: EngineCore): Generator<WholeParameter> {
  for (const parameter of engine.module.parameters()) {
    if (heldByTensor.get(parameter)?.engine !== engine) yield { engine, parameter };
  }
}

export function claimParameters(engine: EngineCore): void {
  for (const held of unitParameters(engine)) heldByTensor.set(held.parameter, held);
  for (const whole of wholeParameters(engine)) wholeByTensor.set(whole.parameter, whole);
}

export function disownParameters(engine: EngineCore): void {
  for (const { parameter } of wholeParameters(engine)) wholeByTensor.delete(parameter);
  for (const { parameter } of unitParameters(engine)) heldByTensor.delete(parameter);
}

/**
 * Returns the unit and engine of a parameter. Returns null if it is in no unit: it is frozen and
 * whole, or not yet passed to initialize().
 */
export function findHeld(parameter: Tensor): HeldParameter | OwnedParameter | null {
  return heldByTensor.get(parameter) ?? null;
}

/** Returns the engine of a parameter that is in no unit. Returns null for other parameters. */
export function findWhole(parameter: Tensor): WholeParameter | null {
  return heldByTensor.has(parameter) ? null : (wholeByTensor.get(parameter) ?? null);
}

/**
 * Returns the partition and engine of a trained parameter. Returns null if it is frozen, in no
 * group, or not yet passed to initialize().
 */
export function findOwned(parameter: Tensor): OwnedParameter | null {
  const held = findHeld(parameter);
  return held && isOwned(held) ? held : null;
}

export const isOwned = (item: HeldParameter | WholeParameter): item is OwnedParameter =>
  'partition' in item;

/**
 * Throws DS_ARGUMENT if an engine owns a parameter of `model`. A second engine would move the
 * parameter into its own flat buffer, and the first engine would update memory that no model reads.
 */
export function requireUnowned(model: Module): void {
  for (const [name, parameter] of model.namedParameters()) {
    if (!heldByTensor.has(parameter)) continue;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'initialize',
      expected: 'parameters without an engine',
      got: `${name}, owned by another engine`,
      hint: 'Call destroy() on that engine first, or build another model.',
    });
  }
}
