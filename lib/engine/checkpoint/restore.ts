// Restoring an engine from a checkpoint that any number of ranks has saved at any stage.
import type { JsonObject } from '../../../types/json.js';
import {
  Checkpoint,
  type CheckpointWorld,
  inUnison,
  type Section,
} from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { isFloating } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { describe } from '../../runtime/view.js';
import { held, Tensor } from '../../tensor/index.js';
import type { Piece } from '../../zero/layout.js';
import type { Partition } from '../../zero/partition.js';
import type { EngineCore as Engine } from '../engine-parts.js';
import { heldPieces, slotsOf, stateKey, stateNames } from './engine-shards.js';
import { HostState, type Wanted } from './host-state.js';
import { readSavedState, type SavedState } from './saved-state.js';

/** What engine.loadCheckpoint() takes from a checkpoint, the same on every rank. */
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

/** What engine.loadCheckpoint() has loaded. */
export interface LoadedCheckpoint {
  /** The folder of the tag. */
  path: string;
  tag: string;
  /** What saveCheckpoint() was given; {} where it was given nothing. */
  clientState: JsonObject;
}

/**
 * Restores an engine built from the same model, on all ranks or on none. Throws DS_CHECKPOINT when the checkpoint is
 * missing, damaged, of another model, optimizer or schedule, naming file and tensor or field: the engine is then
 * unchanged. Gradients since the last step are dropped: they are of another run.
 * A failure to read what was verified (DS_IO) leaves it undefined: load again.
 */
export async function restoreEngine(
  engine: Engine,
  dir: string,
  options: LoadOptions,
  world: CheckpointWorld,
): Promise<LoadedCheckpoint> {
  const { loadModuleOnly = false, loadModuleStrict = true } = options;
  const optimizer = !loadModuleOnly && (options.loadOptimizerStates ?? true);
  const wanted: Wanted = {
    optimizer,
    schedules: !loadModuleOnly && (options.loadLrSchedulerStates ?? true),
    companions: !loadModuleOnly && (options.loadCompanions ?? optimizer),
    counters: !loadModuleOnly,
  };
  const checkpoint = await Checkpoint.open(dir, options.tag, world);
  try {
    const clientState = await follow(engine, checkpoint, world, {
      wanted,
      strict: loadModuleStrict,
    });
    await inUnison(world, 'reading tensors', async () => {
      engine.parts.gradients.discard();
      await readPieces(engine, checkpoint, wanted.optimizer);
      await readUntrained(engine, checkpoint);
      await checkpoint.requireUnchanged();
      return null;
    });
    for (const partition of engine.parts.stage.partitions) {
      engine.parts.state.refresh(partition);
      engine.parts.stage.publish(partition, partition.device.compute);
    }
    engine.parts.hooks.awaitWeights();
    const { path, tag } = checkpoint;
    return { path, tag, clientState };
  } finally {
    await checkpoint.close();
  }
}

/**
 * Compares the checkpoint with the engine, and takes over all that is no tensor: on every rank, or nothing on any.
 * Returns the client state.
 */
async function follow(
  engine: Engine,
  checkpoint: Checkpoint,
  world: CheckpointWorld,
  { wanted, strict }: { wanted: Wanted; strict: boolean },
): Promise<JsonObject> {
  const host = new HostState(engine);
  let clientState: JsonObject = {};
  try {
    await inUnison(world, 'comparing with the model', async () => {
      const saved = readSavedState(checkpoint);
      requireSameModel(engine, checkpoint, strict);
      requireSameShapes(engine, checkpoint);
      if (wanted.optimizer) {
        requireSameOptimizer(engine, checkpoint, strict);
        requireSameGroups(engine, saved);
      }
      host.follow(saved, wanted);
      clientState = saved.shared.clientState;
      return null;
    });
    return clientState;
  } catch (error) {
    host.back();
    throw error;
  }
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
  const lent = parts.state.lend(partition, piece, state);
  const into = lent.tensor;
  try {
    await lent.arrived();
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
  if (dtype === into.dtype) return checkpoint.read(section, name, { from }, into);
  const { device } = into;
  const values = held(() => Tensor.empty(into.shape, dtype, device));
  try {
    await checkpoint.read(section, name, { from }, values);
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
    if (!info) continue;
    const isSameKind = isFloating(tensor.dtype)
      ? isFloating(info.dtype)
      : info.dtype === tensor.dtype;
    if (isSameKind && info.shape.join() === tensor.shape.join()) continue;
    throw otherModel(`${checkpoint.path}: ${name}`, describe(tensor), describe(info));
  }
  const known = new Set(own.map(([name]) => name));
  const unexpected = [...saved.keys()].filter((name) => !known.has(name));
  if (!strict || unexpected.length === 0) return;
  const got = `${unexpected.length} more, "${unexpected[0]}" among them`;
  throw otherModel(checkpoint.path, 'the tensors of this model alone', got);
}

/** Master weights and states are of the parameter's shape, in floating point. */
function requireSameShapes(engine: Engine, checkpoint: Checkpoint): void {
  const states = new Map(slotsOf(engine).map((slot) => [slot.name, stateNames(engine, slot)]));
  for (const [name, { shape }] of engine.module.namedParameters()) {
    for (const state of states.get(name) ?? ['master']) {
      const key = stateKey(name, state);
      const info = checkpoint.tensors('optimizer').get(key);
      if (!info) continue;
      if (isFloating(info.dtype) && info.shape.join() === shape.join()) continue;
      const wanted = describe({ dtype: 'f32', shape });
      throw otherModel(`${checkpoint.path}: ${key}`, wanted, describe(info));
    }
  }
}

function requireSameGroups({ parts }: Engine, { place, shared }: SavedState): void {
  const { groups } = parts.optimizer;
  if (shared.groups.length === groups.length) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: `${place}: state.groups`,
    expected: `${groups.length} parameter groups`,
    got: `${shared.groups.length}`,
    hint: 'Use the groups that it was saved with; { loadOptimizerStates: false } starts the optimizer afresh.',
  });
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
