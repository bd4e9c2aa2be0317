// What a checkpoint of an engine holds: weights, master weights, optimizer state, counters and generators.
import type { JsonObject } from '../../types/json.js';
import { type NamedTensor, openCheckpoint, saveCheckpoint } from '../checkpoint/index.js';
import { DsError } from '../errors.js';
import { hyperparameters } from '../optim/param-groups.js';
import { getRandomState, setRandomState } from '../tensor/index.js';
import type { Piece, Slot } from '../zero/layout.js';
import type { Partition } from '../zero/partition.js';
import type { Engine, Progress } from './engine.js';

export interface SaveOptions {
  /** Default "global_step<N>". */
  tag?: string;
  /** Anything JSON; returned by load. */
  clientState?: JsonObject;
  /** Point `latest` at this checkpoint. Default true. */
  saveLatest?: boolean;
}

export interface LoadOptions {
  /** Default: what `latest` names. */
  tag?: string;
  /** False restores the weights only: optimizer state and counters start afresh. Default true. */
  loadOptimizerStates?: boolean;
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

/** The state names of one parameter: "<name>.fp32" for the master weights, "<name>.<state>" otherwise. */
const stateKey = (name: string, state: string): string =>
  `${name}.${state === 'master' ? 'fp32' : state}`;

function* piecesOf(engine: Engine): Generator<{ partition: Partition; piece: Piece }> {
  for (const partition of engine.parts.stage.partitions)
    for (const piece of partition.pieces) yield { partition, piece };
}

/** What is kept of a parameter: its master weights and the state of its group. */
function stateNames(engine: Engine, slot: Slot): string[] {
  return ['master', ...Object.keys(engine.parts.optimizer.initialState(slot.group))];
}

/** The hyperparameters of every group. */
function groupSettings({ parts }: Engine): JsonObject[] {
  return parts.optimizer.groups.map((group) => hyperparameters(group) as unknown as JsonObject);
}

function restoreGroups({ parts }: Engine, saved: readonly JsonObject[], path: string): void {
  const { groups } = parts.optimizer;
  if (saved.length !== groups.length) {
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: path,
      expected: `${groups.length} parameter groups`,
      got: `${saved.length}`,
      hint: 'Build the optimizer with the groups that it was saved with.',
    });
  }
  groups.forEach((group, i) => {
    Object.assign(group, saved[i]);
  });
}

/**
 * Writes `dir/tag` atomically: a crash at any moment leaves the previous checkpoint or the new one, complete.
 * Returns its path. Gradients of an unfinished accumulation step are not part of it.
 */
export async function saveEngine(
  engine: Engine,
  dir: string,
  { tag, clientState = {}, saveLatest = true }: SaveOptions = {},
): Promise<string> {
  engine.synchronize();
  await engine.flushMonitors();
  const { placement, scaler, schedules } = engine.parts;
  const modelTensors: NamedTensor[] = [];
  for (const [name, tensor] of engine.module.namedParameters()) modelTensors.push({ name, tensor });
  for (const [name, tensor] of engine.module.namedBuffers()) modelTensors.push({ name, tensor });
  const optimizerTensors: NamedTensor[] = [];
  for (const { partition, piece } of piecesOf(engine)) {
    for (const state of stateNames(engine, piece.slot)) {
      const tensor = placement.stateOf(partition, piece, state);
      optimizerTensors.push({ name: stateKey(piece.slot.name, state), tensor });
    }
  }
  const companions: JsonObject = {};
  for (const [name, part] of engine.companions) companions[name] = part.stateDict();
  const state: JsonObject = {
    progress: { ...engine.progress },
    scaler: scaler.state(),
    schedule: schedules.stateDict(),
    groups: groupSettings(engine),
    random: { ...getRandomState() },
    companions,
    clientState,
  };
  try {
    const name = tag ?? `global_step${engine.globalSteps}`;
    return await saveCheckpoint(dir, name, { modelTensors, optimizerTensors, state, saveLatest });
  } finally {
    for (const { tensor } of optimizerTensors) tensor.release();
  }
}

/**
 * Restores an engine built from the same model. Throws DS_CHECKPOINT when the checkpoint is damaged or of
 * another model, naming the tensor; the engine is then unchanged or must be loaded again.
 */
export async function loadEngine(
  engine: Engine,
  dir: string,
  { tag, loadOptimizerStates = true, loadCompanions = loadOptimizerStates }: LoadOptions = {},
): Promise<LoadedCheckpoint> {
  engine.synchronize();
  const checkpoint = await openCheckpoint(dir, tag);
  requireSameModel(engine, checkpoint.names(), checkpoint.path);
  const { placement, stage, scaler, schedules } = engine.parts;
  for (const { partition, piece } of piecesOf(engine)) {
    for (const state of loadOptimizerStates ? stateNames(engine, piece.slot) : ['master']) {
      const into = placement.stateOf(partition, piece, state);
      try {
        await checkpoint.readInto(stateKey(piece.slot.name, state), into);
      } finally {
        into.release();
      }
    }
  }
  for (const partition of stage.partitions) placement.refresh(partition);
  for (const [name, parameter] of engine.module.namedParameters())
    if (!parameter.requiresGrad) await checkpoint.readInto(name, parameter);
  for (const [name, buffer] of engine.module.namedBuffers())
    await checkpoint.readInto(name, buffer);
  const state = checkpoint.state as {
    progress: Progress & JsonObject;
    scaler: JsonObject;
    schedule: JsonObject;
    groups: JsonObject[];
    random: { seed: number; offset: number };
    /** Absent in older checkpoints. */
    companions?: Record<string, JsonObject>;
    clientState: JsonObject;
  };
  if (loadOptimizerStates) {
    Object.assign(engine.progress, state.progress);
    scaler.load(state.scaler);
    schedules.loadStateDict(state.schedule);
    restoreGroups(engine, state.groups, checkpoint.path);
    setRandomState(state.random);
  }
  if (loadCompanions) restoreCompanions(engine, state.companions ?? {});
  return { path: checkpoint.path, tag: checkpoint.tag, clientState: state.clientState };
}

/** A companion that the checkpoint does not know stays where it is. */
function restoreCompanions(engine: Engine, states: Record<string, JsonObject>): void {
  for (const [name, part] of engine.companions) {
    const state = states[name];
    if (state) part.loadStateDict(state);
  }
}

function requireSameModel(engine: Engine, present: readonly string[], path: string): void {
  const saved = new Set(present);
  const missing = [...piecesOf(engine)].map(({ piece }) => stateKey(piece.slot.name, 'master'));
  const absent = missing.filter((name) => !saved.has(name));
  if (absent.length === 0) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: `the parameters of this model, ${absent[0]} among them`,
    got: `a checkpoint without ${absent.length} of them`,
    hint: 'It was saved from another model: build the model with the same configuration.',
  });
}
