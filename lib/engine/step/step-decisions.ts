// StepDecisions: reads each step decision one step later, then updates counters, loss scale, stop
// request and observers.
import { DsError } from '../../errors.js';
import type { LossScaler } from '../../optim/loss-scale.js';
import type { Optimizer } from '../../optim/optimizer.js';
import { requireHyperparameters } from '../../optim/param-groups.js';
import type { Metric } from '../../optim/reduce-on-plateau.js';
import type { ScheduleSet } from '../../optim/schedule-set.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireSignals, StopSignals } from '../../runtime/stop-signals.js';
import type { OptimizerState } from '../../zero/optimizer-state.js';
import type { ZeroStages } from '../../zero/stage.js';
import type { UpdatePlan } from '../../zero/state/strategies.js';
import type { EmptyBatches } from '../watch/empty-batches.js';
import type { StepWatch } from '../watch/step-watch.js';
import { mismatchError } from './copy-check.js';
import type { StepControl, StepDecision, UnevenBatches } from './step-control.js';

/** Options of engine.step(). */
export interface EngineStepOptions {
  /**
   * The metric for ReduceLrOnPlateau, as in DeepSpeed's lr_kwargs. It is used if the step updates,
   * and must be equal on every rank. step() throws DS_ARGUMENT if no schedule uses a metric.
   */
  metrics?: Metric;
}

/**
 * Plans the next update: its number and its hyperparameters. A plan is final only when the last
 * step decision is known, because a skipped update has no number.
 */
export class UpdatePlanner {
  constructor(
    private readonly optimizer: Optimizer,
    private readonly schedules: ScheduleSet,
    private readonly progress: Progress,
  ) {}

  /**
   * Returns the plan of the next update. `gradientScale` is the factor of its gradients. Sets the
   * hyperparameters of the groups. Throws DS_ARGUMENT if a hyperparameter is invalid.
   */
  plan(gradientScale: number): UpdatePlan {
    const { groups, name } = this.optimizer;
    this.schedules.apply(groups, this.scheduleTime);
    requireHyperparameters(name, groups);
    const step = this.progress.appliedSteps + 1;
    const settings = { step, groups: groups.map((group) => ({ ...group })) };
    return { settings, gradientScale };
  }

  /**
   * Returns the metric in the options of step(). Throws DS_ARGUMENT if no schedule uses a metric.
   */
  readMetric(given: EngineStepOptions): Metric | undefined {
    const { metrics } = readOptions('engine.step', given, namesOf.EngineStepOptions);
    if (metrics !== undefined) this.schedules.requireMetric('engine.step', metrics);
    return metrics;
  }

  /** Returns the learning rate of each group at the next update. */
  rates(): number[] {
    return this.schedules.rates(this.optimizer.groups, this.scheduleTime);
  }

  /** Returns the betas of each group. The list of a group without betas is empty. */
  betas(): (readonly number[])[] {
    return this.optimizer.groups.map(({ betas = [] }) => betas);
  }

  private get scheduleTime(): number {
    return this.progress.appliedSteps - this.progress.scheduleStart;
  }
}

interface StepDecisionParts {
  control: StepControl;
  scaler: LossScaler;
  progress: Progress;
  planner: UpdatePlanner;
  watch: StepWatch;
  stop: StopRequest;
  emptyBatches: EmptyBatches;
}

export class StepDecisions {
  /** Whether step() has enqueued an update with a decision that was not read yet. */
  private isDue = false;
  private latest: StepDecision | null = null;

  constructor(private readonly parts: StepDecisionParts) {}

  /** Called when the update of a step is enqueued. The next take() reads its decision. */
  markStep(): void {
    const { progress, watch, stop } = this.parts;
    this.isDue = true;
    progress.globalSteps++;
    watch.finishStep(progress.globalSteps, progress.globalSamples);
    stop.markStep();
  }

  /**
   * Reads the decision of the last step, once. Blocks until its backward has ended.
   *
   * - Throws DS_NONFINITE if the loss was not finite and the loss scale cannot shrink further.
   * - Throws DS_COMM if ranks of one model had different batches.
   * - Throws DS_ARGUMENT if ranks had different numbers of micro-batches.
   */
  take(): void {
    if (!this.isDue) return;
    this.isDue = false;
    const { control, scaler, progress, stop, emptyBatches } = this.parts;
    const decision = control.take();
    if (!decision) return;
    this.latest = decision;
    if (decision.stop) stop.markAgreement();
    if (decision.emptyBatches > 0) emptyBatches.report(decision.emptyBatches);
    if (decision.isApplied) progress.appliedSteps++;
    else progress.skippedSteps++;
    try {
      scaler.update(!decision.isFinite);
    } finally {
      this.notify(decision);
    }
    if (decision.uneven) throw unevenError(decision.uneven);
    if (decision.mismatch) throw mismatchError(decision.mismatch, progress.globalSteps);
    const { loss } = decision;
    if (loss !== null && !Number.isFinite(loss) && !scaler.dynamic) {
      throw nonfiniteError(progress.globalSteps, decision);
    }
  }

  /** Reads the last decision at the end of the run. A non-finite loss is no longer an error. */
  takeLast(): void {
    try {
      this.take();
    } catch (error) {
      if (!(error instanceof DsError && error.code === 'DS_NONFINITE')) throw error;
    }
  }

  /** The decision of the last step. Reads it if it was not read. Null before the first step. */
  get last(): StepDecision | null {
    this.take();
    return this.latest;
  }

