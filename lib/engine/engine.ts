// The engine: one training step as DeepSpeed users know it, forward / backward / step.
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import type { LossScaler } from '../optim/loss-scale.js';
import type { Optimizer } from '../optim/optimizer.js';
import type { LrSchedule } from '../optim/schedule.js';
import type { Device } from '../runtime/device.js';
import * as kernels from '../runtime/kernels.generated.js';
import { backward, held, Scope, surrenderResult, Tensor, within } from '../tensor/index.js';
import type { Placement, UpdatePlan } from '../zero/placement.js';
import type { Unit } from '../zero/unit.js';
import type { StepObserver } from './observer.js';
import {
  EventTimer,
  type PhaseTimer,
  type PhaseTimes,
  type TimedStep,
  untimed,
} from './phase-timer.js';
import {
  type LoadedCheckpoint,
  type LoadOptions,
  loadEngine,
  type SaveOptions,
  saveEngine,
} from './snapshot.js';
import type { StepControl, Verdict } from './step-control.js';

/** Everything the engine is made of; build.ts puts it together. */
export interface EngineParts {
  module: Module;
  device: Device;
  /** In forward order. */
  units: readonly Unit[];
  placement: Placement;
  optimizer: Optimizer;
  schedule: LrSchedule;
  scaler: LossScaler;
  control: StepControl;
  batch: BatchSizes;
  timer: PhaseTimer;
  observers: readonly StepObserver[];
}

export interface BatchSizes {
  train: number;
  microPerDevice: number;
  accumulationSteps: number;
}

/** Counters that a checkpoint restores. */
export interface Progress {
  globalSteps: number;
  globalSamples: number;
  skippedSteps: number;
  /** Updates that changed the weights: Adam's t and the schedule's time. */
  appliedSteps: number;
}

/**
 * Tensors returned by forward() live until the first forward() of the next step (keep() those needed for longer).
 * A non-finite gradient skips the update on the device; the engine learns of it at the next backward().
 */
export class Engine {
  readonly module: Module;
  readonly device: Device;
  readonly progress: Progress = {
    globalSteps: 0,
    globalSamples: 0,
    skippedSteps: 0,
    appliedSteps: 0,
  };
  private microSteps = 0;
  private stepped = false;
  private lastVerdict: Verdict | null = null;
  private readonly results = new Scope();
  private timer: PhaseTimer;
  private readonly removeHooks: readonly (() => void)[];

  constructor(readonly parts: EngineParts) {
    this.module = parts.module;
    this.device = parts.device;
    this.timer = parts.timer;
    this.removeHooks = parts.units.map((unit) => {
      unit.onReady = () => this.gradReady(unit);
      return unit.module.registerForwardPreHook(() => parts.placement.awaitWeights(unit));
    });
  }

  /** Runs the model. Throws what the model throws. */
  forward<Result = Tensor>(...inputs: unknown[]): Result {
    if (this.stepped || !this.module.training) this.results.release();
    this.stepped = false;
    const timer = this.module.training ? this.timer : untimed;
    return timer.time('forward', () => {
      const scope = new Scope();
      try {
        const result = within(scope, () => this.module.call(...inputs)) as Result;
        surrenderResult(scope, this.results, result);
        return result;
      } finally {
        scope.release();
      }
    });
  }

  /**
   * Adds this micro-batch's gradients, scaled by the loss scale and 1 / accumulation steps. Throws DS_NONFINITE
   * when the previous step's loss was not finite and no smaller loss scale can help.
   */
  backward(loss: Tensor): void {
    this.resolve();
    requireLoss(loss);
    this.requireStep();
    const { units, scaler, control, placement, batch } = this.parts;
    if (this.isGradientAccumulationBoundary()) placement.prepare(this.planUpdate());
    this.timer.time('backward', () => {
      for (const unit of units) unit.expect();
      const seed = scalar(scaler.scale / batch.accumulationSteps, loss);
      backward(loss, [seed]);
      seed.release();
      for (const unit of units) unit.finish();
      control.addLoss(loss);
      if (this.isGradientAccumulationBoundary()) control.decide(scaler.scale);
    });
    this.microSteps++;
    this.progress.globalSamples += batch.microPerDevice;
  }

