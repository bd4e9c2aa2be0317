// LrScheduler: runs a learning-rate schedule in a training loop without an engine.

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { valueError } from '../runtime/input-errors.js';
import type { Optimizer } from './optimizer.js';
import type { ParamGroup } from './param-groups.js';
import type { Metric } from './reduce-on-plateau.js';
import type { LrSchedule } from './schedule.js';
import { ScheduleSet } from './schedule-set.js';

/**
 * Sets the learning rates of an optimizer by any schedule, like torch.optim.lr_scheduler. The
 * constructor sets the rates of the first update. Call step() after each opt.step() to set the next
 * rates. An engine does this itself: pass it `lrScheduler` instead.
 */
export class LrScheduler {
  private readonly schedules: ScheduleSet;
  private readonly groups: readonly ParamGroup[];
  private steps = 0;

  /**
   * `schedule` is one schedule for all groups, or a function that returns the schedule of a group:
   * `new LrScheduler(opt, ({ lr }) => new LinearLr({ baseLr: lr }))`. Throws DS_ARGUMENT for other
   * values.
   */
  constructor(
    optimizer: Pick<Optimizer, 'groups'>,
    schedule: LrSchedule | ((group: ParamGroup, index: number) => LrSchedule),
  ) {
    const groups = optimizer?.groups;
    if (!Array.isArray(groups)) {
      throw misuseError('an optimizer', optimizer, 'Pass the optimizer first, then the schedule.');
    }
    this.groups = groups;
    const all = groups.map((group: ParamGroup, index) =>
      typeof schedule === 'function' ? schedule(group, index) : schedule,
    );
    for (const schedule of all) requireSchedule(schedule);
    this.schedules = new ScheduleSet(all);
    this.schedules.apply(this.groups, 0);
  }

  /**
   * Counts an update, and sets the learning rates of the next one. ReduceLrOnPlateau requires
   * `metric`; other schedules do not accept it. Throws DS_ARGUMENT if the metric is missing, or if
   * no schedule uses it.
   */
  step(metric?: Metric): void {
    this.schedules.observe('LrScheduler', metric);
    this.schedules.apply(this.groups, ++this.steps);
  }

  /** The learning rate of each group for the next update. */
  get lastLr(): number[] {
    return this.groups.map(({ lr }) => lr);
  }

  /** Returns the number of steps, and the state of the schedules. */
  stateDict(): JsonObject {
    return { steps: this.steps, ...this.schedules.stateDict() };
  }

  /** Throws DS_CHECKPOINT if the state is of other schedules. Then nothing has changed. */
  loadStateDict(state: JsonObject): void {
    const { steps, ...rest } = state ?? {};
    if (
      typeof steps !== 'number' ||
      !Number.isSafeInteger(steps) ||
      steps < 0 ||
      !Array.isArray(rest.schedules)
    ) {
      const expected = 'a result of stateDict()';
      const op = 'LrScheduler.loadStateDict';
      throw new DsError({ code: 'DS_CHECKPOINT', op, expected, got: JSON.stringify(state) });
    }
    this.schedules.loadStateDict(rest);
    this.steps = steps;
    this.schedules.apply(this.groups, this.steps);
  }
}

function requireSchedule(schedule: unknown): void {
  const given = schedule as Partial<LrSchedule> | null | undefined;
  if (typeof given?.apply === 'function' && typeof given.lr === 'function') return;
  const hint = 'For example ({ lr }) => new optim.LinearLr({ baseLr: lr }).';
  throw misuseError('a schedule, or a function from a group to a schedule', schedule, hint);
}

function misuseError(expected: string, got: unknown, hint: string): DsError {
  return valueError('LrScheduler', expected, got, hint);
}