  /** The loss scale of the next backward. Reads the decision of the last step first. */
  get lossScale(): number {
    this.take();
    return this.parts.scaler.scale;
  }

  private notify({ isApplied, loss, norm, busy }: StepDecision): void {
    const { progress, planner, scaler, watch } = this.parts;
    watch.report({
      step: progress.globalSteps,
      samples: progress.globalSamples,
      skipped: progress.skippedSteps,
      applied: isApplied,
      loss,
      norm,
      busy,
      lr: planner.rates(),
      betas: planner.betas(),
      lossScale: scaler.scale,
    });
  }
}

/** Returns the error for a batch size that only some ranks have changed. */
function unevenError({ first, other }: UnevenBatches): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'engine.step',
    expected: `${first.micros} micro-batches in a step, as on rank ${first.rank}`,
    got: `${other.micros} on rank ${other.rank}`,
    hint: 'Call engine.setTrainBatchSize() on all ranks with the same number, before the same step.',
  });
}

function nonfiniteError(step: number, decision: StepDecision): DsError {
  return new DsError({
    code: 'DS_NONFINITE',
    op: `step ${step}`,
    expected: 'a finite loss',
    got: `${decision.loss}`,
    hint: decision.isApplied
      ? 'The weights may be damaged: resume from the last checkpoint with a smaller learning rate.'
      : 'The step was skipped and changed no weight. Check the data, or lower the learning rate. If weights are NaN already, load a checkpoint.',
  });
}

/** Counters of training progress. Checkpoints store them. */
export interface Progress {
  /** Number of steps, including skipped ones. */
  globalSteps: number;
  /** Number of samples in these steps, over all ranks. */
  globalSamples: number;
  /** Number of steps skipped for non-finite gradients. */
  skippedSteps: number;
  /** Number of updates that changed the weights. This is t in Adam's formulas. */
  appliedSteps: number;
  /**
   * Schedules use the time appliedSteps - scheduleStart. It is 0, unless a load restored only the
   * optimizer or only the schedules.
   */
  scheduleStart: number;
}

export function noProgress(): Progress {
  return { globalSteps: 0, globalSamples: 0, skippedSteps: 0, appliedSteps: 0, scheduleStart: 0 };
}

interface StopOptions {
  /** Ranks of the job. */
  worldSize: number;
  /** Signals that request a stop. The first read of `isDue` or `signal` installs their handlers. */
  signals: readonly NodeJS.Signals[];
}

/** Sent by: the user at a terminal, a scheduler or launcher, and a terminal that closes. */
export const STOP_SIGNALS: readonly NodeJS.Signals[] = ['SIGINT', 'SIGTERM', 'SIGHUP'];

/**
 * Coordinates a stop between ranks. A rank sends its request in the exchange of every step, and all
 * ranks receive it with the step decision. A rank may read this decision early, because the
 * learning rate depends on it. So the request acts at the end of the next step, when every rank has
 * read the decision. In a job of one rank, it acts at once.
 */
export class StopRequest {
  private readonly controller = new AbortController();
  private signals: StopSignals | null = null;
  /** Why this rank requests a stop. Null if it does not. */
  private reason: string | null = null;
  /** Number of finished steps. */
  private steps = 0;
  /** Number of finished steps when the ranks received a request. Null before. */
  private agreedAt: number | null = null;
  private isDisposed = false;

  /** Throws DS_ARGUMENT for invalid signals. */
  constructor(private readonly options: StopOptions) {
    requireSignals(options.signals);
  }

  /** Requests a stop. If there are several requests, the first `reason` remains. */
  request(reason: string): void {
    this.reason ??= reason;
  }

  get isRequested(): boolean {
    this.reason ??= this.signals?.receivedSignals ?? null;
    return this.reason !== null;
  }

  /** Whether all ranks must stop now. The first read installs the signal handlers. */
  get isDue(): boolean {
    this.listen();
    const { worldSize } = this.options;
    const due =
      worldSize === 1 ? this.isRequested : this.agreedAt !== null && this.steps > this.agreedAt;
    if (due && !this.controller.signal.aborted) {
      this.controller.abort(new Error(`Stop requested by ${this.reason ?? 'another rank'}.`));
    }
    return due;
  }

  /** Aborts when `isDue` becomes true, at the end of a step or at a read of `isDue`. */
  get signal(): AbortSignal {
    this.listen();
    return this.controller.signal;
  }

  /** Called when a step decision contains the request of a rank. */
  markAgreement(): void {
    this.agreedAt ??= this.steps;
  }

  /** Counts a finished step. */
  markStep(): void {
    this.steps++;
    if (this.signals) void this.isDue;
  }

  dispose(): void {
    this.isDisposed = true;
    this.signals?.dispose();
    this.signals = null;
  }

  private listen(): void {
    if (!this.isDisposed) this.signals ??= new StopSignals(this.options.signals);
  }
}

/**
 * Makes the weights of all ranks equal if local updates let them differ. It then waits for the last
 * step decision. All ranks must call it.
 */
export function resync({
  state,
  stage,
  stepDecisions,
  progress,
}: {
  state: OptimizerState;
  stage: ZeroStages;
  stepDecisions: StepDecisions;
  progress: Progress;
}): void {
  if (!state.needsResync) return;
  stepDecisions.take();
  state.resync(progress.appliedSteps, stage);
  stage.dispatch();
}