  /** Applies the update at the accumulation boundary; before it, does nothing. */
  step(): void {
    if (this.microSteps === 0) {
      throw new DsError({
        code: 'DS_AUTOGRAD',
        op: 'engine.step',
        expected: 'backward() before step()',
        got: 'no gradient since the last step',
      });
    }
    if (this.microSteps < this.parts.batch.accumulationSteps) return;
    this.microSteps = 0;
    this.stepped = true;
    const { placement, control } = this.parts;
    this.timer.time('step', () => placement.update(control.control, this.planUpdate()));
    this.progress.globalSteps++;
    this.timer.finishStep(this.globalSteps, this.globalSamples);
  }

  /** True when the next (or the just finished) backward() completes an accumulation step. */
  isGradientAccumulationBoundary(): boolean {
    return this.microSteps >= this.parts.batch.accumulationSteps - 1;
  }

  train(): this {
    this.module.train();
    return this;
  }

  eval(): this {
    this.module.eval();
    return this;
  }

  /** The learning rate of each group at the next update. */
  getLr(): number[] {
    this.resolve();
    return this.rates();
  }

  /** Norm of the last step's gradients before clipping; null before the first step. Waits for its backward. */
  getGlobalGradNorm(): number | null {
    this.resolve();
    return this.lastVerdict?.norm ?? null;
  }

  /** Whether the last step changed the weights. Waits for its backward. */
  wasStepApplied(): boolean {
    this.resolve();
    return this.lastVerdict?.applied ?? false;
  }

  get lossScale(): number {
    this.resolve();
    return this.parts.scaler.scale;
  }

  get globalSteps(): number {
    return this.progress.globalSteps;
  }

  get globalSamples(): number {
    return this.progress.globalSamples;
  }

  get skippedSteps(): number {
    this.resolve();
    return this.progress.skippedSteps;
  }

  trainBatchSize(): number {
    return this.parts.batch.train;
  }

  trainMicroBatchSizePerGpu(): number {
    return this.parts.batch.microPerDevice;
  }

  gradientAccumulationSteps(): number {
    return this.parts.batch.accumulationSteps;
  }

  /** Times the phases from now on, as wall_clock_breakdown does from the start. */
  recordPhases(): void {
    if (this.timer === untimed) this.timer = new EventTimer(this.device);
  }

  /**
   * Device milliseconds of the last finished step, by phase; null when it was not recorded. Waits
   * for the device.
   */
  phaseTimes(): PhaseTimes | null {
    return this.timer.last();
  }

  /** See saveEngine. */
  saveCheckpoint(dir: string, options?: SaveOptions): Promise<string> {
    return saveEngine(this, dir, options);
  }

  /** See loadEngine. */
  loadCheckpoint(dir: string, options?: LoadOptions): Promise<LoadedCheckpoint> {
    return loadEngine(this, dir, options);
  }

  /** Waits until the last update has reached the weights, and takes its verdict into account. */
  synchronize(): void {
    this.resolve();
    this.parts.placement.synchronize();
    this.reportTimes(this.timer.all());
  }

  /** Resolves when what monitors were told so far is on disk. */
  async flushMonitors(): Promise<void> {
    await Promise.all(this.parts.observers.map((observer) => observer.flush?.()));
  }

  /** Frees everything the engine owns. The model's parameters are gone with it. */
  destroy(): void {
    this.parts.placement.synchronize();
    this.dismissObservers();
    for (const remove of this.removeHooks) remove();
    this.results.release();
    this.parts.control.dispose();
    this.parts.placement.dispose();
    for (const unit of this.parts.units) unit.dispose();
  }

