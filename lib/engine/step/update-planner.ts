// Plans the coming update: its number, and the hyperparameters that the schedules give it.
import type { Optimizer } from '../../optim/optimizer.js';
import { requireHyperparameters } from '../../optim/param-groups.js';
import type { ScheduleSet } from '../../optim/schedule-set.js';
import type { UpdatePlan } from '../../zero/schedule/schedule.js';
import type { Progress } from './progress.js';

/**
 * What it says is certain once the last step's decision was taken: a skipped update has no number.
 */
export class UpdatePlanner {
  constructor(
    private readonly optimizer: Optimizer,
    private readonly schedules: ScheduleSet,
    private readonly progress: Progress,
  ) {}

  /**
   * The coming update of gradients that carry the factor `gradientScale`; sets the groups'
   * hyperparameters. Throws DS_ARGUMENT where these, or what a caller has set, are none.
   */
  plan(gradientScale: number): UpdatePlan {
    const { groups, name } = this.optimizer;
    this.schedules.apply(groups, this.scheduleTime);
    requireHyperparameters(name, groups);
    const step = this.progress.appliedSteps + 1;
    const settings = { step, groups: groups.map((group) => ({ ...group })) };
    return { settings, gradientScale };
  }

  /** The learning rate of each group at the coming update. */
  rates(): number[] {
    return this.schedules.rates(this.optimizer.groups, this.scheduleTime);
  }

  /** Of each group; empty where the optimizer has none. */
  betas(): (readonly number[])[] {
    return this.optimizer.groups.map(({ betas = [] }) => betas);
  }

  private get scheduleTime(): number {
    return this.progress.appliedSteps - this.progress.scheduleStart;
  }
}
