// What the engine needs of a learning-rate schedule: the rate as a function of the updates applied
// so far.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import type { OptionNames } from '../runtime/options.js';
import { refused } from '../runtime/refused.js';
import { requireFinite } from '../runtime/require-number.js';
import { isChoice, readChoices } from './choices.js';
import type { ParamGroup } from './param-groups.js';

/** What a schedule may set in a group of parameters. */
export type ScheduledGroup = Pick<ParamGroup, 'lr' | 'betas'>;

/**
 * The engine calls apply(group, n) before update number n (from 0) and counts only updates that
 * were applied: one that was skipped for an overflow does not advance the schedule. DeepSpeed's
 * `last_batch_iteration` is n - 1, PyTorch's `last_epoch` is n.
 */
export interface LrSchedule {
  /** What it is called in configurations, logs and errors. */
  readonly name: string;
  /** The learning rate in effect after `appliedSteps` updates. */
  lr(appliedSteps: number): number;
  /** Sets all that the schedule governs in `group`: the rate, with OneCycle also the betas. */
  apply(group: ScheduledGroup, appliedSteps: number): void;
  /** What a checkpoint keeps; empty for a schedule that depends on the number of updates alone. */
  stateDict(): JsonObject;
  /** Takes over what stateDict() gave. Throws DS_CHECKPOINT for the state of another kind. */
  loadStateDict(state: JsonObject): void;
}

/** A schedule without memory: extend it with a name and lr(), a pure function. */
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

/**
 * The options of schedule `name` by their own names. Throws DS_ARGUMENT for an unknown one, for a
 * switch or word that there is not, and for what else is no finite number; `required` ones have no
 * default.
 */
export function readSchedule<Options extends object>(
  name: string,
  given: Options,
  known: OptionNames<Options>,
  required: readonly (keyof Options & string)[],
): Options {
  requireNoOptimizer(name, given);
  const options = readChoices<Options>(name, given, known);
  for (const key of required) requireFinite(`${name} ${key}`, options[key]);
  for (const [key, value] of Object.entries(options)) {
    if (value != null && key !== 'milestones' && !isChoice(key))
      requireFinite(`${name} ${key}`, value);
  }
  return options;
}

/** Throws DS_ARGUMENT for an optimizer, which schedules of PyTorch are given first. */
export function requireNoOptimizer(name: string, given: object): void {
  if (typeof given !== 'object' || given === null || !('groups' in given)) return;
  const hint =
    'initialize({ optimizer, lrScheduler }) brings both together; without an engine call schedule.apply(group, n) for each of optimizer.groups.';
  throw refused(name, 'its options alone', 'an optimizer', hint);
}

/** Throws DS_CONFIG unless `value` is an integer of at least 1. */
export function requirePositiveInteger(place: string, value: unknown): void {
  if (Number.isInteger(value) && (value as number) > 0) return;
  refuseCount(place, 'a positive integer', value);
}

/**
 * Throws DS_CONFIG unless `value` is an integer of at least 0: DeepSpeed takes fewer than 2 as 2.
 */
export function requireWarmup(place: string, value: unknown): void {
  if (Number.isInteger(value) && (value as number) >= 0) return;
  refuseCount(place, 'an integer of at least 0', value);
}

function refuseCount(op: string, expected: string, value: unknown): never {
  throw new DsError({ code: 'DS_CONFIG', op, expected, got: String(value) });
}
