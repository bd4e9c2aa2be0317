// Restores an engine from a checkpoint of any number of ranks and any stage.

import type { JsonObject } from '../../../types/json.js';
import {
  Checkpoint,
  type CheckpointWorld,
  onAllRanks,
  type Section,
} from '../../checkpoint/index.js';
import { requireLoadable } from '../../nn/loadable.js';
import { perElement } from '../../optim/declared-state.js';
import { type Region, wholeRegion } from '../../runtime/box.js';
import type { DType } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { held, Tensor } from '../../tensor/index.js';
import { markChanged } from '../../tensor/tape.js';
import { allocatePinned, type LentState } from '../../zero/state/memory.js';
import type { EngineCore } from '../engine-parts.js';
import {
  type BoxedPart,
  divideByBox,
  divideFragment,
  heldFragments,
  keptState,
  stateKey,
  statePart,
  unitEntriesOf,
} from './engine-shards.js';
import { HostState, type LoadSelection, readSavedState } from './host-state.js';
import { readErrors } from './rank-errors.js';
import {
  isPresent,
  requireKnown,
  requireSameGroups,
  requireSameModel,
  requireSameOptimizer,
  requireSameShapes,
  unknownNames,
} from './same-model.js';

/** Options of engine.loadCheckpoint(). Must be equal on every rank. */
export interface LoadOptions {
  /** Folder name of the checkpoint. Default: the name in the file `latest`. */
  tag?: string;
  /**
   * False: accept differences. Parameters and buffers that are not in the checkpoint keep their
   * values, and unknown ones in the checkpoint are ignored. Default: true.
   */
  loadModuleStrict?: boolean;
  /** False: do not load moments, hyperparameters and the loss scale. Default: true. */
  loadOptimizerStates?: boolean;
  /** False: do not load learning-rate schedules. Default: true. */
  loadLrSchedulerStates?: boolean;
  /** True: load only weights and buffers. Default: false. */
  loadModuleOnly?: boolean;
  /**
   * False: do not load the companions of the engine, such as the position of the training loader.
   * Default: the value of loadOptimizerStates.
   */
  loadCompanions?: boolean;
}

/** Result of engine.loadCheckpoint(). */
export interface LoadedCheckpoint {
  /** Folder of the loaded checkpoint. */
  path: string;
  /** Name of the folder. */
  tag: string;
  /** The clientState of the save. Default: {}. */
  clientState: JsonObject;
}

/**
 * Restores an engine of the same model. If a rank fails, no rank is restored. Drops gradients since
 * the last step, because they belong to another run. Throws DS_CHECKPOINT, with the file and the
 * tensor or field, if the checkpoint is missing or damaged, or if its model, optimizer or schedule
 * differs. The engine is then unchanged. If DS_IO interrupts the reading of a verified file, the
 * engine may have a part of the state: load again.
 */
export async function restoreEngine(
  engine: EngineCore,
  dir: string,
  options: LoadOptions,
  world: CheckpointWorld,
): Promise<LoadedCheckpoint> {
  const { loadModuleOnly = false, loadModuleStrict = true } = options;
  const optimizer = !loadModuleOnly && (options.loadOptimizerStates ?? true);
  const selection: LoadSelection = {
    optimizer,
    schedules: !loadModuleOnly && (options.loadLrSchedulerStates ?? true),
    companions: !loadModuleOnly && (options.loadCompanions ?? optimizer),
    counters: !loadModuleOnly,
  };
  const checkpoint = await Checkpoint.open(dir, options.tag, world);
  try {
    const clientState = await loadHostState(engine, checkpoint, world, {
      wanted: selection,
      strict: loadModuleStrict,
    });
    await onAllRanks(world, 'reading tensors', async () => {
      engine.parts.gradients.discard();
      await readFragments(engine, checkpoint, selection.optimizer);
      await readErrors(engine, checkpoint, selection.optimizer);
      await readFrozenFragments(engine, checkpoint);
      await readWhole(engine, checkpoint);
      await checkpoint.requireUnchanged();
      return null;
    });
    for (const partition of engine.parts.stage.partitions) {
      engine.parts.state.refresh(partition);
      engine.parts.stage.publish(partition, partition.device.compute);
    }
    for (const shard of engine.parts.stage.frozen) {
      engine.parts.stage.publish(shard, shard.device.compute);
    }
    engine.parts.hooks.awaitWeights();
    const { path, tag } = checkpoint;
    return { path, tag, clientState };
  } finally {
    await checkpoint.close();
  }
}

/**
 * Compares the checkpoint with the engine, and loads the state that is not tensors. If a rank
 * fails, no rank loads it. Returns the client state.
 */
async function loadHostState(
  engine: EngineCore,
  checkpoint: Checkpoint,
  world: CheckpointWorld,
  { wanted, strict }: { wanted: LoadSelection; strict: boolean },
): Promise<JsonObject> {
  const host = new HostState(engine);
  let clientState: JsonObject = {};
  try {
    const unknownTensors = await onAllRanks(world, 'comparing with the model', async () => {
      requireLoadable('loadCheckpoint', engine.module.namedParameters());
      requireSameModel(engine, checkpoint, strict);
      return strict ? unknownNames(engine, checkpoint) : [];
    });
    requireKnown(checkpoint, unknownTensors);
    await onAllRanks(world, 'comparing with the optimizer', async () => {
      const saved = readSavedState(checkpoint);
      requireSameShapes(engine, checkpoint);
      if (wanted.optimizer) {
        requireSameOptimizer(engine, checkpoint, strict);
        requireSameGroups(engine, saved);
      }
      host.load(saved, wanted);
      clientState = saved.shared.clientState;
      return null;
    });
    return clientState;
  } catch (error) {
    host.restore();
    throw error;
  }
}

