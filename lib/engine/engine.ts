// The training engine: forward(), backward() and step() of one model.
import type { ResolvedConfig } from '../../types/config.js';
import type { Mesh } from '../comm/index.js';
import type { Module } from '../nn/module.js';
import type { ScheduleSet } from '../optim/schedule-set.js';
import type { Device } from '../runtime/device.js';
import { requireEnded, requireNoSurplus } from '../runtime/require-type.js';
import { TensorGrowth } from '../tensor/growth.js';
import { Scope, sharingSamples, type Tensor } from '../tensor/index.js';
import { scopeInto } from '../tensor/scope.js';
import { EngineCalls } from './calls.js';
import { describeEngine } from './describe-engine.js';
import type { EngineParts } from './engine-parts.js';
import { gatheredParameters } from './parameters/gathered-parameters.js';
import {
  type OffloadedBytes,
  OffloadedStates,
  type OffloadStatesOptions,
  type ReloadStatesOptions,
} from './parameters/offloaded-states.js';
import { claimParameters, disownParameters } from './parameters/owned-parameters.js';
import {
  Checkpointer,
  type ExportWeightsOptions,
  type SaveOptions,
} from './saving/checkpointer.js';
import type { LoadedCheckpoint, LoadOptions } from './saving/restore.js';
import type { Stateful } from './saving/stateful.js';
import { NoOptimizer } from './setup/optimizer.js';
import { type EngineOptimizer, zeroedBy } from './step/engine-optimizer.js';
import { sampleShareOf } from './step/inputs.js';
import { backwardOf, requireFactor, requireLoss } from './step/loss.js';
import type { Progress } from './step/progress.js';
import { resync } from './step/resync.js';
import type { EngineStepOptions } from './step/step-decisions.js';
import type { PhaseTimes } from './watch/phase-timer.js';
import { type RunWatch, type WatchOptions, watchRun } from './watch/run-watch.js';
import { untimed } from './watch/step-watch.js';
import { type TraceStepsOptions, tracedSteps } from './watch/traced-steps.js';

/**
 * The engine of initialize(). Tensors that forward() returns live until the first forward() of the
 * next step; keep() extends their life. A non-finite gradient skips the update on the device. The
 * host reads this decision at the next backward().
 */
export class Engine {
  /** The model. It keeps its weights after destroy(), except at stage 3 on several ranks. */
  readonly module: Module;
  /** The device that runs the model. */
  readonly device: Device;
  /** The frozen configuration, with defaults applied. */
  readonly config: ResolvedConfig;
  /** Counters that checkpoints store. */
  readonly progress: Progress;
  /** The optimizer. Hyperparameters of its groups may change between steps. */
  readonly optimizer: EngineOptimizer;
  /** The schedules of the groups. Empty if neither the configuration nor the caller sets one. */
  readonly lrScheduler: ScheduleSet;
  /** Rank of this process in the job. */
  readonly globalRank: number;
  /** Rank of this process on its host. */
  readonly localRank: number;
  /** Number of processes in the job. */
  readonly worldSize: number;
  /** Number of data ranks, which divide a batch; worldSize if dp is the only axis. */
  readonly dpWorldSize: number;
  /** Index of this process in the data ranks, for samplers. */
  readonly dpRank: number;
  /** The processes as a grid with named axes. */
  readonly mesh: Mesh;
  /** State that checkpoints store too, by name. initialize() adds its loader. */
  readonly companions = new Map<string, Stateful>();
  /** @internal */
  protected readonly calls: EngineCalls;
  private readonly checkpointer: Checkpointer;
  private readonly offloaded: OffloadedStates;
  /** Owns the results of forward() in this step. */
  private readonly results = new Scope();
  private readonly growth = new TensorGrowth();
  private stepped = false;
  /** The last step() was at the accumulation boundary. */
  private updated = false;

