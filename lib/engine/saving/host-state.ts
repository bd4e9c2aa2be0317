// HostState: the part of an engine's state that is not tensors. It is read from a manifest and
// loaded, and can be restored after a failed load.

import { join } from 'node:path';
import type { JsonObject } from '../../../types/json.js';
import { type Checkpoint, Fields, MANIFEST } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { declaredState } from '../../optim/declared-state.js';
import { hyperparameters } from '../../optim/param-groups.js';
import { required } from '../../runtime/required.js';
import { getRandomState, type RandomState, setRandomState } from '../../tensor/index.js';
import type { EngineCore } from '../engine-parts.js';
import type { Progress } from '../step/step-decisions.js';
import { entriesOf } from './engine-shards.js';

/** The state that is equal on all ranks. */
interface SharedState {
  progress: Progress;
  scaler: JsonObject;
  schedule: { schedules: JsonObject[] };
  /** Hyperparameters of each group. */
  groups: JsonObject[];
  clientState: JsonObject;
  /** Null without curriculum learning. */
  curriculum: JsonObject | null;
}

/** The state of one data rank. */
interface RankState {
  random: RandomState;
  companions: Record<string, JsonObject>;
}

export interface SavedState {
  /** Path of the manifest, for errors. */
  location: string;
  shared: SharedState;
  /** By data rank; at least one. */
  ranks: readonly RankState[];
}

/**
 * Reads the state from a manifest. Throws DS_CHECKPOINT with the manifest, the field, and the
 * expected and present values.
 */
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

/** Which parts of a checkpoint to load. */
export interface LoadSelection {
  /** Optimizer state, hyperparameters and loss scale. */
  optimizer: boolean;
  schedules: boolean;
  companions: boolean;
  /** Counters and random generators. */
  counters: boolean;
}

/** Ranks that did not exist at the save get the saved seeds plus a multiple of this. */
const SEED_STRIDE = 1_000_003;

/** Hyperparameters that must not be negative. */
const NOT_NEGATIVE: readonly string[] = ['lr', 'weightDecay', 'eps', 'momentum', 'lrDecay'];

export class HostState {
  private readonly restorePrevious: () => void;

  /** Stores the present state for restore(). */
  constructor(private readonly engine: EngineCore) {
    const { parts, progress, companions } = engine;
    const groups = parts.optimizer.groups.map((group) => ({ ...hyperparameters(group) }));
    const [scaler, schedules] = [parts.scaler.state(), parts.schedules.stateDict()];
    const curriculum = parts.curriculum.state();
    const [counters, random] = [{ ...progress }, getRandomState()];
    const states = Array.from(companions.values(), (part) => [part, part.stateDict()] as const);
    this.restorePrevious = () => {
      parts.optimizer.groups.forEach((group, i) => {
        Object.assign(group, groups[i]);
      });
      parts.scaler.load(scaler);
      parts.schedules.loadStateDict(schedules);
      Object.assign(progress, counters);
      parts.curriculum.load(curriculum, 'engine.loadCheckpoint');
      setRandomState(random);
      for (const [part, state] of states) part.loadStateDict(state);
    };
  }

  /**
   * Loads the selected state. Throws DS_CHECKPOINT with the field of the manifest if a value has
   * the wrong type or is out of range. The caller then calls restore().
   */
  load(saved: SavedState, selection: LoadSelection): void {
    const { parts } = this.engine;
    const { groups, scaler, schedule } = saved.shared;
    if (selection.optimizer) {
      parts.optimizer.groups.forEach((_, i) => {
        this.loadGroup(i, required(groups[i]), saved.location);
      });
      withLocation(saved, 'state.scaler', () => parts.scaler.load(scaler));
    }
    if (selection.schedules) {
      withLocation(saved, 'state.schedule', () => parts.schedules.loadStateDict(schedule));
    }
    if (selection.counters) {
      this.loadProgress(saved, selection);
      parts.curriculum.load(saved.shared.curriculum, saved.location);
    }
    this.loadRank(saved, selection);
  }

  restore(): void {
    this.restorePrevious();
  }

