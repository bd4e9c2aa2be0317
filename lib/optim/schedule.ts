// What the engine needs of a learning-rate schedule: the rate as a function of the updates applied
// so far.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import type { ParamGroup } from './param-groups.js';

/** What a schedule may set in a group of parameters. */
export type ScheduledGroup = Pick<ParamGroup, 'lr' | 'betas'>;

/**
 * The engine calls apply(group, n) before update number n (from 0) and counts only updates that
 * were applied: one that was skipped for an overflow does not advance the schedule. DeepSpeed's
 * `last_batch_iteration` is n - 1, PyTorch's `last_epoch` is n.
 */
export interface LrSchedule {
  readonly name: string;
  /** The learning rate in effect after `appliedSteps` updates. */
  lr(appliedSteps: number): number;
  /** Sets all that the schedule governs in `group`: the rate, with OneCycle also the betas. */
  apply(group: ScheduledGroup, appliedSteps: number): void;
  /** What a checkpoint keeps; empty for a schedule that depends on the number of updates alone. */
  stateDict(): JsonObject;
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

/** Throws DS_CONFIG unless `value` is an integer of at least 1. */
export function requirePositiveInteger(place: string, value: unknown): void {
  if (Number.isInteger(value) && (value as number) > 0) return;
  throw new DsError({
    code: 'DS_CONFIG',
    op: place,
    expected: 'a positive integer',
    got: String(value),
  });
}