  /** @internal Takes ownership of the parts. Users call initialize(). */
  constructor(
    /** @internal */
    readonly parts: EngineParts,
  ) {
    this.module = parts.module;
    this.device = parts.device;
    this.config = parts.config;
    this.progress = parts.progress;
    this.optimizer = zeroedBy(parts, () => parts.gradients.zero());
    this.lrScheduler = parts.schedules;
    const { world, dataGroup } = parts.ranks;
    this.globalRank = world.rank;
    this.localRank = parts.ranks.localRank;
    this.worldSize = world.size;
    this.dpWorldSize = dataGroup.size;
    this.dpRank = dataGroup.rank;
    this.mesh = parts.ranks.mesh;
    this.calls = new EngineCalls(parts.ranks, {
      ...{ gathers: this.zeroOptimizationStage() === 3, own: parts.zeroGroups.groups },
      trains: !(parts.optimizer instanceof NoOptimizer),
    });
    this.checkpointer = new Checkpointer(this, parts.meeting, this.calls);
    claimParameters(this);
    parts.owned.defer(() => disownParameters(this));
    parts.owned.defer(() => this.results.release());
    parts.owned.own(this.growth);
    parts.owned.defer(() => this.checkpointer.close());
    parts.owned.defer(() => parts.state.synchronize());
    this.offloaded = parts.owned.own(new OffloadedStates(this, this.calls));
  }

  /**
   * Runs the model. Dim 0 of the first input tensor is this rank's number of samples in the
   * micro-batch. With several data ranks, dropout masks equal those of one rank with the whole
   * batch. Throws the errors of the model, DS_AUTOGRAD after destroy(), and DS_ARGUMENT if the
   * model returns a promise.
   */
  forward<Result = Tensor>(...inputs: unknown[]): Result {
    this.calls.requireReadable('engine.forward');
    return this.calls.pass(() => this.pass(inputs)) as Result;
  }

  private pass(inputs: unknown[]): unknown {
    const { module, results } = this;
    const { hooks, inputs: cast, watch, control } = this.parts;
    if (!module.training) resync(this.parts);
    if (this.stepped || !module.training) results.release();
    this.stepped = false;
    hooks.reset();
    control.addInputs(module.training ? 'inputs' : 'evaluated inputs', inputs);
    const share = sampleShareOf(inputs, this.parts.ranks.dataGroup);
    const result = (module.training ? watch : untimed).time('forward', () =>
      scopeInto(results, () => sharingSamples(share, () => module.call(...cast(inputs)))),
    );
    return requireEnded('engine.forward', result, {
      consequence: 'its tensors would be freed while it still runs',
      hint: 'Take async off the forward() of the model, and await before the call.',
    });
  }

  /**
   * Adds the gradients of this micro-batch, scaled by the loss scale and 1 / accumulation steps.
   * Throws DS_NONFINITE if the loss of the previous step was not finite and the loss scale cannot
   * shrink further.
   */
  backward(loss: Tensor): void;
  backward(loss: Tensor, ...surplus: readonly unknown[]): void {
    requireNoSurplus('engine.backward', surplus);
    this.calls.requireBackward('engine.backward');
    requireLoss('engine.backward', loss);
    const { gradients, control, batch, watch } = this.parts;
    this.calls.pass(() => {
      const { lossScale } = this;
      watch.time('backward', () =>
        gradients.run(lossScale, () => {
          backwardOf(loss, lossScale / batch.accumulation.divisor);
          control.addLoss(loss);
        }),
      );
    });
  }

  /**
   * Applies the update at the accumulation boundary; does nothing before it. The weights change
   * asynchronously: forward(), module.stateDict(), withFullWeights() and saves wait for them. Call
   * synchronize() before any other read of a parameter.
   */
  step(given?: EngineStepOptions): void;
  step(given: EngineStepOptions = {}, ...surplus: readonly unknown[]): void {
    requireNoSurplus('engine.step', surplus);
    this.calls.requireChangeable('engine.step');
    const metrics = this.parts.planner.metricIn(given);
    this.calls.step(() => this.update());
    if (metrics !== undefined && this.updated) this.lrScheduler.observe('engine.step', metrics);
  }

