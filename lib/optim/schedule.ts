// What the engine needs of a learning-rate schedule: the rate as a function of the updates applied
// so far.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';

/**
 * The engine asks for lr(n) before applying update number n (from 0) and counts only updates that
 * were applied: one that was skipped for an overflow does not advance the schedule. DeepSpeed's
 * `last_batch_iteration` is n - 1.
 */
export interface LrSchedule {
  readonly name: string;
  /** The learning rate in effect after `appliedSteps` updates. */
  lr(appliedSteps: number): number;
  /** What a checkpoint keeps; empty for a schedule that depends on the number of updates alone. */
  stateDict(): JsonObject;
  loadStateDict(state: JsonObject): void;
}

/** A schedule without memory: lr() is a pure function. */
export abstract class PureSchedule implements LrSchedule {
  abstract readonly name: string;
  abstract lr(appliedSteps: number): number;

  stateDict(): JsonObject {
    return {};
  }

  loadStateDict(_state: JsonObject): void {}
}

/** The same rate for every update. */
export class ConstantLr extends PureSchedule {
  readonly name = 'constant';

  constructor(private readonly rate: number) {
    super();
  }

  lr(): number {
    return this.rate;
  }
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
