// Maps a parameter to the engine that owns it, and to its place in the engine's units.
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { Tensor } from '../../tensor/index.js';
import type { LayoutEntry } from '../../zero/layout.js';
import type { Partition, WeightShard } from '../../zero/shard.js';
import type { EngineCore } from '../engine-parts.js';

/** A parameter in a unit of an engine: a trained one, or a sharded frozen one. */
export interface HeldParameter {
  engine: EngineCore;
  shard: WeightShard;
  entry: LayoutEntry;
  parameter: Tensor;
}

export interface OwnedParameter extends HeldParameter {
  partition: Partition;
}

/** A frozen parameter of an engine's module in no unit. Every rank holds it whole. */
export interface WholeParameter {
  engine: EngineCore;
  parameter: Tensor;
}

const holders = new WeakMap<Tensor, HeldParameter | OwnedParameter>();
const wholes = new WeakMap<Tensor, WholeParameter>();

export function* heldBy(engine: EngineCore): Generator<HeldParameter | OwnedParameter> {
  const { partitions, frozen } = engine.parts.stage;
  for (const partition of partitions) {
    for (const held of inShard(engine, partition)) yield { ...held, partition };
  }
  for (const shard of frozen) yield* inShard(engine, shard);
}

function* inShard(engine: EngineCore, shard: WeightShard): Generator<HeldParameter> {
  const { unit } = shard;
  for (const entry of unit.layout.entries) {
    yield { engine, shard, entry, parameter: unit.parameterOf(entry) };
  }
}

/** Parameters of the engine's module that are in no unit. */
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
 * Returns null for a parameter in no unit: it is frozen and whole, or not yet passed to
 * initialize().
 */
export function holderOf(parameter: Tensor): HeldParameter | OwnedParameter | null {
  return holders.get(parameter) ?? null;
}

/** Returns null for a parameter in a unit, and for one outside of every engine's module. */
export function wholeIn(parameter: Tensor): WholeParameter | null {
  return holders.has(parameter) ? null : (wholes.get(parameter) ?? null);
}

/**
 * Returns null for a parameter that no engine trains: it is frozen, in no group, or not yet passed
 * to initialize().
 */
export function ownerOf(parameter: Tensor): OwnedParameter | null {
  const held = holderOf(parameter);
  return held && isOwned(held) ? held : null;
}

export const isOwned = (item: HeldParameter | WholeParameter): item is OwnedParameter =>
  'partition' in item;

/**
 * Throws DS_ARGUMENT if an engine owns a parameter of `model`. A second engine would move it into
 * its own flat buffer, and the first would update stale memory.
 */
export function requireUnowned(model: Module): void {
  for (const [name, parameter] of model.namedParameters()) {
    if (!holders.has(parameter)) continue;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'initialize',
      expected: 'parameters without an engine',
      got: `${name}, owned by another engine`,
      hint: 'Call destroy() on that engine first, or build another model.',
    });
  }
}