  /** @internal The body of step(). */
  protected update(): void {
    const { gradients, planner, state, control, stage, stepDecisions, watch } = this.parts;
    this.updated = false;
    if (!gradients.complete()) return;
    const plan = planner.plan(gradients.gradientScale);
    watch.time('step', () => {
      state.update(control.control, plan, stage);
      stage.dispatch();
    });
    gradients.restart();
    stepDecisions.stepped();
    this.growth.stepped();
    this.stepped = true;
    this.updated = true;
  }

  /**
   * Returns the loss times the loss scale, for loss.backward() in fp16, and records the loss for
   * monitors. scaleJointLoss() does this for a loss of several engines.
   */
  scale(loss: Tensor): Tensor {
    requireLoss('engine.scale', loss);
    const { lossScale } = this;
    this.expectScaled(lossScale);
    this.parts.control.addLoss(loss);
    return lossScale === 1 ? loss : loss.mul(lossScale);
  }

  /** Announces that the loss of the next loss.backward() has the factor `factor`. */
  expectScaled(factor: number): void {
    requireFactor('engine.expectScaled', factor);
    this.parts.gradients.expectScaled(factor);
  }

  /**
   * Ends a micro-batch that used loss.backward(), with any number of losses and engines. step()
   * calls it if the caller did not. Gradients are reduced here and not during backward: see
   * GradientCollector.endDirect.
   */
  backwardEpilogue(): void {
    this.calls.step(() => this.parts.gradients.endDirect());
  }

  /**
   * Runs `body`. Its backwards add gradients, but do not count as micro-batches and reduce nothing.
   * `body` must not call step(). Source: DeepSpeed's no_sync(), here at every stage.
   */
  noSync<Result>(body: () => Result): Result {
    return this.parts.gradients.noSync(body);
  }

  /** Whether the pending backward(), else the next one, completes a step. */
  isGradientAccumulationBoundary(): boolean {
    return this.parts.gradients.atBoundary;
  }

  /**
   * Drops the gradients since the last step(). The update does this too. Throws DS_AUTOGRAD between
   * the micro-batches of a step, because it would drop their gradients.
   */
  zeroGrad(): void {
    this.parts.gradients.drop();
  }

  /** Runs `body` with whole parameters on this rank. All ranks call it: see gatheredParameters. */
  withFullWeights<Result>(body: () => Result): Result {
    return gatheredParameters(this, {}, body);
  }

  /**
   * Whether training should end after this step: a rank received a signal (see stopSignals of
   * initialize()), or a rank called requestStop(). All ranks see true at the same step, one or two
   * steps later. The value changes only in step(). On a single rank it changes at once.
   *
   * The first read installs signal handlers until destroy(). From then on, a signal ends the
   * process only if another one follows half a second later or more. This also holds if the event
   * loop is blocked. The program's own handlers still run.
   */
  get stopRequested(): boolean {
    return this.parts.stop.isDue;
  }

  /** Aborted in step() when stopRequested becomes true. A read installs the signal handlers too. */
  get stopSignal(): AbortSignal {
    return this.parts.stop.signal;
  }

  /** Requests a stop on all ranks, as a signal does. */
  requestStop(): void {
    this.parts.stop.request('engine.requestStop()');
  }

  /** Training mode: dropout is active, and forward() saves tensors for backward. */
  train(): this {
    this.module.train();
    return this;
  }

  /** Puts the model into evaluation mode. Under noGrad(), forward() saves nothing for backward. */
  eval(): this {
    this.module.eval();
    return this;
  }

  /** Returns the learning rate of each group at the next update. */
  getLr(): number[] {
    this.parts.stepDecisions.take();
    return this.parts.planner.rates();
  }

