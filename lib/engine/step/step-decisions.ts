// Reads each step decision one step later, and updates counters, loss scale, the stop request and
// observers.
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
   * The metric for ReduceLrOnPlateau after an update, like DeepSpeed's lr_kwargs; equal on every
   * rank. Throws DS_ARGUMENT if no schedule uses it.
   */
  metrics?: Metric;
}

/**
 * Plans the next update: its number and hyperparameters. A plan is final only after the last step
 * decision is read, because skipped updates have no number.
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

  /** Returns the metric of the options of step(). Throws DS_ARGUMENT if no schedule uses it. */
  readMetric(given: EngineStepOptions): Metric | undefined {
    const { metrics } = readOptions('engine.step', given, namesOf.EngineStepOptions);
    if (metrics !== undefined) this.schedules.requireMetric('engine.step', metrics);
    return metrics;
  }

  /** Returns the learning rate of each group at the next update. */
  rates(): number[] {
    return this.schedules.rates(this.optimizer.groups, this.scheduleTime);
  }

  /** Returns the betas of each group; an empty list for a group without betas. */
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
  /** Whether step() has applied a decision that was not read yet. */
  private isDue = false;
  private latest: StepDecision | null = null;

  constructor(private readonly parts: StepDecisionParts) {}

  /** Marks the update of a step as enqueued. The next take() reads its decision. */
  markStep(): void {
    const { progress, watch, stop } = this.parts;
    this.isDue = true;
    progress.globalSteps++;
    watch.finishStep(progress.globalSteps, progress.globalSamples);
    stop.markStep();
  }

  /**
   * Reads the last step's decision, once. Waits for its backward.
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

  /** Reads the last decision at the end of the run. A non-finite loss no longer matters. */
  takeLast(): void {
    try {
      this.take();
    } catch (error) {
      if (!(error instanceof DsError && error.code === 'DS_NONFINITE')) throw error;
    }
  }

  /** The decision of the last step; null before the first. Reads it if necessary. */
  get last(): StepDecision | null {
    this.take();
    return this.latest;
  }

  /** The loss scale of the next backward, after the last step's decision. */
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

/** Returns the error of a batch size that only some ranks changed. */
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

/** The training progress of an engine. */
export interface Progress {
  /** Optimizer steps, including skipped ones. */
  globalSteps: number;
  /** Samples of all ranks in these steps. */
  globalSamples: number;
  /** Steps without an update because of non-finite gradients. */
  skippedSteps: number;
  /** Updates that changed the weights: Adam's t. */
  appliedSteps: number;
  /**
   * Schedules run at appliedSteps - scheduleStart. It is 0 unless a load restored only the
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
  /** Signals that request a stop. They count from the first read of `isDue` or `signal`. */
  signals: readonly NodeJS.Signals[];
}

/** The user at the terminal, a scheduler or launcher, and a closed terminal send these. */
export const STOP_SIGNALS: readonly NodeJS.Signals[] = ['SIGINT', 'SIGTERM', 'SIGHUP'];

/**
 * A rank sends its request with its gradient norm, in the exchange of every step, and all ranks
 * receive it with the step decision. A rank may take that decision early (the learning rate needs
 * it). So the request acts at the end of the next step: every rank has taken the decision by then.
 * A job of one rank does not wait.
 */
export class StopRequest {
  private readonly controller = new AbortController();
  private signals: StopSignals | null = null;
  /** Why this rank requests a stop; null if it does not. */
  private reason: string | null = null;
  /** Finished steps. */
  private steps = 0;
  /** Number of finished steps when the ranks received a request; null before. */
  private agreedAt: number | null = null;
  private isDisposed = false;

  /** Throws DS_ARGUMENT for invalid signals. */
  constructor(private readonly options: StopOptions) {
    requireSignals(options.signals);
  }

  /** Requests a stop; the first `reason` stands. */
  request(reason: string): void {
    this.reason ??= reason;
  }

  get isRequested(): boolean {
    this.reason ??= this.signals?.receivedSignals ?? null;
    return this.reason !== null;
  }

  /** Whether all ranks must stop now. The first read starts to listen to signals. */
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

  /** Aborts when isDue becomes true at the end of a step, or at a read of isDue. */
  get signal(): AbortSignal {
    this.listen();
    return this.controller.signal;
  }

  /** Marks that the step decision contains the request of a rank. */
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
 * Makes the weights of all ranks equal if an optimizer lets them differ; waits for the last step
 * decision then. All ranks call it.
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
