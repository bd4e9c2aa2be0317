// Restoring an engine from a checkpoint that any number of ranks has saved at any stage.
import type { JsonObject } from '../../../types/json.js';
import {
  Checkpoint,
  type CheckpointWorld,
  inUnison,
  type Section,
} from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { describe } from '../../runtime/view.js';
import { held, Tensor } from '../../tensor/index.js';
import type { Piece } from '../../zero/layout.js';
import type { Partition } from '../../zero/partition.js';
import type { Engine } from '../engine.js';
import { heldPieces, slotsOf, stateKey, stateNames } from './engine-shards.js';
import { requireSameGroups, restoreGroups, restoreRank, type SharedState } from './snapshot.js';

export interface LoadOptions {
  /** Default: what `latest` names. */
  tag?: string;
  /**
   * False: parameters and buffers that the checkpoint lacks stay as they are, and what the model lacks is ignored.
   * Default true.
   */
  loadModuleStrict?: boolean;
  /** False: moments, hyperparameters and the loss scale start afresh. Default true. */
  loadOptimizerStates?: boolean;
  /** False: learning-rate schedules start afresh. Default true. */
  loadLrSchedulerStates?: boolean;
  /** Weights and buffers alone: everything else stays as it is. Default false. */
  loadModuleOnly?: boolean;
  /**
   * False leaves the engine's companions, such as the train loader, where they are. Default: as
   * loadOptimizerStates.
   */
  loadCompanions?: boolean;
}

export interface LoadedCheckpoint {
  path: string;
  tag: string;
  clientState: JsonObject;
}

/**
 * Restores an engine built from the same model, on all ranks or on none. Throws DS_CHECKPOINT when the checkpoint is
 * missing, damaged, of another model, optimizer or schedule, naming file and tensor: the engine is then unchanged.
 * A failure to read what was verified (DS_IO) leaves it undefined: load again.
 */
export async function restoreEngine(
  engine: Engine,
  dir: string,
  options: LoadOptions,
  world: CheckpointWorld,
): Promise<LoadedCheckpoint> {
  const { loadModuleOnly = false, loadModuleStrict = true } = options;
  const withOptimizer = !loadModuleOnly && (options.loadOptimizerStates ?? true);
  const withSchedules = !loadModuleOnly && (options.loadLrSchedulerStates ?? true);
  const withCompanions = !loadModuleOnly && (options.loadCompanions ?? withOptimizer);
  const parts = {
    strict: loadModuleStrict,
    loadModuleOnly,
    withOptimizer,
    withSchedules,
    withCompanions,
  };
  const checkpoint = await Checkpoint.open(dir, options.tag, world);
  try {
    return await restoreFrom(checkpoint, engine, world, parts);
  } finally {
    await checkpoint.close();
  }
}

/** What of a checkpoint is wanted. */
interface Wanted {
  strict: boolean;
  loadModuleOnly: boolean;
  withOptimizer: boolean;
  withSchedules: boolean;
  withCompanions: boolean;
}

async function restoreFrom(
  checkpoint: Checkpoint,
  engine: Engine,
  world: CheckpointWorld,
  { strict, loadModuleOnly, withOptimizer, withSchedules, withCompanions }: Wanted,
): Promise<LoadedCheckpoint> {
  const state = checkpoint.state as unknown as SharedState;
  const { path, tag } = checkpoint;
  await inUnison(world, 'comparing with the model', async () => {
    requireSameModel(engine, checkpoint, strict);
    if (withOptimizer) {
      requireSameOptimizer(engine, checkpoint, strict);
      requireSameGroups(engine, state, path);
    }
    if (withSchedules) engine.parts.schedules.requireFitting(state.schedule);
    return null;
  });
  await inUnison(world, 'reading tensors', async () => {
    await readPieces(engine, checkpoint, withOptimizer);
    await readUntrained(engine, checkpoint);
    await checkpoint.requireUnchanged();
    return null;
  });
  for (const partition of engine.parts.stage.partitions) {
    engine.parts.placement.refresh(partition);
    engine.parts.stage.publish(partition, partition.device.compute);
  }
  engine.parts.hooks.awaitWeights();
  if (withOptimizer) restoreGroups(engine, state);
  if (!loadModuleOnly) restoreProgress(engine, state, { withOptimizer, withSchedules });
  restoreRank(engine, checkpoint.ranks, { random: !loadModuleOnly, companions: withCompanions });
  return { path, tag, clientState: state.clientState };
}

/** Adam's time is that of the moments, a schedule's is its own: either may start afresh without the other. */
function restoreProgress(
  engine: Engine,
  { progress, schedule }: SharedState,
  { withOptimizer, withSchedules }: { withOptimizer: boolean; withSchedules: boolean },
): void {
  Object.assign(engine.progress, progress);
  const appliedSteps = withOptimizer ? progress.appliedSteps : 0;
  const scheduleTime = withSchedules ? progress.appliedSteps - progress.scheduleStart : 0;
  engine.progress.appliedSteps = appliedSteps;
  engine.progress.scheduleStart = appliedSteps - scheduleTime;
  if (withSchedules) engine.parts.schedules.loadStateDict(schedule);
}