  /**
   * Loads the hyperparameters of one group. Hyperparameters that are not in the checkpoint keep
   * their values.
   */
  private loadGroup(index: number, saved: JsonObject, location: string): void {
    const { optimizer } = this.engine.parts;
    const group = required(optimizer.groups[index]);
    const reader = new Fields(location);
    const entries = entriesOf(this.engine).filter((entry) => entry.group === index);
    const states = () => {
      const declared = entries.map(({ shape }) => declaredState(optimizer, index, shape));
      return [...new Set(declared.flatMap(Object.keys))].join();
    };
    const before = states();
    for (const [name, own] of Object.entries(hyperparameters(group))) {
      const value = saved[name];
      if (value === undefined) continue;
      requireSameType(reader, `state.groups[${index}].${name}`, { name, own, value });
      Object.assign(group, { [name]: value });
    }
    if (states() === before) return;
    const expected = `settings with the state ${before || '(none)'} per parameter`;
    throw reader.refusal(`state.groups[${index}]`, expected, states() || '(none)');
  }

  /**
   * Loads the counters. appliedSteps counts the updates of the moments, and scheduleStart is where
   * the schedule began. So optimizer and schedules can restart independently.
   */
  private loadProgress({ shared }: SavedState, { optimizer, schedules }: LoadSelection): void {
    const { progress } = this.engine;
    const { appliedSteps, scheduleStart } = shared.progress;
    Object.assign(progress, shared.progress);
    progress.appliedSteps = optimizer ? appliedSteps : 0;
    progress.scheduleStart = progress.appliedSteps - (schedules ? appliedSteps - scheduleStart : 0);
  }

  /**
   * Loads random generator and companions of this data rank. If there are more ranks than at the
   * save, and the saved ranks had different seeds, the additional ranks get seeds of their own. If
   * the number of ranks differs, all ranks load the companions of rank 0.
   */
  private loadRank(saved: SavedState, { counters, companions }: LoadSelection): void {
    const { rank, size } = this.engine.parts.ranks.dataGroup;
    const { ranks } = saved;
    const from = rank % ranks.length;
    if (counters) {
      const { seed, offset } = required(ranks[from]).random;
      const seeds = new Set(ranks.map(({ random }) => random.seed));
      const copy = seeds.size === 1 ? 0 : Math.floor(rank / ranks.length);
      setRandomState({ seed: (seed + copy * SEED_STRIDE) % Number.MAX_SAFE_INTEGER, offset });
    }
    if (!companions) return;
    const source = ranks.length === size ? from : 0;
    const states = required(ranks[source]).companions;
    for (const [name, part] of this.engine.companions) {
      const state = states[name];
      if (!state) continue;
      withLocation(saved, `ranks[${source}].companions.${name}`, () => part.loadStateDict(state));
    }
  }
}

/**
 * Throws DS_CHECKPOINT unless `value` has the type of `own` and a value that every optimizer
 * accepts.
 */
function requireSameType(
  reader: Fields,
  field: string,
  { name, own, value }: { name: string; own: unknown; value: unknown },
): void {
  if (typeof own === 'number') {
    reader.number(value, field, NOT_NEGATIVE.includes(name) ? 0 : undefined);
  } else if (typeof own === 'boolean') {
    reader.flag(value, field);
  } else if (typeof own === 'string') {
    reader.text(value, field);
  } else if (Array.isArray(own)) {
    const items = reader.list(value, field);
    if (items.length !== own.length) throw reader.bad(field, `a list of ${own.length}`, items);
    items.forEach((item, i) => {
      requireSameType(reader, `${field}[${i}]`, { name, own: own[i], value: item });
      const isFraction = name !== 'betas' || ((item as number) >= 0 && (item as number) <= 1);
      if (!isFraction) throw reader.bad(`${field}[${i}]`, 'a number from 0 to 1', item);
    });
  }
}

/** Runs `body`. Converts its error to DS_CHECKPOINT with the field of the manifest. */
function withLocation({ location }: SavedState, field: string, body: () => void): void {
  try {
    body();
  } catch (cause) {
    const { op, expected, got, hint } = cause as Partial<DsError>;
    const isOurs = cause instanceof DsError;
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: isOurs ? `${location}: ${field}: ${op}` : `${location}: ${field}`,
      expected: isOurs ? String(expected) : 'a valid state',
      got: isOurs ? String(got) : String(cause),
      hint,
      cause,
    });
  }
}