async function readFragments(
  engine: EngineCore,
  checkpoint: Checkpoint,
  withOptimizer: boolean,
): Promise<void> {
  for (const { partition, fragment } of heldFragments(engine)) {
    const { name } = fragment.entry;
    if (!isPresent(checkpoint, name)) continue;
    for (const [state, declared] of Object.entries(keptState(engine, fragment.entry))) {
      if (!withOptimizer && state !== 'master') continue;
      const key = stateKey(name, state);
      const isSaved = checkpoint.tensors('optimizer').has(key);
      const from: [Section, string] = isSaved ? ['optimizer', key] : ['model', name];
      const { state: optimizerState } = engine.parts;
      const fragments = optimizerState.lendsCopies(partition)
        ? divideFragment(fragment, declared)
        : [fragment];
      for (const fragment of fragments) {
        const { region, from: first } = statePart(declared, fragment);
        await readLent(checkpoint, from, optimizerState.lend(partition, fragment, state), {
          region,
          first,
        });
      }
    }
  }
}

/** Reads into lent memory the elements of `region` from element `first` on, and stores them. */
async function readLent(
  checkpoint: Checkpoint,
  from: [Section, string],
  lent: LentState,
  { region, first }: { region: Region; first: number },
): Promise<void> {
  const into = divideByBox(region, first, lent.tensor.retain());
  try {
    await readParts(checkpoint, from, into, lent.arrived());
    lent.keep();
  } finally {
    lent.tensor.release();
  }
}

async function readParts(
  checkpoint: Checkpoint,
  [section, name]: [Section, string],
  parts: readonly BoxedPart[],
  ready?: Promise<void>,
): Promise<void> {
  try {
    await ready;
    for (const part of parts) await readConverted(checkpoint, section, { name, ...part });
  } finally {
    for (const { tensor } of parts) tensor.release();
  }
}

/** Reads the sharded frozen parameters of this rank. */
async function readFrozenFragments(engine: EngineCore, checkpoint: Checkpoint): Promise<void> {
  for (const { fragments, storage, unit } of engine.parts.stage.frozen) {
    for (const fragment of fragments) {
      const { name, region } = fragment.entry;
      if (!isPresent(checkpoint, name)) continue;
      const from = frozenSource(checkpoint, name, unit.dtype);
      const stored = { ...perElement(fragment.entry.shape), dtype: unit.dtype };
      for (const item of storage.memory ? [fragment] : divideFragment(fragment, stored)) {
        await readLent(checkpoint, from, storage.lend(item), { region, first: item.from });
      }
    }
  }
}

/**
 * Returns where to read a frozen parameter: the master weights if their dtype is wider than that of
 * the saved weights.
 */
function frozenSource(checkpoint: Checkpoint, name: string, dtype: DType): [Section, string] {
  const master = stateKey(name, 'master');
  const sameDtype = checkpoint.tensors('model').get(name)?.dtype === dtype;
  const exact = !sameDtype && checkpoint.tensors('optimizer').has(master);
  return exact ? ['optimizer', master] : ['model', name];
}

/** Reads buffers, and frozen parameters that are in no unit. Every rank reads them whole. */
async function readWhole(engine: EngineCore, checkpoint: Checkpoint): Promise<void> {
  const inUnits = new Set(unitEntriesOf(engine).map(({ name }) => name));
  for (const [name, parameter] of engine.module.namedParameters()) {
    if (inUnits.has(name) || !isPresent(checkpoint, name)) continue;
    const from = frozenSource(checkpoint, name, parameter.dtype);
    await readParts(checkpoint, from, divideByBox(parameter.region, 0, parameter.retain()));
    markChanged(parameter);
  }
  for (const [name, buffer] of engine.module.namedBuffers()) {
    if (!isPresent(checkpoint, name)) continue;
    const parts = divideByBox(wholeRegion(buffer.shape), 0, buffer.retain());
    await readParts(checkpoint, ['model', name], parts);
    markChanged(buffer);
  }
}

/** Reads a part of a tensor, and converts it to the dtype of `into`. */
async function readConverted(
  checkpoint: Checkpoint,
  section: Section,
  { name, tensor: into, ...part }: BoxedPart & { name: string },
): Promise<void> {
  const dtype = checkpoint.tensors(section).get(name)?.dtype ?? into.dtype;
  if (dtype === into.dtype) return checkpoint.read(section, name, part, into);
  const { device } = into;
  const isPinned = into.buffer.pinned;
  const values = isPinned
    ? allocatePinned(device, into.shape, dtype)
    : held(() => Tensor.empty(into.shape, dtype, device));
  try {
    await checkpoint.read(section, name, part, values);
    if (isPinned) kernels.copyOnHost({ in: values, out: into }, device.compute);
    else kernels.copy({ in: values, out: into });
    device.compute.synchronize();
  } finally {
    values.release();
  }
}