  /** Returns the last gradient norm before clipping, or null. Waits for the step's backward. */
  getGlobalGradNorm(): number | null {
    return this.parts.stepDecisions.last?.norm ?? null;
  }

  /**
   * Returns the loss of the last step: the mean over its micro-batches and data ranks. Null before
   * the first step, and for loss.backward() without scale(). Waits for the backward of that step.
   */
  getGlobalLoss(): number | null {
    return this.parts.stepDecisions.last?.loss ?? null;
  }

  /** Whether the last step() changed the weights. Waits for its backward. */
  wasStepApplied(): boolean {
    return this.updated && (this.parts.stepDecisions.last?.applied ?? false);
  }

  /** The loss scale of fp16; 1 for other dtypes. Waits for the backward of the last step. */
  get lossScale(): number {
    return this.parts.stepDecisions.lossScale;
  }

  /** Number of optimizer steps, including skipped ones. */
  get globalSteps(): number {
    return this.progress.globalSteps;
  }

  /** Number of samples in these steps, over all data ranks. */
  get globalSamples(): number {
    return this.progress.globalSamples;
  }

  /** Steps skipped because of a non-finite gradient. Waits for the last step's backward. */
  get skippedSteps(): number {
    this.parts.stepDecisions.take();
    return this.progress.skippedSteps;
  }

  /** Samples per step, over all ranks. */
  trainBatchSize(): number {
    return this.parts.batch.train;
  }

  /** Samples per forward on one rank. */
  trainMicroBatchSizePerGpu(): number {
    return this.parts.batch.microPerDevice;
  }

  /** Micro-batches per step. */
  gradientAccumulationSteps(): number {
    return this.parts.batch.accumulationSteps;
  }

  /**
   * Changes the global batch size from the next step on. The accumulation steps change, the
   * micro-batch stays. Throws DS_ARGUMENT unless `train` is a multiple of the micro-batch over all
   * ranks. Source: DeepSpeed's set_train_batch_size.
   */
  setTrainBatchSize(train: number): void {
    this.parts.gradients.requireNone('engine.setTrainBatchSize');
    this.parts.batch.setTrain(train);
  }

  /** Changes the micro-batch size from the next step on; the accumulation steps stay. */
  setTrainMicroBatchSize(microPerDevice: number): void {
    this.parts.gradients.requireNone('engine.setTrainMicroBatchSize');
    this.parts.batch.setMicro(microPerDevice);
  }

  /** Global steps between two progress lines; null disables them. */
  stepsPerPrint(): number | null {
    return this.config.steps_per_print;
  }

  /**
   * Tokens per sample in the next step by `curriculum_learning`; null without it. In training,
   * CausalLMs cut their inputs to it; for other models the caller cuts the batches. Throws
   * DS_CONFIG if a "custom" schedule is missing.
   */
  get curriculumSeqlen(): number | null {
    return this.parts.curriculum.seqlen;
  }

  /**
   * Fraction of layers that run in the next step by `progressive_layer_drop`; null without it. In
   * training, CausalLMs drop layers by it. Other models read it in the training loop, or define
   * dropLayers().
   */
  get pldTheta(): number | null {
    return this.parts.layerDrop.theta;
  }

  /**
   * Sets the "custom" schedule: a function from the global step (first: 1) to tokens, the same on
   * every rank. Throws DS_CONFIG for other schedule types.
   */
  setCustomCurriculumLearningSchedule(schedule: (step: number) => number): void {
    this.parts.curriculum.setSchedule(schedule);
  }

  /** The global gradient norm limit; 0 disables clipping. */
  gradientClipping(): number {
    return this.config.gradient_clipping;
  }

  /** 0 to 3. */
  zeroOptimizationStage(): number {
    return this.config.zero_optimization.stage;
  }

