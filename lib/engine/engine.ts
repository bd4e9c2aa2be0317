// The engine: one training step as DeepSpeed users know it, forward / backward / step.
import type { ResolvedConfig } from '../../types/config.js';
import type { Mesh } from '../comm/index.js';
import type { Module } from '../nn/module.js';
import type { ScheduleSet } from '../optim/schedule-set.js';
import type { Device } from '../runtime/device.js';
import { requireEnded } from '../runtime/synchronous.js';
import { TensorGrowth } from '../tensor/growth.js';
import { backward, Scope, sharingSamples, type Tensor } from '../tensor/index.js';
import { scopeInto } from '../tensor/scope.js';
import { requireFactor, requireLoss } from './engine-errors.js';
import type { EngineParts } from './engine-parts.js';
import { JointCalls } from './joint-calls.js';
import { gatheredParameters } from './parameters/gathered-parameters.js';
import { claimParameters, disownParameters } from './parameters/owned-parameters.js';
import {
  Checkpointer,
  type ExportWeightsOptions,
  type SaveOptions,
} from './saving/checkpointer.js';
import type { LoadedCheckpoint, LoadOptions } from './saving/restore.js';
import type { Stateful } from './saving/stateful.js';
import { requireTraining } from './setup/untrained.js';
import {
  type EngineOptimizer,
  type EngineStepOptions,
  metricsIn,
  zeroedBy,
} from './step/engine-optimizer.js';
import { lossSeed } from './step/loss-seed.js';
import type { Progress } from './step/progress.js';
import { resync } from './step/resync.js';
import { sampleShareOf } from './step/sample-share.js';
import { type PhaseTimes, untimed } from './watch/phase-timer.js';
import { type TraceStepsOptions, tracedSteps } from './watch/traced-steps.js';

/**
 * Tensors returned by forward() live until the first forward() of the next step (keep() those
 * needed for longer). A non-finite gradient skips the update on the device; the engine learns of it
 * at the next backward().
 */
export class Engine {
  /** The model. It keeps its weights after destroy(), except at stage 3 on several ranks. */
  readonly module: Module;
  /** Where the model computes. */
  readonly device: Device;
  /** The configuration with its defaults, frozen. */
  readonly config: ResolvedConfig;
  /** The counters that checkpoints keep. */
  readonly progress: Progress;
  /** The optimizer; its groups' hyperparameters may be changed between steps. */
  readonly optimizer: EngineOptimizer;
  /** The schedules of the groups; none where neither the configuration nor the caller names one. */
  readonly lrScheduler: ScheduleSet;
  /** This process among all. */
  readonly globalRank: number;
  /** This process among those of its machine. */
  readonly localRank: number;
  /** Processes of the job. */
  readonly worldSize: number;
  /** Those among which a batch is shared out: all, where the mesh has no other axis than dp. */
  readonly dpWorldSize: number;
  /** This process's place among them, which samplers want. */
  readonly dpRank: number;
  /** The processes on their axes. */
  readonly mesh: Mesh;
  /** What checkpoints of this engine carry along, by name; initialize() adds its loader. */
  readonly companions = new Map<string, Stateful>();
  /** @internal */
  protected readonly calls: JointCalls;
  private readonly checkpointer: Checkpointer;
  /** What forward() has returned in this step. */
  private readonly results = new Scope();
  private readonly growth = new TensorGrowth();
  private stepped = false;
  /** The last step() was one at the boundary. */
  private updated = false;

