// Plans the next update: its number, and the hyperparameters by the schedules.
import type { Optimizer } from '../../optim/optimizer.js';
import { requireHyperparameters } from '../../optim/param-groups.js';
import type { ScheduleSet } from '../../optim/schedule-set.js';
import type { UpdatePlan } from '../../zero/schedule/schedule.js';
import type { Progress } from './progress.js';

/**
 * A plan is final only after the last step decision is read, because skipped updates have no
 * number.
 */
export class UpdatePlanner {
  constructor(
    private readonly optimizer: Optimizer,
    private readonly schedules: ScheduleSet,
    private readonly progress: Progress,
  ) {}

  /**
   * Returns the next update for gradients with the factor `gradientScale`, and sets the groups'
   * hyperparameters. Throws DS_ARGUMENT if a hyperparameter is invalid.
   */
  plan(gradientScale: number): UpdatePlan {
    const { groups, name } = this.optimizer;
    this.schedules.apply(groups, this.scheduleTime);
    requireHyperparameters(name, groups);
    const step = this.progress.appliedSteps + 1;
    const settings = { step, groups: groups.map((group) => ({ ...group })) };
    return { settings, gradientScale };
  }

  /** Returns the learning rate of each group at the next update. */
  rates(): number[] {
    return this.schedules.rates(this.optimizer.groups, this.scheduleTime);
  }

  /** By group; empty without betas. */
  betas(): (readonly number[])[] {
    return this.optimizer.groups.map(({ betas = [] }) => betas);
  }

  private get scheduleTime(): number {
    return this.progress.appliedSteps - this.progress.scheduleStart;
  }
}
