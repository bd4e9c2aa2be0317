// The interface of learning-rate schedules, and the checks of their options. A schedule maps a
// number of applied updates to a learning rate.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { argumentError } from '../runtime/input-errors.js';
import { readOptions } from '../runtime/options.js';
import { ownValue } from '../runtime/own-value.js';
import { requireFinite } from '../runtime/require-number.js';
import { requireOneOf } from '../runtime/require-type.js';
import type { ParamGroup } from './param-groups.js';

/** The fields of a parameter group that a schedule may set. */
export type ScheduledGroup = Pick<ParamGroup, 'lr' | 'betas'>;

/**
 * A learning-rate schedule. Before update n (from 0), the engine calls apply(group, n). Only
 * applied updates count: if an update is skipped for an overflow, the schedule does not advance. n
 * is PyTorch's `last_epoch`, and DeepSpeed's `last_batch_iteration` + 1.
 */
export interface LrSchedule {
  /** Name in configurations, logs and errors. */
  readonly name: string;
  /** Returns the learning rate after `appliedSteps` updates. */
  lr(appliedSteps: number): number;
  /** Sets the learning rate of `group`. OneCycle also sets its betas. */
  apply(group: ScheduledGroup, appliedSteps: number): void;
  /**
   * Returns the state to save in a checkpoint. Empty if the rate depends only on the number of
   * updates.
   */
  stateDict(): JsonObject;
  /**
   * Restores a result of stateDict(). Throws DS_CHECKPOINT if the state is of another kind of
   * schedule.
   */
  loadStateDict(state: JsonObject): void;
}

/**
 * A schedule without state. A subclass defines its name and lr(), which must be a pure function.
 */
export abstract class PureSchedule implements LrSchedule {
  abstract readonly name: string;
  abstract lr(appliedSteps: number): number;

  apply(group: ScheduledGroup, appliedSteps: number): void {
    group.lr = this.lr(appliedSteps);
  }

  stateDict(): JsonObject {
    return {};
  }

  loadStateDict(_state: JsonObject): void {}
}

/** The default of each option; undefined if an option has no default. */
export type ScheduleDefaults<Options> = {
  readonly [Name in keyof Options]-?: undefined extends Options[Name]
    ? Exclude<Options[Name], undefined>
    : undefined;
};

/** Allowed values of the options that are words. */
const WORDS = {
  warmupType: ['log', 'linear'],
  mode: ['min', 'max'],
  thresholdMode: ['rel', 'abs'],
} as const;

/** An allowed value of the option `Name`. */
export type ScheduleWord<Name extends keyof typeof WORDS> = (typeof WORDS)[Name][number];

/**
 * Reads the options of schedule `name`. Throws DS_ARGUMENT for an unknown option, an invalid
 * boolean or word, and numbers that are not finite. Options in `needed` must be given. Of other
 * options without a default, the schedule checks the presence itself.
 */
export function readSchedule<Options extends object>(
  name: string,
  given: Options,
  defaults: ScheduleDefaults<Options>,
  needed: readonly string[] = ['baseLr'],
): Required<Options> {
  requireNoOptimizer(name, given);
  const known = Object.fromEntries(
    Object.entries(defaults).map(([key, value]) => [
      key,
      typeof value === 'boolean' ? ('switch' as const) : (true as const),
    ]),
  );
  const options = new Map<string, unknown>(Object.entries(readOptions(name, given, known)));
  for (const key of needed) requireFinite(`${name} ${key}`, options.get(key));
  for (const [key, value] of options) {
    if (value == null || key === 'milestones' || known[key] === 'switch') continue;
    const words = ownValue<readonly string[]>(WORDS, key);
    if (words) requireOneOf(`${name} ${key}`, value, words);
    else requireFinite(`${name} ${key}`, value);
  }
  const all = Object.entries(defaults).map(([key, value]) => [key, options.get(key) ?? value]);
  return Object.fromEntries(all) as Required<Options>;
}

/**
 * Throws DS_ARGUMENT if `given` is an optimizer. PyTorch's schedules take one as first argument.
 */
export function requireNoOptimizer(name: string, given: object): void {
  if (typeof given !== 'object' || given === null || !('groups' in given)) return;
  const hint =
    'Pass both to initialize({ optimizer, lrScheduler }). Without an engine, call schedule.apply(group, n) for each of optimizer.groups.';
  throw argumentError(name, 'only its options', 'an optimizer', hint);
}

export function requirePositiveInteger(location: string, value: unknown): void {
  if (typeof value === 'number' && Number.isInteger(value) && value > 0) return;
  refuseCount(location, 'a positive integer', value);
}

/**
 * Throws DS_CONFIG unless `value` is an integer of at least 0. As in DeepSpeed, 0 and 1 count as 2.
 */
export function requireWarmup(location: string, value: unknown): void {
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0) return;
  refuseCount(location, 'an integer of at least 0', value);
}

function refuseCount(op: string, expected: string, value: unknown): never {
  throw new DsError({ code: 'DS_CONFIG', op, expected, got: String(value) });
}
