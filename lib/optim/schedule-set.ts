// ScheduleSet: the learning-rate schedules of an optimizer's groups. The engine and LrScheduler own
// one.

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { definePythonNames } from '../runtime/python-names.js';
import { required } from '../runtime/required.js';
import type { ParamGroup } from './param-groups.js';
import { type Metric, ReduceLrOnPlateau } from './reduce-on-plateau.js';
import type { LrSchedule } from './schedule.js';

/**
 * The schedules of several parameter groups: `schedules[i]` sets the rate of group i. Groups that
 * share a schedule object share its state. A group without a schedule keeps its rate.
 */
export class ScheduleSet {
  static {
    const others = { get_lr: 'engine.getLr()', get_last_lr: 'engine.getLr()' };
    definePythonNames(ScheduleSet, { label: 'lrScheduler', others });
  }

  private readonly distinct: readonly LrSchedule[];

  /** `schedules[i]` sets the learning rate of group i. */
  constructor(
    /** The schedule of each group. Groups may share an object. */
    readonly schedules: readonly LrSchedule[],
  ) {
    this.distinct = [...new Set(schedules)];
  }

  /** The names of its schedules, each once. */
  get name(): string {
    return this.distinct.map(({ name }) => name).join(', ');
  }

  /** Sets the learning rates for the next update, after `appliedSteps` updates. */
  apply(groups: readonly ParamGroup[], appliedSteps: number): void {
    groups.forEach((group, i) => {
      this.schedules[i]?.apply(group, appliedSteps);
    });
  }

  /** Returns the learning rate of each group after `appliedSteps` updates. */
  rates(groups: readonly ParamGroup[], appliedSteps: number): number[] {
    return groups.map((group, i) => this.schedules[i]?.lr(appliedSteps) ?? group.lr);
  }

  /**
   * Passes `metric` to ReduceLrOnPlateau, like PyTorch's step(metric). engine.step() advances all
   * other schedules. Throws DS_ARGUMENT without a metric, or if no schedule uses it.
   */
  step(metric?: Metric): void {
    this.observe('lrScheduler.step', metric);
    if (this.watching.length > 0) return;
    const hint = 'Remove the call: engine.step() advances the schedule with each update.';
    throw argumentError(
      'lrScheduler.step',
      'a ReduceLrOnPlateau schedule',
      this.name || 'no schedule',
      hint,
    );
  }

  /** @internal Passes `metric` to each ReduceLrOnPlateau. Throws as requireMetric() does. */
  observe(op: string, metric: Metric | undefined): void {
    this.requireMetric(op, metric);
    for (const schedule of this.watching) schedule.observe(required(metric));
  }

  /**
   * @internal Throws DS_ARGUMENT if a schedule needs a metric and it is missing, or the reverse.
   */
  requireMetric(op: string, metric: Metric | undefined): void {
    const { watching } = this;
    if (watching.length > 0 && metric === undefined) {
      const hint = 'Pass it to ReduceLrOnPlateau: step(loss).';
      throw argumentError(op, 'the metric of ReduceLrOnPlateau', 'no metric', hint);
    }
    if (watching.length === 0 && metric !== undefined) {
      const expected = 'no metric, because no schedule uses it';
      throw valueError(op, expected, metric, 'Remove the metric.');
    }
  }

  private get watching(): ReduceLrOnPlateau[] {
    return this.distinct.filter((schedule) => schedule instanceof ReduceLrOnPlateau);
  }

  /** Returns the state of each distinct schedule, for a checkpoint. */
  stateDict(): JsonObject {
    return { schedules: this.distinct.map((schedule) => schedule.stateDict()) };
  }

  /** Throws DS_CHECKPOINT if the state has another number of schedules. */
  requireFitting(state: JsonObject): void {
    const states = state.schedules as JsonObject[];
    if (states.length === this.distinct.length) return;
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: 'lr_scheduler',
      expected: `the state of ${this.distinct.length} schedules`,
      got: `the state of ${states.length}`,
      hint: 'Use the scheduler of the save, or restart this one with { loadLrSchedulerStates: false }.',
    });
  }

  /** Throws DS_CHECKPOINT if the state has another number of schedules. */
  loadStateDict(state: JsonObject): void {
    this.requireFitting(state);
    const states = state.schedules as JsonObject[];
    this.distinct.forEach((schedule, i) => {
      schedule.loadStateDict(required(states[i]));
    });
  }
}