  /** @internal Takes over the parts. Use initialize(). */
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
    const { world, data, mesh, localRank } = parts.ranks;
    this.globalRank = world.rank;
    this.localRank = localRank;
    this.worldSize = world.size;
    this.dpWorldSize = data.size;
    this.dpRank = data.rank;
    this.mesh = mesh;
    this.checkpointer = new Checkpointer(this, parts.meeting, () => this.calls.groups);
    this.calls = new JointCalls(parts.ranks, { gathers: this.zeroOptimizationStage() === 3 });
    claimParameters(this);
    parts.owned.defer(() => disownParameters(this));
    parts.owned.defer(() => this.results.release());
    parts.owned.defer(() => this.growth.dispose());
    parts.owned.defer(() => this.checkpointer.close());
    parts.owned.defer(() => parts.state.synchronize());
  }

  /**
   * Runs the model. Dim 0 of the first tensor among the inputs counts this rank's samples of the
   * micro-batch: over several data ranks dropout draws for each what one rank with all of them
   * would. Throws what the model throws, DS_AUTOGRAD after destroy(), DS_ARGUMENT for a promise.
   */
  forward<Result = Tensor>(...inputs: unknown[]): Result {
    this.calls.requireOpen('engine.forward');
    this.checkpointer.requireLoaded('engine.forward');
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
    const share = sampleShareOf(inputs, this.parts.ranks.data);
    const result = (module.training ? watch : untimed).time('forward', () =>
      scopeInto(results, () => sharingSamples(share, () => module.call(...cast(inputs)))),
    );
    return requireEnded('engine.forward', result, {
      consequence: 'its tensors would be freed while it still runs',
      hint: 'Take async off the forward() of the model, and await before the call.',
    });
  }

  /**
   * Adds this micro-batch's gradients, scaled by the loss scale and 1 / accumulation steps. Throws
   * DS_NONFINITE when the previous step's loss was not finite and no smaller loss scale can help.
   */
  backward(loss: Tensor): void {
    this.requireChangeable('engine.backward');
    requireLoss('engine.backward', loss);
    const { gradients, control, batch, watch } = this.parts;
    this.calls.pass(() => {
      const { lossScale } = this;
      watch.time('backward', () =>
        gradients.run(lossScale, () => {
          const seed = lossSeed(loss, lossScale / batch.accumulation.divisor);
          try {
            backward(loss, [seed]);
          } finally {
            seed.release();
          }
          control.addLoss(loss);
        }),
      );
    });
  }

  /**
   * Applies the update at the accumulation boundary; before it, does nothing. The weights change
   * beside what follows: forward(), module.stateDict(), withFullWeights() and saves wait for them;
   * who reads a parameter otherwise calls synchronize() first.
   */
  step(given: EngineStepOptions = {}): void {
    this.requireChangeable('engine.step');
    const metrics = metricsIn(given, this.lrScheduler);
    this.calls.step(() => this.update());
    if (metrics !== undefined && this.updated) this.lrScheduler.observe('engine.step', metrics);
  }

  /** @internal Throws after destroy(), without an optimizer, while the state is saved. */
  protected requireChangeable(op: string): void {
    this.calls.requireOpen(op);
    requireTraining(op, this.optimizer);
    this.checkpointer.requireIdle(op);
  }

  /** @internal step(), by whoever knows that it is time. */
  protected update(): void {
    const { gradients, planner, state, control, stage, stepDecisions, watch } = this.parts;
    this.parts.emptyBatches.report();
    this.updated = false;
    if (!gradients.complete()) return;
    this.parts.emptyBatches.fetch();
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
   * The loss times the loss scale, for loss.backward() in fp16 (see scaleJointLoss for a loss of
   * several engines), and the loss that monitors are told.
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
    requireFactor('engine.expectScaled', factor);
    this.parts.gradients.expectScaled(factor);
  }

  /**
   * Ends a micro-batch whose gradients came from loss.backward(), of any number of losses and
   * engines; step() does it when it was left out. Gradients are handed over here, not while
   * backward runs: see GradientCollector.endDirect.
   */
  backwardEpilogue(): void {
    this.calls.step(() => this.parts.gradients.endDirect());
  }

  /**
   * Backwards inside `body` add gradients without counting as micro-batches and without being
   * reduced; step() has no place there. Source: DeepSpeed's no_sync(), here at every stage.
   */
  noSync<Result>(body: () => Result): Result {
    return this.parts.gradients.noSync(body);
  }

  /** Whether the backward() that waits for its step(), or else the next one, completes a step. */
  isGradientAccumulationBoundary(): boolean {
    return this.parts.gradients.atBoundary;
  }

  /**
   * Forgets the gradients since the last step(), whose update does it too. Throws DS_AUTOGRAD
   * between the micro-batches of a step, whose gradients it would drop.
   */
  zeroGrad(): void {
    this.parts.gradients.drop();
  }

  /** Runs `body` with whole parameters on this rank. All ranks call it: see gatheredParameters. */
  withFullWeights<Result>(body: () => Result): Result {
    return gatheredParameters(this, {}, body);
  }

  /**
   * Whether training should end after this step: a signal has come (see stopSignals of
   * initialize()), or requestStop() was called, on any rank. All ranks see it become true at the
   * same step, one or two after that; it changes in step() alone, except on a rank alone, where it
   * is true at once. From the first time that anybody asks until destroy(), the signals no longer
   * end the process, even one whose event loop never has a turn: only another one, half a second
   * later or more, does. The program's own handlers are called as before.
   */
  get stopRequested(): boolean {
    return this.parts.stop.isDue;
  }

  /**
   * Aborted when stopRequested becomes true, in step(). To ask for it is to ask for stopRequested.
   */
  get stopSignal(): AbortSignal {
    return this.parts.stop.signal;
  }

  /** Asks all ranks to stop, as a signal does: where time is short, or the loss does not fall. */
  requestStop(): void {
    this.parts.stop.request('engine.requestStop()');
  }

  /** Puts the model into training mode: dropout draws, forward() keeps what backward reads. */
  train(): this {
    this.module.train();
    return this;
  }

  /** Puts the model into evaluation mode. Under noGrad() it keeps nothing for backward. */
  eval(): this {
    this.module.eval();
    return this;
  }

  /** The learning rate of each group at the next update. */
  getLr(): number[] {
    this.parts.stepDecisions.take();
    return this.parts.planner.rates();
  }

  /** Norm of the last step's gradients before clipping; null before any. Waits for its backward. */
  getGlobalGradNorm(): number | null {
    return this.parts.stepDecisions.last?.norm ?? null;
  }

  /**
   * Loss of the last step as monitors are told it: the mean over its micro-batches and data ranks;
   * null before the first step, and for loss.backward() without scale(). Waits for its backward.
   */
  getGlobalLoss(): number | null {
    return this.parts.stepDecisions.last?.loss ?? null;
  }

  /** Whether the last step() changed the weights. Waits for its backward. */
  wasStepApplied(): boolean {
    return this.updated && (this.parts.stepDecisions.last?.applied ?? false);
  }

  /** What losses are multiplied by in fp16; 1 otherwise. Waits for the last step's backward. */
  get lossScale(): number {
    return this.parts.stepDecisions.lossScale;
  }

  /** Optimizer steps, skipped ones included. */
  get globalSteps(): number {
    return this.progress.globalSteps;
  }

  /** Samples of all data ranks in those steps. */
  get globalSamples(): number {
    return this.progress.globalSamples;
  }

  /** Steps that changed nothing: a gradient was not finite. Waits for the last step's backward. */
  get skippedSteps(): number {
    this.parts.stepDecisions.take();
    return this.progress.skippedSteps;
  }

  /** Samples of one step over all ranks. */
  trainBatchSize(): number {
    return this.parts.batch.train;
  }

  /** Samples of one forward on one rank. */
  trainMicroBatchSizePerGpu(): number {
    return this.parts.batch.microPerDevice;
  }

  /** Backwards in one step. */
  gradientAccumulationSteps(): number {
    return this.parts.batch.accumulationSteps;
  }

  /**
   * Another global batch from the next step on: the accumulation steps change, the micro-batch
   * stays. Throws DS_ARGUMENT unless it is a multiple of the micro-batch over all ranks. Source:
   * DeepSpeed's set_train_batch_size.
   */
  setTrainBatchSize(train: number): void {
    this.parts.gradients.requireNone('engine.setTrainBatchSize');
    this.parts.batch.setTrain(train);
  }

  /**
   * Another micro-batch from the next step on: the accumulation steps stay, the global batch
   * follows.
   */
  setTrainMicroBatchSize(microPerDevice: number): void {
    this.parts.gradients.requireNone('engine.setTrainMicroBatchSize');
    this.parts.batch.setMicro(microPerDevice);
  }

  /** Global steps between two progress lines; null prints none. */
  stepsPerPrint(): number | null {
    return this.config.steps_per_print;
  }

  /**
   * Tokens of each sample in the coming step, by `curriculum_learning`; null without it. CausalLMs
   * are given no more in training; for other models the caller cuts batches. Throws DS_CONFIG where
   * a "custom" schedule is missing.
   */
  get curriculumSeqlen(): number | null {
    return this.parts.curriculum.seqlen;
  }

  /**
   * The share of layers that run in the coming step, as far as `progressive_layer_drop` has come;
   * null without it. CausalLMs leave layers out by it in training; other models are told by the
   * caller, or have dropLayers().
   */
  get pldTheta(): number | null {
    return this.parts.layerDrop.theta;
  }

  /**
   * The "custom" schedule: tokens in global step `step`, from 1, the same on every rank. Throws
   * DS_CONFIG for others.
   */
  setCustomCurriculumLearningSchedule(schedule: (step: number) => number): void {
    this.parts.curriculum.setSchedule(schedule);
  }

  /** The global gradient norm to which larger ones are scaled down; 0 where nothing is clipped. */
  gradientClipping(): number {
    return this.config.gradient_clipping;
  }

  /** 0 to 3. */
  zeroOptimizationStage(): number {
    return this.config.zero_optimization.stage;
  }

  /**
   * Times the phases from now on, as wall_clock_breakdown does from the start. Monitors are told a
   * step later.
   */
  recordPhases(): void {
    this.parts.watch.record(this.device);
  }

  /**
   * Device milliseconds of the last finished step, or null where it was not recorded. Waits: ends
   * what overlaps steps.
   */
  phaseTimes(): PhaseTimes | null {
    return this.parts.watch.times();
  }

  /**
   * Writes a trace of coming steps in Chrome's format (chrome://tracing, Perfetto): what streams,
   * host threads, ranks and disks did when. Returns the file; ranks but the first write
   * FILE.rankN.json. Throws DS_ARGUMENT, DS_IO. Source: torch.profiler's export_chrome_trace.
   */
  trace(path: string, options: TraceStepsOptions = {}): string {
    this.calls.requireOpen('engine.trace');
    const { globalRank: rank, device } = this;
    return this.parts.watch.trace(() => tracedSteps(path, options, { device, rank }));
  }

  /** Every rank writes its part. See Checkpointer.save. Source: DeepSpeed's save_checkpoint. */
  saveCheckpoint(dir: string, options: SaveOptions = {}): Promise<string> {
    return this.checkpointer.save(dir, options);
  }

  /** Every rank calls it. See restoreEngine. Source: DeepSpeed's load_checkpoint. */
  loadCheckpoint(dir: string, options: LoadOptions = {}): Promise<LoadedCheckpoint> {
    return this.checkpointer.load(dir, options);
  }

  /**
   * Every rank calls it and writes its part. See Checkpointer.exportWeights. Source: DeepSpeed's
   * save_16bit_model.
   */
  save16bitModel(
    dir: string,
    file = 'model.safetensors',
    options: ExportWeightsOptions = {},
  ): Promise<string> {
    return this.checkpointer.exportWeights(dir, file, options);
  }

  /** The end of the last asynchronous save, or its failure. See Checkpointer.done. */
  checkpointDone(): Promise<string | null> {
    return this.checkpointer.done();
  }

  /**
   * Waits until the last update has reached the weights of this rank, and takes its decision into
   * account. Named parameters hold what step() has made of them from here on (at stage 3, in
   * withFullWeights()). Any rank may call it alone, once the others have called step(); what one
   * that never does is missing ends in DS_COMM after the job's timeout.
   */
  synchronize(): void {
    const { stepDecisions, state, hooks, watch, emptyBatches } = this.parts;
    stepDecisions.take();
    emptyBatches.report();
    state.synchronize();
    hooks.awaitWeights();
    this.device.compute.synchronize();
    watch.reportTimes();
  }

  /** Resolves when what monitors were told so far is on disk. */
  flushMonitors(): Promise<void> {
    return this.parts.watch.flush();
  }

  /**
   * Frees everything the engine owns but the weights, which the model keeps (at stage 3 on several
   * ranks: nothing).
   */
  destroy(): void {
    this.calls.close(() => this.parts.owned.release());
  }

  /** What console.log() shows: where training is, and the model. */
  [Symbol.for('nodejs.util.inspect.custom')](depth: number): string {
    const { globalSteps, globalRank, worldSize, optimizer, device, module } = this;
    const stage = `ZeRO stage ${this.zeroOptimizationStage()}`;
    const rank = worldSize > 1 ? `, rank ${globalRank} of ${worldSize}` : '';
    const head = `Engine(step ${globalSteps}, ${optimizer.name}, ${stage}, ${device.name}${rank})`;
    return depth < 0 ? head : `${head} of ${module}`;
  }
}
