// A schedule that a training loop without an engine advances by itself.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import type { Optimizer } from './optimizer.js';
import type { ParamGroup } from './param-groups.js';
import type { Metric } from './reduce-on-plateau.js';
import type { LrSchedule } from './schedule.js';
import { ScheduleSet } from './schedule-set.js';

/**
 * Moves an optimizer's rates by any schedule, as torch.optim.lr_scheduler does: construction sets
 * those of the first update, and step() after each opt.step() those of the next. An engine does
 * this itself: give it `lrScheduler`.
 */
export class LrScheduler {
  private readonly schedules: ScheduleSet;
  private readonly groups: readonly ParamGroup[];
  private steps = 0;

  /**
   * `schedule` governs all groups alike; a function makes one for each, from the group with the
   * rate it has now: `new LrScheduler(opt, ({ lr }) => new LinearLr({ baseLr: lr }))`. Throws
   * DS_ARGUMENT for anything else.
   */
  constructor(
    optimizer: Pick<Optimizer, 'groups'>,
    schedule: LrSchedule | ((group: ParamGroup, index: number) => LrSchedule),
  ) {
    const groups = optimizer?.groups;
    if (!Array.isArray(groups)) {
      throw misuse('an optimizer', optimizer, 'Pass the optimizer first, then the schedule.');
    }
    this.groups = groups;
    const all = groups.map((group: ParamGroup, index) =>
      typeof schedule === 'function' ? schedule(group, index) : schedule,
    );
    for (const one of all) requireSchedule(one);
    this.schedules = new ScheduleSet(all);
    this.schedules.apply(this.groups, 0);
  }

  /**
   * Counts an update and sets the rates of the next. `metric` is what a ReduceLrOnPlateau observes,
   * which needs one; other schedules take none. Throws DS_ARGUMENT.
   */
  step(metric?: Metric): void {
    this.schedules.observe('LrScheduler', metric);
    this.schedules.apply(this.groups, ++this.steps);
  }

  /** The rate of each group for the next update. */
  get lastLr(): number[] {
    return this.groups.map(({ lr }) => lr);
  }

  /** The number of steps, and what schedules with a memory keep. */
  stateDict(): JsonObject {
    return { steps: this.steps, ...this.schedules.stateDict() };
  }

  /** Throws DS_CHECKPOINT for the state of other schedules; then nothing has changed. */
  loadStateDict(state: JsonObject): void {
    const { steps, ...rest } = state ?? {};
    if (!Number.isSafeInteger(steps) || (steps as number) < 0 || !Array.isArray(rest.schedules)) {
      const expected = 'what stateDict() gives';
      const op = 'LrScheduler.loadStateDict';
      throw new DsError({ code: 'DS_CHECKPOINT', op, expected, got: JSON.stringify(state) });
    }
    this.schedules.loadStateDict(rest);
    this.steps = steps as number;
    this.schedules.apply(this.groups, this.steps);
  }
}

function requireSchedule(schedule: unknown): void {
  const given = schedule as Partial<LrSchedule> | null | undefined;
  if (typeof given?.apply === 'function' && typeof given.lr === 'function') return;
  const hint = 'For example ({ lr }) => new optim.LinearLr({ baseLr: lr }).';
  throw misuse('a schedule, or a function that makes one of a group', schedule, hint);
}

function misuse(expected: string, got: unknown, hint: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'LrScheduler',
    expected,
    got: formatValue(got),
    hint,
  });
}
