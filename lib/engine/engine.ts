// The engine: one training step as DeepSpeed users know it, forward / backward / step.
import type { ResolvedConfig } from '../../types/config.js';
import type { CheckpointWorld } from '../checkpoint/index.js';
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import type { LossScaler } from '../optim/loss-scale.js';
import type { Optimizer } from '../optim/optimizer.js';
import type { ScheduleSet } from '../optim/schedule-set.js';
import type { Device } from '../runtime/device.js';
import * as kernels from '../runtime/kernels.generated.js';
import { backward, held, Scope, surrenderResult, Tensor, within } from '../tensor/index.js';
import type { Placement, UpdatePlan } from '../zero/placement.js';
import type { Stage } from '../zero/stage.js';
import type { Unit } from '../zero/unit.js';
import { Checkpointer, type SaveOptions } from './checkpoint/checkpointer.js';
import type { LoadedCheckpoint, LoadOptions } from './checkpoint/restore.js';
import type { Stateful } from './checkpoint/stateful.js';
import { misuse, nonfinite, requireLoss } from './engine-errors.js';
import { gatheredParameters } from './parameters/gathered-parameters.js';
import { claimParameters, disownParameters } from './parameters/owned-parameters.js';
import { type Accumulation, managed } from './step/accumulation.js';
import { GradientCollector } from './step/gradient-collector.js';
import type { StepControl, Verdict } from './step/step-control.js';
import { UnitHooks } from './step/unit-hooks.js';
import type { StepObserver } from './watch/observer.js';
import { type PhaseTimer, type PhaseTimes, type TimedStep, untimed } from './watch/phase-timer.js';

/** Everything the engine is made of; build.ts puts it together. */
export interface EngineParts {
  module: Module;
  config: ResolvedConfig;
  device: Device;
  /** In forward order. */
  units: readonly Unit[];
  stage: Stage;
  placement: Placement;
  optimizer: Optimizer;
  schedules: ScheduleSet;
  scaler: LossScaler;
  control: StepControl;
  batch: BatchSizes;
  /** This process among those of its machine. */
  localRank: number;
  accumulation: Accumulation;
  timer: PhaseTimer;
  observers: readonly StepObserver[];
  /** The ranks that save and load checkpoints together: those of the stage. */
  world: CheckpointWorld;
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
  /** Updates that changed the weights: Adam's t. */
  appliedSteps: number;
  /** The schedules' time is appliedSteps - scheduleStart: 0 unless only one of both was restored. */
  scheduleStart: number;
}

/**
 * Tensors returned by forward() live until the first forward() of the next step (keep() those needed for longer).
 * A non-finite gradient skips the update on the device; the engine learns of it at the next backward().
 */
export class Engine {
  readonly module: Module;
  readonly device: Device;
  readonly config: ResolvedConfig;
  readonly progress: Progress = {
    globalSteps: 0,
    globalSamples: 0,
    skippedSteps: 0,
    appliedSteps: 0,
    scheduleStart: 0,
  };
  /** What checkpoints of this engine carry along, by name; initialize() adds its loader. */
  readonly companions = new Map<string, Stateful>();
  private batch: BatchSizes;
  /** @internal */
  readonly gradients: GradientCollector;
  private stepped = false;
  private lastVerdict: Verdict | null = null;
  private readonly results = new Scope();
  private timer: PhaseTimer;
  /** @internal */
  readonly hooks: UnitHooks;
  private readonly checkpointer: Checkpointer;

  constructor(readonly parts: EngineParts) {
    this.module = parts.module;
    this.device = parts.device;
    this.config = parts.config;
    this.batch = parts.batch;
    this.timer = parts.timer;
    this.checkpointer = new Checkpointer(this, parts.world);
    const { units, stage, control, placement } = parts;
    this.gradients = new GradientCollector(
      {
        ...{ units, stage, control, placement },
        lossScale: () => this.lossScale,
        plan: (gradientScale) => this.planUpdate(gradientScale),
        onMicroBatch: () => {
          this.progress.globalSamples += this.batch.microPerDevice * this.worldSize;
        },
        timeReduction: (body) => (stage.worldSize > 1 ? this.timer.time('reduce', body) : body()),
      },
      parts.accumulation,
    );
    this.hooks = new UnitHooks(parts.module, { stage, placement, gradients: this.gradients });
    claimParameters(this);
  }