  private requireStep(): void {
    const { accumulationSteps } = this.parts.batch;
    if (this.microSteps < accumulationSteps) return;
    throw new DsError({
      code: 'DS_AUTOGRAD',
      op: 'engine.backward',
      expected: `step() after ${accumulationSteps} backward()s (gradient_accumulation_steps)`,
      got: 'another backward()',
      hint: 'Call engine.step() after every backward(); it updates at the accumulation boundary.',
    });
  }

  /** The coming update; its number and hyperparameters are certain once the last verdict was taken. */
  private planUpdate(): UpdatePlan {
    const { optimizer, schedule, scaler } = this.parts;
    const step = this.progress.appliedSteps + 1;
    for (const group of optimizer.groups) schedule.apply(group, step - 1);
    return {
      settings: { step, groups: optimizer.groups.map((group) => ({ ...group })) },
      lossScale: scaler.scale,
      apply: (range, run) => optimizer.update(range, range.group, step, run),
    };
  }

  private gradReady(unit: Unit): void {
    if (!this.isGradientAccumulationBoundary()) return;
    this.parts.control.add(unit);
    this.parts.placement.gradReady(unit);
  }

  /** Takes the last step's verdict: counters, loss scale, and an error when training cannot go on. */
  private resolve(): void {
    if (!this.stepped && this.microSteps > 0) return;
    const verdict = this.parts.control.take();
    if (!verdict) return;
    this.lastVerdict = verdict;
    if (verdict.applied) this.progress.appliedSteps++;
    else this.progress.skippedSteps++;
    try {
      this.parts.scaler.update(!verdict.finite);
    } finally {
      this.report(verdict);
    }
    if (!Number.isFinite(verdict.loss) && !this.parts.scaler.dynamic) throw this.nonfinite(verdict);
  }

  /** Tells the observers of the last step, and the times of those before it. */
  private report({ applied, loss, norm }: Verdict): void {
    const { globalSteps: step, globalSamples: samples, skippedSteps: skipped } = this.progress;
    const betas = this.parts.optimizer.groups.map((group) => group.betas);
    const lossScale = this.parts.scaler.scale;
    const counts = { step, samples, skipped };
    const report = { ...counts, applied, loss, norm, lr: this.rates(), betas, lossScale };
    this.reportTimes(this.timer.passed());
    for (const observer of this.parts.observers) observer.stepFinished?.(report);
  }

  private reportTimes(steps: readonly TimedStep[]): void {
    for (const timed of steps) {
      for (const observer of this.parts.observers) observer.stepTimed?.(timed);
    }
  }

  /** The last step is reported as well; whether training could have gone on no longer matters. */
  private dismissObservers(): void {
    try {
      this.resolve();
    } catch (error) {
      if (!(error instanceof DsError && error.code === 'DS_NONFINITE')) throw error;
    }
    this.reportTimes(this.timer.all());
    for (const observer of this.parts.observers) observer.close?.();
    this.timer.dispose();
  }

  private rates(): number[] {
    const { schedule, optimizer } = this.parts;
    return optimizer.groups.map(() => schedule.lr(this.progress.appliedSteps));
  }

  private nonfinite(verdict: Verdict): DsError {
    return new DsError({
      code: 'DS_NONFINITE',
      op: `step ${this.progress.globalSteps}`,
      expected: 'a finite loss',
      got: `${verdict.loss}`,
      hint: verdict.applied
        ? 'The weights may be damaged: resume from the last checkpoint with a smaller learning rate.'
        : 'The update was skipped, the weights are as before. Check the data, or lower the learning rate.',
    });
  }
}

function requireLoss(loss: Tensor): void {
  if (loss.numel === 1 && loss.dtype === 'f32') return;
  throw new DsError({
    code: 'DS_SHAPE',
    op: 'engine.backward',
    expected: 'a loss of one f32 element',
    got: `[${loss.shape.join(', ')}] ${loss.dtype}`,
    hint: "Reduce it first, for example with .mean(), and cast it with .to('f32').",
  });
}

/** A held tensor like `like` with one value; the caller releases it. */
function scalar(value: number, like: Tensor): Tensor {
  const out = held(() => Tensor.emptyLike(like));
  kernels.fill({ out, value });
  return out;
}
