// Takes each step's decision, one step later: counters, loss scale, what observers are told, and
// whether training goes on.
import { DsError } from '../../errors.js';
import type { LossScaler } from '../../optim/loss-scale.js';
import { nonfinite, uneven } from '../engine-errors.js';
import type { StepWatch } from '../watch/step-watch.js';
import { apart } from './copies-apart.js';
import type { Progress } from './progress.js';
import type { StepControl, StepDecision } from './step-control.js';
import type { StopRequest } from './stop-request.js';
import type { UpdatePlanner } from './update-planner.js';

export interface StepDecisionParts {
  control: StepControl;
  scaler: LossScaler;
  progress: Progress;
  planner: UpdatePlanner;
  watch: StepWatch;
  stop: StopRequest;
}

export class StepDecisions {
  /** step() has applied what was decided, and nobody has asked for the step decision since. */
  private due = false;
  private latest: StepDecision | null = null;

  constructor(private readonly parts: StepDecisionParts) {}

  /** A step's update has been enqueued: the next take() is about it. */
  stepped(): void {
    const { progress, watch, stop } = this.parts;
    this.due = true;
    progress.globalSteps++;
    watch.finishStep(progress.globalSteps, progress.globalSamples);
    stop.stepped();
  }

  /**
   * Takes the last step's decision into account, once. Waits for its backward. Throws DS_NONFINITE
   * when the loss was not finite and no smaller loss scale can help, DS_COMM when ranks of one
   * model were given other batches, DS_ARGUMENT when ranks made steps of other numbers of
   * micro-batches.
   */
  take(): void {
    if (!this.due) return;
    this.due = false;
    const { control, scaler, progress, stop } = this.parts;
    const decision = control.take();
    if (!decision) return;
    this.latest = decision;
    if (decision.stop) stop.agreed();
    if (decision.applied) progress.appliedSteps++;
    else progress.skippedSteps++;
    try {
      scaler.update(!decision.finite);
    } finally {
      this.notify(decision);
    }
    if (decision.uneven) throw uneven(decision.uneven);
    if (decision.apart) throw apart(decision.apart, progress.globalSteps);
    const { loss } = decision;
    if (loss !== null && !Number.isFinite(loss) && !scaler.dynamic) {
      throw nonfinite(progress.globalSteps, decision);
    }
  }

  /** The run ends: whether training could have gone on no longer matters. */
  takeLast(): void {
    try {
      this.take();
    } catch (error) {
      if (!(error instanceof DsError && error.code === 'DS_NONFINITE')) throw error;
    }
  }

  /** That of the last step; null before the first. Takes it. */
  get last(): StepDecision | null {
    this.take();
    return this.latest;
  }

  /** Of the next backward, once the last step's decision was taken. */
  get lossScale(): number {
    this.take();
    return this.parts.scaler.scale;
  }

  private notify({ applied, loss, norm }: StepDecision): void {
    const { progress, planner, scaler, watch } = this.parts;
    watch.report({
      step: progress.globalSteps,
      samples: progress.globalSamples,
      skipped: progress.skippedSteps,
      ...{ applied, loss, norm },
      lr: planner.rates(),
      betas: planner.betas(),
      lossScale: scaler.scale,
    });
  }
}