  /** Runs the model. Throws what the model throws. */
  forward<Result = Tensor>(...inputs: unknown[]): Result {
    if (this.stepped || !this.module.training) this.results.release();
    this.stepped = false;
    this.hooks.reset();
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
    requireLoss('engine.backward', loss);
    const { lossScale } = this;
    const { divisor } = this.gradients.accumulation;
    this.timer.time('backward', () => {
      this.gradients.run(lossScale, () => {
        const seed = scalar(lossScale / divisor, loss);
        backward(loss, [seed]);
        seed.release();
        this.parts.control.addLoss(loss);
      });
    });
  }

  /**
   * The loss times the loss scale, for loss.backward() in fp16 (see scaleJointLoss for a loss of several engines), and
   * the loss that monitors are told.
   */
  scale(loss: Tensor): Tensor {
    requireLoss('engine.scale', loss);
    const { lossScale } = this;
    this.expectScaled(lossScale);
    this.parts.control.addLoss(loss);
    return lossScale === 1 ? loss : loss.mul(lossScale);
  }

  /** The loss of the coming loss.backward() was multiplied with `factor`; scale() does both. */
  expectScaled(factor: number): void {
    this.gradients.expectScaled(factor);
  }

  /**
   * Ends a micro-batch whose gradients came from loss.backward(), of any number of losses and engines; step() does it
   * when it was left out. Gradients are handed over here, not while backward runs: engine.backward() overlaps more.
   */
  backwardEpilogue(): void {
    this.gradients.endDirect();
  }

  /** Applies the update at the accumulation boundary; before it, does nothing. */
  step(): void {
    if (!this.gradients.complete()) return;
    const { placement, stage, control } = this.parts;
    const plan = this.planUpdate(this.gradients.gradientScale);
    this.timer.time('step', () =>
      placement.update(control.control, plan, (partition, stream) =>
        stage.publish(partition, stream),
      ),
    );
    this.gradients.restart();
    this.stepped = true;
    this.progress.globalSteps++;
    this.timer.finishStep(this.globalSteps, this.globalSamples);
  }

  /**
   * Backwards inside `body` add gradients without counting as micro-batches and without being reduced; step() has no
   * place there. Source: DeepSpeed's no_sync(), here at every stage.
   */
  noSync<Result>(body: () => Result): Result {
    return this.gradients.noSync(body);
  }

  /** True when the next (or the just finished) backward() completes an accumulation step. */
  isGradientAccumulationBoundary(): boolean {
    return this.gradients.boundary;
  }

  /** Forgets the gradients accumulated since the last step. */
  zeroGrad(): void {
    this.gradients.drop();
  }

  /** Runs `body` while every parameter has its values on this rank. All ranks call it. See gatheredParameters. */
  withFullWeights<Result>(body: () => Result): Result {
    return gatheredParameters(this, {}, body);
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
    return this.batch.train;
  }

  trainMicroBatchSizePerGpu(): number {
    return this.batch.microPerDevice;
  }

  gradientAccumulationSteps(): number {
    return this.batch.accumulationSteps;
  }

  /**
   * Another global batch from the next step on: the accumulation steps change, the micro-batch stays. Throws
   * DS_ARGUMENT unless it is a multiple of the micro-batch over all ranks. Source: DeepSpeed's set_train_batch_size.
   */
  setTrainBatchSize(train: number): void {
    const { microPerDevice } = this.batch;
    const steps = train / (microPerDevice * this.worldSize);
    if (!Number.isInteger(steps) || steps < 1) {
      const unit = microPerDevice * this.worldSize;
      throw misuse('engine.setTrainBatchSize', `a positive multiple of ${unit}`, String(train));
    }
    this.setBatch('engine.setTrainBatchSize', microPerDevice, steps);
  }

  /** Another micro-batch from the next step on: the accumulation steps stay, the global batch follows. */
  setTrainMicroBatchSize(microPerDevice: number): void {
    if (!Number.isInteger(microPerDevice) || microPerDevice < 1) {
      throw misuse('engine.setTrainMicroBatchSize', 'a positive integer', String(microPerDevice));
    }
    this.setBatch('engine.setTrainMicroBatchSize', microPerDevice, this.batch.accumulationSteps);
  }

  /** Global steps between two progress lines; null prints none. */
  stepsPerPrint(): number | null {
    return this.config.steps_per_print;
  }

  gradientClipping(): number {
    return this.config.gradient_clipping;
  }

  zeroOptimizationStage(): number {
    return this.config.zero_optimization.stage;
  }

  get optimizer(): Optimizer {
    return this.parts.optimizer;
  }

  get lrScheduler(): ScheduleSet {
    return this.parts.schedules;
  }

  /** This process among all, among those of its machine, and how many there are. */
  get globalRank(): number {
    return this.parts.stage.rank;
  }

