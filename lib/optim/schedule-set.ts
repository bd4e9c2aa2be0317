// The schedules of an optimizer's groups as one: a schedule per group, or one that all groups
// share.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { answerPythonNames } from '../runtime/python-names.js';
import { refused, refusedValue } from '../runtime/refused.js';
import type { ParamGroup } from './param-groups.js';
import { type Metric, ReduceLrOnPlateau } from './reduce-on-plateau.js';
import type { LrSchedule } from './schedule.js';

/**
 * `schedules[i]` governs group i; an object that stands for several groups keeps one state. Groups
 * without a schedule keep the rate that their owner sets.
 */
export class ScheduleSet {
  static {
    const others = { get_lr: 'engine.getLr()', get_last_lr: 'engine.getLr()' };
    answerPythonNames(ScheduleSet, { label: 'lrScheduler', others });
  }

  private readonly distinct: readonly LrSchedule[];

  constructor(
    /** The schedule of each group; an object may stand for several. */
    readonly schedules: readonly LrSchedule[],
  ) {
    this.distinct = [...new Set(schedules)];
  }

  /** The names of its schedules, each once. */
  get name(): string {
    return this.distinct.map(({ name }) => name).join(', ');
  }

  /** Sets the groups for the update after `appliedSteps` others. */
  apply(groups: readonly ParamGroup[], appliedSteps: number): void {
    groups.forEach((group, i) => {
      this.schedules[i]?.apply(group, appliedSteps);
    });
  }

  /** The rate of each group after `appliedSteps` updates. */
  rates(groups: readonly ParamGroup[], appliedSteps: number): number[] {
    return groups.map((group, i) => this.schedules[i]?.lr(appliedSteps) ?? group.lr);
  }

  /**
   * ReduceLrOnPlateau observes `metric`, as PyTorch's step(metric). Other schedules advance with
   * the updates of engine.step(). Throws DS_ARGUMENT where no schedule observes a metric, or
   * without one.
   */
  step(metric?: Metric): void {
    this.observe('lrScheduler.step', metric);
    if (this.watching.length > 0) return;
    const hint = 'Leave it out: engine.step() advances the schedule with each update.';
    throw refused(
      'lrScheduler.step',
      'a ReduceLrOnPlateau, which observes a metric',
      this.name || 'no schedule',
      hint,
    );
  }

  /** @internal Throws as requireMetric(). */
  observe(op: string, metric: Metric | undefined): void {
    this.requireMetric(op, metric);
    for (const schedule of this.watching) schedule.observe(metric as Metric);
  }

  /** @internal Throws DS_ARGUMENT where `metric` is missing, or observed by no schedule. */
  requireMetric(op: string, metric: Metric | undefined): void {
    const { watching } = this;
    if (watching.length > 0 && metric === undefined) {
      const hint = 'ReduceLrOnPlateau observes it: step(loss).';
      throw refused(op, 'the metric that ReduceLrOnPlateau observes', 'none', hint);
    }
    if (watching.length === 0 && metric !== undefined) {
      const expected = 'no metric: the schedule observes none';
      throw refusedValue(op, expected, metric, 'Leave the metric out.');
    }
  }

  private get watching(): ReduceLrOnPlateau[] {
    return this.distinct.filter((one) => one instanceof ReduceLrOnPlateau);
  }

  /** The state of each distinct schedule, for a checkpoint. */
  stateDict(): JsonObject {
    return { schedules: this.distinct.map((schedule) => schedule.stateDict()) };
  }

  /** Throws DS_CHECKPOINT when the state is of another number of schedules. */
  requireFitting(state: JsonObject): void {
    const states = state.schedules as JsonObject[];
    if (states.length === this.distinct.length) return;
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: 'lr_scheduler',
      expected: `the state of ${this.distinct.length} schedules`,
      got: `that of ${states.length}`,
      hint: 'Use the scheduler that it was saved with; { loadLrSchedulerStates: false } starts this one afresh.',
    });
  }

  /** Throws DS_CHECKPOINT: see requireFitting(). */
  loadStateDict(state: JsonObject): void {
    this.requireFitting(state);
    const states = state.schedules as JsonObject[];
    this.distinct.forEach((schedule, i) => {
      schedule.loadStateDict(states[i] as JsonObject);
    });
  }
}