async function readPieces(
  engine: Engine,
  checkpoint: Checkpoint,
  withOptimizer: boolean,
): Promise<void> {
  for (const { partition, piece } of heldPieces(engine)) {
    const { name } = piece.slot;
    if (!isPresent(checkpoint, name)) continue;
    for (const state of withOptimizer ? stateNames(engine, piece.slot) : ['master']) {
      const key = stateKey(name, state);
      const saved = checkpoint.tensors('optimizer').has(key);
      if (saved)
        await readPiece(engine, { partition, piece, state }, checkpoint, ['optimizer', key]);
      else await readPiece(engine, { partition, piece, state }, checkpoint, ['model', name]);
    }
  }
}

async function readPiece(
  { parts }: Engine,
  { partition, piece, state }: { partition: Partition; piece: Piece; state: string },
  checkpoint: Checkpoint,
  [section, key]: [Section, string],
): Promise<void> {
  const into = parts.placement.stateOf(partition, piece, state);
  try {
    await readConverted(checkpoint, section, { name: key, from: piece.from }, into);
  } finally {
    into.release();
  }
}

/** Frozen parameters and buffers: every rank has all of each. */
async function readUntrained(engine: Engine, checkpoint: Checkpoint): Promise<void> {
  const trained = new Set(slotsOf(engine).map(({ name }) => name));
  for (const [name, parameter] of engine.module.namedParameters()) {
    if (trained.has(name) || !isPresent(checkpoint, name)) continue;
    const master = stateKey(name, 'master');
    const sameDtype = checkpoint.tensors('model').get(name)?.dtype === parameter.dtype;
    const exact = !sameDtype && checkpoint.tensors('optimizer').has(master);
    if (exact) await readConverted(checkpoint, 'optimizer', { name: master, from: 0 }, parameter);
    else await readConverted(checkpoint, 'model', { name, from: 0 }, parameter);
  }
  for (const [name, buffer] of engine.module.namedBuffers()) {
    if (!isPresent(checkpoint, name)) continue;
    await readConverted(checkpoint, 'model', { name, from: 0 }, buffer);
  }
}

/** Reads a range whatever its precision. */
async function readConverted(
  checkpoint: Checkpoint,
  section: Section,
  { name, from }: { name: string; from: number },
  into: Tensor,
): Promise<void> {
  const dtype = checkpoint.tensors(section).get(name)?.dtype ?? into.dtype;
  if (dtype === into.dtype) return checkpoint.readRange(section, name, from, into);
  const { device } = into;
  const values = held(() => Tensor.empty(into.shape, dtype, device));
  try {
    await checkpoint.readRange(section, name, from, values);
    if (into.buffer.pinned) kernels.copyOnHost({ in: values, out: into }, device.compute);
    else kernels.copy({ in: values, out: into });
    device.compute.synchronize();
  } finally {
    values.release();
  }
}

const isPresent = (checkpoint: Checkpoint, name: string): boolean =>
  checkpoint.tensors('model').has(name);

function requireSameModel(engine: Engine, checkpoint: Checkpoint, strict: boolean): void {
  const saved = checkpoint.tensors('model');
  const own = [...engine.module.namedParameters(), ...engine.module.namedBuffers()];
  const missing = own.filter(([name]) => !saved.has(name));
  const [absent] = missing;
  if (strict && absent) {
    const got = `a checkpoint without ${missing.length} of this model's tensors`;
    throw otherModel(`${checkpoint.path}: ${absent[0]}`, describe(absent[1]), got);
  }
  for (const [name, tensor] of own) {
    const info = saved.get(name);
    if (!info || info.shape.join() === tensor.shape.join()) continue;
    throw otherModel(`${checkpoint.path}: ${name}`, describe(tensor), describe(info));
  }
  const known = new Set(own.map(([name]) => name));
  const unexpected = [...saved.keys()].filter((name) => !known.has(name));
  if (!strict || unexpected.length === 0) return;
  const got = `${unexpected.length} more, "${unexpected[0]}" among them`;
  throw otherModel(checkpoint.path, 'the tensors of this model alone', got);
}

function requireSameOptimizer(engine: Engine, checkpoint: Checkpoint, strict: boolean): void {
  const saved = new Map<string, string[]>();
  for (const key of checkpoint.tensors('optimizer').keys()) {
    const dot = key.lastIndexOf('.');
    const states = saved.get(key.slice(0, dot)) ?? [];
    saved.set(key.slice(0, dot), states);
    states.push(key.slice(dot + 1));
  }
  for (const slot of slotsOf(engine)) {
    if (!strict && !isPresent(checkpoint, slot.name)) continue;
    const own = stateNames(engine, slot).map((state) => (state === 'master' ? 'fp32' : state));
    const found = saved.get(slot.name) ?? [];
    if ([...own].sort().join() === [...found].sort().join()) continue;
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: `${checkpoint.path}: ${slot.name}`,
      expected: `${own.join(', ')}, which ${engine.optimizer.name} keeps`,
      got: found.length > 0 ? found.join(', ') : 'no optimizer state',
      hint: 'It was saved with another optimizer: { loadOptimizerStates: false } starts this one afresh.',
    });
  }
}

function otherModel(op: string, expected: string, got: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected,
    got,
    hint: 'It was saved from another model: { loadModuleStrict: false } loads what fits by name.',
  });
}
