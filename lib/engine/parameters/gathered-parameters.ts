// GatheredParameters: whole parameters on every rank for a while, and one rank's changes to them on
// all.

import { DsError } from '../../errors.js';
import { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import { isPart } from '../../runtime/box.js';
import { type OptionNames, readOptions } from '../../runtime/options.js';
import { requireType } from '../../runtime/require-type.js';
import { requireEnded } from '../../runtime/synchronous.js';
import { scope, Tensor } from '../../tensor/index.js';
import { takeOver } from '../../zero/collectives.js';
import type { EngineCore } from '../engine-parts.js';
import { resync } from '../step/resync.js';
import { publishFrozen, publishMasters, writeFrozen, writeMaster } from './full-state.js';
import { openForWrites, takeWritten } from './open-writes.js';
import {
  type HeldParameter,
  heldBy,
  holderOf,
  isOwned,
  type WholeParameter,
  wholeIn,
  wholeOf,
} from './owned-parameters.js';

/** Options of GatheredParameters. */
export interface GatherOptions {
  /**
   * The rank of the job whose changes count; null (the default): nobody's, and what `body` writes
   * is lost.
   */
  modifierRank?: number | null;
}

/** All that an engine has in units, the parameters of a module, one parameter, or some of them. */
export type Gatherable = EngineCore | Module | Parameter | Iterable<Parameter>;

const GATHER_OPTIONS: OptionNames<GatherOptions> = { modifierRank: true };

/**
 * Runs `body` while the parameters have their values on every rank, whatever the stage: until it
 * returns, also where that is a promise. All ranks call it. With `modifierRank`, what that rank
 * writes to them (loadStateDict() in `body` may) reaches all ranks, master weights included,
 * rounded to the weights' dtype; what others write is lost. A parameter that this rank leaves as it
 * is keeps its master weights to the last bit. Where `body` throws, on some ranks or on all, that
 * holds of what was written until then, so that ranks stay alike, and those on which it threw throw
 * the same. `body` may run forwards, but no step. So it is with frozen parameters, sharded or
 * whole; those that share layers or stages out keep whole ones of their own, and what no engine has
 * is left alone. Throws DS_ARGUMENT. Source: deepspeed.zero.GatheredParameters.
 */
export function gatheredParameters<Result>(
  what: Gatherable,
  options: GatherOptions,
  body: () => Result,
): Result {
  const { modifierRank = null } = readOptions('GatheredParameters', options, GATHER_OPTIONS);
  requireType('GatheredParameters', body, 'function');
  const held = heldAmong(what);
  const all = modifierRank === null ? held : [...held, ...wholeAmong(what)];
  const [first] = all;
  if (!first) return body();
  requireOneEngine(all);
  const { engine } = first;
  if (modifierRank !== null) {
    requireRank(modifierRank, engine.worldSize);
    requireWhole(held);
  }
  resync(engine.parts);
  const letGo = engine.parts.hooks.hold([...new Set(held.map(({ part }) => part))]);
  try {
    // A body that reads at once, and writes files afterwards, may give a promise.
    if (modifierRank === null) return body();
    return requireEnded('GatheredParameters', modified(all, modifierRank, body), {
      consequence: 'what it writes later would stay on one rank',
      hint: 'Write await outside, and change parameters in the body alone.',
    });
  } finally {
    letGo();
  }
}

/** What ranks have in common for the time of the body. */
type Shared = HeldParameter | WholeParameter;

const isFrozenPart = (one: Shared): one is HeldParameter => 'part' in one && !isOwned(one);

function modified<Result>(held: readonly Shared[], root: number, body: () => Result): Result {
  const outcome = outcomeOf(held, body);
  try {
    adoptChanges(held, root);
  } catch (error) {
    // Where the body threw, that says more of why ranks did not come together.
    if (!('error' in outcome)) throw error;
  }
  if ('error' in outcome) throw outcome.error;
  return outcome.result;
}

/** What `body` gives or throws; the parameters can be written meanwhile. */
function outcomeOf<Result>(
  held: readonly Shared[],
  body: () => Result,
): { result: Result } | { error: unknown } {
  const close = openForWrites(held.map(({ parameter }) => parameter));
  try {
    return { result: body() };
  } catch (error) {
    return { error };
  } finally {
    close();
  }
}

/** What rank `root` has written in the body counts on all ranks, which make the same calls. */
function adoptChanges(held: readonly Shared[], root: number): void {
  const { engine } = held[0] as Shared;
  const written = held.map(({ parameter }) => takeWritten(parameter));
  const [changed, lost] = writtenBy(root, held, written);
  const { ranks, state } = engine.parts;
  state.synchronize();
  for (const one of changed) {
    takeOver(ranks.world, one.parameter, root);
    if (isOwned(one)) scope(() => writeMaster(one, one.parameter.detach().to('f32')));
    else if (isFrozenPart(one)) writeFrozen(one);
  }
  for (const { parameter } of lost) takeOver(ranks.world, parameter, root);
  publishMasters(engine, new Set(changed.filter(isOwned).map(({ partition }) => partition)));
  publishFrozen(engine, new Set(changed.filter(isFrozenPart).map(({ part }) => part)));
}

/** What rank `root` has written, and what other ranks alone have; the same on every rank. */
function writtenBy(
  root: number,
  held: readonly Shared[],
  written: readonly boolean[],
): [root: Shared[], others: Shared[]] {
  const { device, parts } = (held[0] as Shared).engine;
  const { world } = parts.ranks;
  // More than all others together.
  const weight = world.rank === root ? world.size : 1;
  const sums = scope(() => {
    const shared = Tensor.from(
      Float32Array.from(written, (one) => (one ? weight : 0)),
      { device },
    );
    world.allReduce(shared, { purpose: 'which parameters were written' }).wait();
    return shared.toArray();
  });
  const among = (least: number, end: number): Shared[] =>
    held.filter((_, i) => (sums[i] as number) >= least && (sums[i] as number) < end);
  return [among(world.size, Number.POSITIVE_INFINITY), among(1, world.size)];
}

function heldAmong(what: Gatherable): HeldParameter[] {
  if ('parts' in what) return [...heldBy(what)];
  return listOf(what).flatMap((parameter) => holderOf(parameter) ?? []);
}

/** Of ranks that have the same of them: shares of layers and stages look like whole parameters. */
function wholeAmong(what: Gatherable): WholeParameter[] {
  const among =
    'parts' in what ? [...wholeOf(what)] : listOf(what).flatMap((one) => wholeIn(one) ?? []);
  return among.filter(({ engine }) => {
    const { alike, world } = engine.parts.ranks;
    return alike.size === world.size;
  });
}

function listOf(what: Exclude<Gatherable, EngineCore>): Parameter[] {
  const several = what instanceof Module ? what.parameters() : what;
  return [...new Set(several instanceof Tensor ? [several] : several)];
}

/** What one rank writes to its part of a layer says nothing of the other parts. */
function requireWhole(held: readonly HeldParameter[]): void {
  const part = held.find(({ engine, slot }) => engine.parts.ranks.layers && isPart(slot.region));
  if (!part) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'GatheredParameters modifierRank',
    expected: 'parameters of which every rank has all',
    got: `${part.slot.name}, of which each rank has a part (tensor parallelism)`,
    hint: 'Change them before initialize(), or load a checkpoint, which any number of ranks takes apart.',
  });
}

function requireOneEngine(held: readonly Shared[]): void {
  if (new Set(held.map(({ engine }) => engine)).size === 1) return;
  throw misused('parameters of one engine', 'parameters of several');
}

function requireRank(rank: number, worldSize: number): void {
  if (Number.isInteger(rank) && rank >= 0 && rank < worldSize) return;
  throw misused(`modifierRank null or 0 to ${worldSize - 1}`, String(rank));
}

function misused(expected: string, got: string): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op: 'GatheredParameters', expected, got });
}
