// GatheredParameters: runs a function with whole parameters on every rank. One rank may write them.
import { DsError } from '../../errors.js';
import { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import { isPart } from '../../runtime/box.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireEnded, requireType } from '../../runtime/require-type.js';
import { required } from '../../runtime/required.js';
import { scope, Tensor } from '../../tensor/index.js';
import { broadcastValues } from '../../zero/wire.js';
import type { EngineCore } from '../engine-parts.js';
import { resync } from '../step/step-decisions.js';
import { publishFrozen, publishMasters, writeFrozen, writeMaster } from './full-state.js';
import { openForWrites, takeWritten } from './open-writes.js';
import {
  findHeld,
  findWhole,
  type HeldParameter,
  isOwned,
  unitParameters,
  type WholeParameter,
  wholeParameters,
} from './owned-parameters.js';

/** Options of GatheredParameters. */
export interface GatherOptions {
  /**
   * The rank of the job with writes that reach all ranks. Default: null, which discards all writes
   * of `body`.
   */
  modifierRank?: number | null;
}

/** The parameters to gather: of an engine or a module, one parameter, or several. */
export type Gatherable = EngineCore | Module | Parameter | Iterable<Parameter>;

/**
 * Runs `body` with whole parameters on every rank, at any stage. They stay gathered until `body`
 * returns, or until its promise settles. All ranks must call it. `body` may run forwards, but no
 * step.
 *
 * With `modifierRank`, the writes of that rank (also by loadStateDict()) reach the weights and
 * master weights of all ranks. They are rounded to the dtype of the weights. Writes of other ranks
 * are lost. A parameter without writes keeps its master weights bit for bit. If `body` throws on a
 * rank, writes before the error still reach all ranks, so all ranks stay equal. Each rank throws
 * its own error.
 *
 * Frozen parameters behave the same, sharded or whole. With tensor or pipeline parallelism, writes
 * to whole frozen parameters stay on their rank. Parameters without an engine are left unchanged.
 * Throws DS_ARGUMENT if `body` is no function, `modifierRank` is no rank, or the parameters belong
 * to several engines. Source: deepspeed.zero.GatheredParameters.
 */
export function gatheredParameters<Result>(
  what: Gatherable,
  options: GatherOptions,
  body: () => Result,
): Result {
  const { modifierRank = null } = readOptions('GatheredParameters', options, namesOf.GatherOptions);
  requireType('GatheredParameters', body, 'function');
  const parameters = shardedIn(what);
  const shared = modifierRank === null ? parameters : [...parameters, ...wholeParametersIn(what)];
  const [first] = shared;
  if (!first) return body();
  requireOneEngine(shared);
  const { engine } = first;
  if (modifierRank !== null) {
    requireRank(modifierRank, engine.worldSize);
    requireWhole(parameters);
  }
  resync(engine.parts);
  const releaseHold = engine.parts.hooks.hold([...new Set(parameters.map(({ shard }) => shard))]);
  try {
    // Without a modifierRank, the body may return a promise, for example to write files from the
    // gathered values.
    if (modifierRank === null) return body();
    return requireEnded('GatheredParameters', modify(shared, modifierRank, body), {
      consequence: 'later writes would stay on one rank',
      hint: 'Await outside of the body, and change parameters only inside it.',
    });
  } finally {
    releaseHold();
  }
}

/** A parameter that is whole on all ranks while the body runs. */
type SharedParameter = HeldParameter | WholeParameter;

const isFrozenShard = (item: SharedParameter): item is HeldParameter =>
  'shard' in item && !isOwned(item);

function modify<Result>(
  shared: readonly SharedParameter[],
  root: number,
  body: () => Result,
): Result {
  const outcome = runWritable(shared, body);
  try {
    adoptChanges(shared, root);
  } catch (error) {
    // If the body threw, its error explains more than the error of the exchange.
    if (!('error' in outcome)) throw error;
  }
  if ('error' in outcome) throw outcome.error;
  return outcome.result;
}

/** Runs `body` while the parameters are writable. Returns its result or its error. */
function runWritable<Result>(
  shared: readonly SharedParameter[],
  body: () => Result,
): { result: Result } | { error: unknown } {
  const close = openForWrites(shared.map(({ parameter }) => parameter));
  try {
    return { result: body() };
  } catch (error) {
    return { error };
  } finally {
    close();
  }
}

/** Copies the writes of rank `root` to all ranks. All ranks must call it. */
function adoptChanges(shared: readonly SharedParameter[], root: number): void {
  const { engine } = required(shared[0]);
  const written = shared.map(({ parameter }) => takeWritten(parameter));
  const [changed, unchanged] = findWritten(root, shared, written);
  const { ranks, state } = engine.parts;
  state.synchronize();
  for (const item of changed) {
    broadcastValues(ranks.world, item.parameter, root);
    if (isOwned(item)) scope(() => writeMaster(item, item.parameter.detach().to('f32')));
    else if (isFrozenShard(item)) writeFrozen(item);
  }
  for (const { parameter } of unchanged) broadcastValues(ranks.world, parameter, root);
  publishMasters(engine, new Set(changed.filter(isOwned).map(({ partition }) => partition)));
  publishFrozen(engine, new Set(changed.filter(isFrozenShard).map(({ shard }) => shard)));
}

/**
 * Returns the parameters that rank `root` wrote, and the parameters that only other ranks wrote.
 * The result is equal on every rank.
 */
function findWritten(
  root: number,
  held: readonly SharedParameter[],
  written: readonly boolean[],
): [root: SharedParameter[], others: SharedParameter[]] {
  const { device, parts } = required(held[0]).engine;
  const { world } = parts.ranks;
  // The flag of `root` is larger than the sum of the flags of all other ranks.
  const weight = world.rank === root ? world.size : 1;
  const sums = scope(() => {
    const flags = Tensor.from(
      Float32Array.from(written, (item) => (item ? weight : 0)),
      { device },
    );
    world.allReduce(flags, { purpose: 'which parameters were written' }).wait();
    return flags.toArray();
  });
  const among = (min: number, end: number): SharedParameter[] =>
    held.filter((_, i) => required(sums[i]) >= min && required(sums[i]) < end);
  return [among(world.size, Number.POSITIVE_INFINITY), among(1, world.size)];
}

function shardedIn(what: Gatherable): HeldParameter[] {
  if ('parts' in what) return [...unitParameters(what)];
  return listOf(what).flatMap((parameter) => findHeld(parameter) ?? []);
}

/**
 * Returns the frozen parameters in `what` that are in no unit. If tensor or pipeline parallelism
 * divides the model, returns an empty list: these parameters may be parts of a whole parameter.
 */
function wholeParametersIn(what: Gatherable): WholeParameter[] {
  const among =
    'parts' in what
      ? [...wholeParameters(what)]
      : listOf(what).flatMap((parameter) => findWhole(parameter) ?? []);
  return among.filter(({ engine }) => {
    const { broadcastGroup, world } = engine.parts.ranks;
    return broadcastGroup.size === world.size;
  });
}

function listOf(what: Exclude<Gatherable, EngineCore>): Parameter[] {
  const several = what instanceof Module ? what.parameters() : what;
  return [...new Set(several instanceof Tensor ? [several] : several)];
}

/**
 * Throws DS_ARGUMENT for a part of a divided layer, because a write to it does not define the other
 * parts.
 */
function requireWhole(parameters: readonly HeldParameter[]): void {
  const part = parameters.find(
    ({ engine, entry }) => engine.parts.ranks.tensorGroup && isPart(entry.region),
  );
  if (!part) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'GatheredParameters modifierRank',
    expected: 'parameters that are whole on every rank',
    got: `${part.entry.name}, divided over ranks by tensor parallelism`,
    hint: 'Change them before initialize(), or load a checkpoint: loading divides it over any number of ranks.',
  });
}

function requireOneEngine(shared: readonly SharedParameter[]): void {
  if (new Set(shared.map(({ engine }) => engine)).size === 1) return;
  throw misusedError('parameters of one engine', 'parameters of several engines');
}

function requireRank(rank: number, worldSize: number): void {
  if (Number.isInteger(rank) && rank >= 0 && rank < worldSize) return;
  throw misusedError(`modifierRank null or 0 to ${worldSize - 1}`, String(rank));
}

function misusedError(expected: string, got: string): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op: 'GatheredParameters', expected, got });
}

/**
 * Gathers the sharded parameters of `engine` on every rank, until the caller calls the returned
 * function. All ranks must call both. Between the calls, forwards need no other rank, and no step
 * may run.
 */
export function holdWeights(engine: EngineCore): () => void {
  const shards = new Set([...unitParameters(engine)].map(({ shard }) => shard));
  if (shards.size === 0) return () => {};
  resync(engine.parts);
  return engine.parts.hooks.hold([...shards]);
}
