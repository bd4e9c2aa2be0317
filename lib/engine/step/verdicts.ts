// Takes each step's verdict, one step later: counters, loss scale, what observers are told, and
// whether training goes on.
import { DsError } from '../../errors.js';
import type { LossScaler } from '../../optim/loss-scale.js';
import { nonfinite, uneven } from '../engine-errors.js';
import type { StepWatch } from '../watch/step-watch.js';
import { apart } from './copies-apart.js';
import type { Progress } from './progress.js';
import type { StepControl, Verdict } from './step-control.js';
import type { StopRequest } from './stop-request.js';
import type { UpdatePlanner } from './update-planner.js';

export interface VerdictParts {
  control: StepControl;
  scaler: LossScaler;
  progress: Progress;
  planner: UpdatePlanner;
  watch: StepWatch;
  stop: StopRequest;
}

export class Verdicts {
  /** step() has applied what was decided, and nobody has asked for the verdict since. */
  private due = false;
  private latest: Verdict | null = null;

  constructor(private readonly parts: VerdictParts) {}

  /** A step's update has been enqueued: the next take() is about it. */
  stepped(): void {
    const { progress, watch, stop } = this.parts;
    this.due = true;
    progress.globalSteps++;
    watch.finishStep(progress.globalSteps, progress.globalSamples);
    stop.stepped();
  }

  /**
   * Takes the last step's verdict into account, once. Waits for its backward. Throws DS_NONFINITE
   * when the loss was not finite and no smaller loss scale can help, DS_COMM when ranks of one
   * model were given other batches, DS_ARGUMENT when ranks made steps of other numbers of
   * micro-batches.
   */
  take(): void {
    if (!this.due) return;
    this.due = false;
    const { control, scaler, progress, stop } = this.parts;
    const verdict = control.take();
    if (!verdict) return;
    this.latest = verdict;
    if (verdict.stop) stop.agreed();
    if (verdict.applied) progress.appliedSteps++;
    else progress.skippedSteps++;
    try {
      scaler.update(!verdict.finite);
    } finally {
      this.report(verdict);
    }
    if (verdict.uneven) throw uneven(verdict.uneven);
    if (verdict.apart) throw apart(verdict.apart, progress.globalSteps);
    const { loss } = verdict;
    if (loss !== null && !Number.isFinite(loss) && !scaler.dynamic) {
      throw nonfinite(progress.globalSteps, verdict);
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
  get last(): Verdict | null {
    this.take();
    return this.latest;
  }

  /** Of the next backward, once the last step's verdict was taken. */
  get lossScale(): number {
    this.take();
    return this.parts.scaler.scale;
  }

  private report({ applied, loss, norm }: Verdict): void {
    const { progress, planner, scaler, watch } = this.parts;
    watch.tell({
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