  /** Records phase times from now on, for phaseTimes() and, one step later, monitors. */
  recordPhases(): void {
    this.parts.watch.record(this.device);
  }

  /** Returns device milliseconds of the last recorded step, or null. Synchronizes the device. */
  phaseTimes(): PhaseTimes | null {
    return this.parts.watch.times();
  }

  /**
   * Writes a trace of the next steps in Chrome's trace format (chrome://tracing, Perfetto):
   * activity of streams, host threads, ranks and disks. A file "*.txt" receives a table of device
   * time by role instead. Returns the file; ranks other than the first write FILE.rankN.json.
   * Throws DS_ARGUMENT, DS_IO. Source: torch.profiler's export_chrome_trace.
   */
  trace(path: string, options: TraceStepsOptions = {}): string {
    this.calls.requireOpen('engine.trace');
    const { globalRank: rank, device } = this;
    return this.parts.watch.trace(() => tracedSteps(path, options, { device, rank }));
  }

  /** Records the run and serves a local page of it. All ranks call it: see watchRun. */
  watch(options: WatchOptions = {}): Promise<RunWatch> {
    this.calls.requireOpen('engine.watch');
    return watchRun(this, options);
  }

  /** Saves on all ranks. See Checkpointer.save. Source: DeepSpeed's save_checkpoint. */
  saveCheckpoint(dir: string, options: SaveOptions = {}): Promise<string> {
    return this.checkpointer.save(dir, options);
  }

  /** Loads a checkpoint on all ranks. See restoreEngine. Source: DeepSpeed's load_checkpoint. */
  loadCheckpoint(dir: string, options: LoadOptions = {}): Promise<LoadedCheckpoint> {
    return this.checkpointer.load(dir, options);
  }

  /**
   * Writes the 16-bit weights. All ranks call it. See Checkpointer.exportWeights. Source:
   * DeepSpeed's save_16bit_model.
   */
  save16bitModel(
    dir: string,
    file = 'model.safetensors',
    options: ExportWeightsOptions = {},
  ): Promise<string> {
    return this.checkpointer.exportWeights(dir, file, options);
  }

  /** Resolves after the last asynchronous save; rejects if it failed. See Checkpointer.done. */
  checkpointDone(): Promise<string | null> {
    return this.checkpointer.done();
  }

  /**
   * Waits until the last update has written the weights of this rank, and reads its step decision.
   * Afterwards named parameters hold the updated values (at stage 3: inside withFullWeights()). A
   * rank may call it without the others once they have called step(). If a rank never calls step(),
   * this throws DS_COMM after the job's timeout.
   */
  synchronize(): void {
    const { stepDecisions, state, hooks, watch } = this.parts;
    stepDecisions.take();
    state.synchronize();
    hooks.awaitWeights();
    this.device.compute.synchronize();
    watch.reportTimes();
  }

  /** Resolves when the records that monitors have received are on disk. */
  flushMonitors(): Promise<void> {
    return this.parts.watch.flush();
  }

  /**
   * Moves states to host memory; returns freed bytes by state. Until reloadStates(), calls that
   * need them throw DS_RELEASED. Throws DS_CONFIG, DS_ARGUMENT. Source: DeepSpeed's offload_states.
   */
  offloadStates(options?: OffloadStatesOptions): OffloadedBytes {
    return this.offloaded.offload(options);
  }

  /** Moves states back, with equal bits. If it throws DS_OUT_OF_MEMORY, a second call continues. */
  reloadStates(options?: ReloadStatesOptions): void {
    this.offloaded.reload(options);
  }

  /** Frees the engine's memory. The model keeps its weights, except at stage 3 on several ranks. */
  destroy(): void {
    this.calls.close(() => this.parts.owned.release());
  }

  /** Text for console.log(): step, optimizer, stage, device and model. */
  [Symbol.for('nodejs.util.inspect.custom')](depth: number): string {
    return describeEngine(this, depth);
  }
}