  get localRank(): number {
    return this.parts.localRank;
  }

  get worldSize(): number {
    return this.parts.stage.worldSize;
  }

  /** Times the phases from now on, as wall_clock_breakdown does from the start. */
  recordPhases(): void {
    this.timer = this.timer.recording(this.device);
  }

  /**
   * Device milliseconds of the last finished step, by phase; null when it was not recorded. Waits
   * for the device.
   */
  phaseTimes(): PhaseTimes | null {
    return this.timer.last();
  }

  /** Every rank calls it and writes its part. See Checkpointer.save. Source: DeepSpeed's save_checkpoint. */
  saveCheckpoint(dir: string, options: SaveOptions = {}): Promise<string> {
    return this.checkpointer.save(dir, options);
  }

  /** Every rank calls it. See restoreEngine. Source: DeepSpeed's load_checkpoint. */
  loadCheckpoint(dir: string, options: LoadOptions = {}): Promise<LoadedCheckpoint> {
    return this.checkpointer.load(dir, options);
  }

  /** Every rank calls it and writes its part. See Checkpointer.exportWeights. Source: DeepSpeed's save_16bit_model. */
  save16bitModel(dir: string, file = 'model.safetensors'): Promise<string> {
    return this.checkpointer.exportWeights(dir, file);
  }

  /** The end of the last asynchronous save, or its failure. See Checkpointer.done. */
  checkpointDone(): Promise<string | null> {
    return this.checkpointer.done();
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

  /** Frees everything the engine owns but the weights, which the model keeps (at stage 3 on several ranks: nothing). */
  destroy(): void {
    this.parts.placement.synchronize();
    this.checkpointer.close();
    this.dismissObservers();
    this.hooks.remove();
    disownParameters(this);
    this.results.release();
    this.parts.control.dispose();
    this.parts.placement.dispose();
    this.parts.stage.dispose();
    for (const unit of this.parts.units) unit.dispose();
  }

  private setBatch(op: string, microPerDevice: number, accumulationSteps: number): void {
    if (this.gradients.microSteps > 0) {
      throw misuse(op, 'no gradients of an unfinished step', 'some');
    }
    const train = microPerDevice * accumulationSteps * this.worldSize;
    this.batch = { train, microPerDevice, accumulationSteps };
    if (this.config.managed_gradient_accumulation) {
      this.gradients.accumulation = managed(accumulationSteps);
    }
  }

  /** The coming update; its number and hyperparameters are certain once the last verdict was taken. */
  private planUpdate(gradientScale: number): UpdatePlan {
    const { optimizer, schedules } = this.parts;
    const step = this.progress.appliedSteps + 1;
    schedules.apply(optimizer.groups, step - 1 - this.progress.scheduleStart);
    const settings = { step, groups: optimizer.groups.map((group) => ({ ...group })) };
    return {
      settings,
      gradientScale,
      apply: (range, run) => optimizer.update(range, settings, run),
    };
  }

  /** Takes the last step's verdict: counters, loss scale, and an error when training cannot go on. */
  private resolve(): void {
    if (!this.stepped && this.gradients.microSteps > 0) return;
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
    const { loss } = verdict;
    if (loss !== null && !Number.isFinite(loss) && !this.parts.scaler.dynamic)
      throw nonfinite(this.globalSteps, verdict);
  }

  /** Tells the observers of the last step, and the times of those before it. */
  private report({ applied, loss, norm }: Verdict): void {
    const { globalSteps: step, globalSamples: samples, skippedSteps: skipped } = this.progress;
    const betas = this.parts.optimizer.groups.map(({ betas = [] }) => betas);
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
    const { schedules, optimizer } = this.parts;
    const { appliedSteps, scheduleStart } = this.progress;
    return schedules.rates(optimizer.groups, appliedSteps - scheduleStart);
  }
}

/**
 * A loss over the outputs of several engines, scaled for one loss.backward(): by the smallest of their loss scales. End
 * the backward with engines.map((engine) => engine.backwardEpilogue()).
 */
export function scaleJointLoss(loss: Tensor, engines: readonly Engine[]): Tensor {
  const factor = Math.min(...engines.map(({ lossScale }) => lossScale));
  for (const engine of engines) engine.expectScaled(factor);
  return factor === 1 ? loss : loss.mul(factor);
}

/** A held tensor like `like` with one value; the caller releases it. */
function scalar(value: number, like: Tensor): Tensor {
  const out = held(() => Tensor.emptyLike(like));
  kernels.fill({ out, value });
  return out;
}
