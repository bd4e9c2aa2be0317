// What a checkpoint of an engine holds: weights, master weights, optimizer state, counters and generators.
import type { JsonObject } from '../../../types/json.js';
import type { CheckpointContent } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { hyperparameters } from '../../optim/param-groups.js';
import { getRandomState, type RandomState, setRandomState } from '../../tensor/index.js';
import type { Engine } from '../engine.js';
import type { Progress } from '../step/progress.js';
import { requireJson } from './client-state.js';
import {
  catalogOf,
  optimizerShards,
  untrainedShards,
  weightShards,
  wholeModel,
} from './engine-shards.js';

/** What all ranks have in common. */
export interface SharedState {
  progress: Progress & JsonObject;
  scaler: JsonObject;
  schedule: JsonObject;
  groups: JsonObject[];
  clientState: JsonObject;
}

/** What each rank has of its own. */
export interface RankState {
  random: RandomState & JsonObject;
  companions: Record<string, JsonObject>;
}

/** Seeds of ranks that were not there when the checkpoint was saved lie this far apart. */
const SEED_STRIDE = 1_000_003;

/** This rank's part of the engine as it is now. The tensors are the engine's own: the caller releases them. */
export function contentOf(engine: Engine, clientState: JsonObject): CheckpointContent {
  const { shardsWeights: sharded, rank } = engine.parts.stage;
  const isFirst = rank === 0;
  const parts = sharded ? weightShards(engine) : [];
  const whole = sharded ? untrainedShards : wholeModel;
  return {
    model: isFirst ? [...parts, ...whole(engine)] : parts,
    modelIsSharded: sharded,
    optimizer: optimizerShards(engine),
    catalog: isFirst ? catalogOf(engine) : { model: new Map(), optimizer: new Map() },
    state: sharedState(engine, clientState),
    rankState: rankState(engine),
    description: engine.module.describe(),
  };
}

function sharedState({ parts, progress }: Engine, clientState: JsonObject): JsonObject {
  requireJson('clientState', clientState);
  return {
    progress: { ...progress },
    scaler: parts.scaler.state(),
    schedule: parts.schedules.stateDict(),
    groups: parts.optimizer.groups.map((group) => hyperparameters(group) as unknown as JsonObject),
    clientState,
  };
}

function rankState(engine: Engine): JsonObject {
  const companions: JsonObject = {};
  for (const [name, part] of engine.companions) companions[name] = part.stateDict();
  return { random: { ...getRandomState() }, companions };
}

/** Throws DS_CHECKPOINT when the optimizer has another number of parameter groups than the saved one. */
export function requireSameGroups({ parts }: Engine, saved: SharedState, path: string): void {
  const { groups } = parts.optimizer;
  if (saved.groups.length === groups.length) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: `${groups.length} parameter groups`,
    got: `${saved.groups.length}`,
    hint: 'Use the groups that it was saved with; { loadOptimizerStates: false } starts the optimizer afresh.',
  });
}

/** Optimizer hyperparameters and loss scale, of the same groups. */
export function restoreGroups({ parts }: Engine, saved: SharedState): void {
  parts.optimizer.groups.forEach((group, i) => {
    for (const name of Object.keys(hyperparameters(group))) {
      const value = saved.groups[i]?.[name];
      if (value !== undefined) Object.assign(group, { [name]: value });
    }
  });
  parts.scaler.load(saved.scaler);
}

/**
 * The generator of this rank, and its companions. Where there were fewer ranks and each had a generator of its own, so
 * have the new ones; else all have the same. Companions have the same position on every rank.
 */
export function restoreRank(
  engine: Engine,
  ranks: readonly JsonObject[],
  { random, companions }: { random: boolean; companions: boolean },
): void {
  const { rank, worldSize } = engine.parts.stage;
  const own = ranks[rank % ranks.length] as unknown as RankState;
  if (random) {
    const { seed, offset } = own.random;
    const seeds = new Set(ranks.map(({ random }) => (random as RandomState & JsonObject).seed));
    const turn = seeds.size === 1 ? 0 : Math.floor(rank / ranks.length);
    setRandomState({ seed: (seed + turn * SEED_STRIDE) % Number.MAX_SAFE_INTEGER, offset });
  }
  if (!companions) return;
  const source = ranks.length === worldSize ? own : (ranks[0] as unknown as RankState);
  for (const [name, part] of engine.companions) {
    const state = source.companions[name];
    if (state) part.loadStateDict(state);
  }
}
