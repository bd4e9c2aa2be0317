// Reads and checks the engine state of a manifest, without tensors.
import { join } from 'node:path';
import type { JsonObject } from '../../../types/json.js';
import { type Checkpoint, Fields, MANIFEST } from '../../checkpoint/index.js';
import type { RandomState } from '../../tensor/index.js';
import type { Progress } from '../step/step-decisions.js';

/** State that all ranks share. */
interface SharedState {
  progress: Progress;
  scaler: JsonObject;
  schedule: { schedules: JsonObject[] };
  /** Hyperparameters by group. */
  groups: JsonObject[];
  clientState: JsonObject;
  /** Null without a curriculum. */
  curriculum: JsonObject | null;
}

/** State of one rank. */
interface RankState {
  random: RandomState;
  companions: Record<string, JsonObject>;
}

export interface SavedState {
  /** Path of the manifest, for errors. */
  location: string;
  shared: SharedState;
  /** State of each data rank; at least one. */
  ranks: readonly RankState[];
}

/** Throws DS_CHECKPOINT with the manifest, the field, and the expected and present values. */
export function readSavedState({ path, state, ranks }: Checkpoint): SavedState {
  const { curriculum = null } = state;
  const location = join(path, MANIFEST);
  const reader = new Fields(location);
  const schedule = reader.object(state.schedule, 'state.schedule');
  const schedules = reader.objects(schedule.schedules, 'state.schedule.schedules');
  return {
    location,
    shared: {
      progress: progressOf(reader, reader.object(state.progress, 'state.progress')),
      scaler: reader.object(state.scaler, 'state.scaler'),
      schedule: { schedules },
      groups: reader.objects(state.groups, 'state.groups'),
      clientState: reader.object(state.clientState, 'state.clientState'),
      curriculum: curriculum === null ? null : reader.object(curriculum, 'state.curriculum'),
    },
    ranks: ranks.map((rank, i) => rankOf(reader, rank, `ranks[${i}]`)),
  };
}

function progressOf(reader: Fields, saved: JsonObject): Progress {
  const count = (name: keyof Progress) => reader.count(saved[name], `state.progress.${name}`);
  return {
    globalSteps: count('globalSteps'),
    globalSamples: count('globalSamples'),
    skippedSteps: count('skippedSteps'),
    appliedSteps: count('appliedSteps'),
    scheduleStart: reader.integer(saved.scheduleStart, 'state.progress.scheduleStart'),
  };
}

function rankOf(reader: Fields, saved: JsonObject, name: string): RankState {
  const random = reader.object(saved.random, `${name}.random`);
  const companions = reader.object(saved.companions, `${name}.companions`);
  for (const [key, state] of Object.entries(companions)) {
    reader.object(state, `${name}.companions.${key}`);
  }
  return {
    random: {
      seed: reader.count(random.seed, `${name}.random.seed`),
      offset: reader.count(random.offset, `${name}.random.offset`),
    },
    companions: companions as Record<string, JsonObject>,
  };
}

/** A companion of the engine, such as the loader of its training data. */
export interface Stateful {
  /** Returns the state to save. */
  stateDict(): JsonObject;
  /** Throws DS_CHECKPOINT if the state belongs to another kind of object. */
  loadStateDict(state: JsonObject): void;
}
