// The readings of an engine: its ranks, sizes, the last step, the progress, and phase times.
import type { ResolvedConfig } from '../../types/config.js';
import type { Mesh } from '../comm/index.js';
import type { Module } from '../nn/module.js';
import type { Optimizer } from '../optim/optimizer.js';
import type { ScheduleSet } from '../optim/schedule-set.js';
import type { Device } from '../runtime/device.js';
import { EngineCalls } from './calls.js';
import type { EngineParts, Stateful } from './engine-parts.js';
import { NoOptimizer } from './setup/optimizer.js';
import type { Progress } from './step/step-decisions.js';
import type { PhaseTimes } from './watch/phase-timer.js';
import { readTraceOptions, type TraceStepsOptions } from './watch/traced-steps.js';

/** The readings of an engine. The class Engine adds the calls that change it. */
export class EngineReports {
  /** The model. It keeps its weights after destroy(), except sharded ones: see destroy(). */
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

  constructor(
    /** @internal */
    readonly parts: EngineParts,
  ) {
    this.module = parts.module;
    this.device = parts.device;
    this.config = parts.config;
    this.progress = parts.progress;
    this.optimizer = addZeroGrad(parts, () => parts.gradients.zero());
    this.lrScheduler = parts.schedules;
    const { world, dataGroup } = parts.ranks;
    this.globalRank = world.rank;
    this.localRank = parts.ranks.localRank;
    this.worldSize = world.size;
    this.dpWorldSize = dataGroup.size;
    this.dpRank = dataGroup.rank;
    this.mesh = parts.ranks.mesh;
    this.calls = new EngineCalls(parts.ranks, {
      gathersWeights: this.zeroOptimizationStage() === 3,
      parameterGroups: parts.zeroGroups.ownShardGroups,
      hasOptimizer: !(parts.optimizer instanceof NoOptimizer),
    });
  }

  /** Returns whether the pending backward(), else the next one, completes a step. */
  isGradientAccumulationBoundary(): boolean {
    return this.parts.gradients.atBoundary;
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

  /** Returns the global gradient norm limit; 0 disables clipping. */
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
   * Throws DS_ARGUMENT for an invalid option, DS_IO if the file cannot be written. Source:
   * torch.profiler's export_chrome_trace.
   */
  trace(path: string, options: TraceStepsOptions = {}): string {
    this.calls.requireOpen('engine.trace');
    const { globalRank: rank, device } = this;
    return this.parts.watch.trace(() => readTraceOptions(path, options, { device, rank }));
  }

  /** Resolves when the records that monitors have received are on disk. */
  flushMonitors(): Promise<void> {
    return this.parts.watch.flush();
  }

  /** Text for console.log(): step, optimizer, stage, device and model. */
  [Symbol.for('nodejs.util.inspect.custom')](depth: number): string {
    const { globalSteps, globalRank, worldSize, optimizer, device, module, config } = this;
    const stage = `ZeRO stage ${config.zero_optimization.stage}`;
    const rank = worldSize > 1 ? `, rank ${globalRank} of ${worldSize}` : '';
    const head = `Engine(step ${globalSteps}, ${optimizer.name}, ${stage}, ${device.name}${rank})`;
    return depth < 0 ? head : `${head} of ${module}`;
  }
}

/** The optimizer of an engine, with the zeroGrad() of that engine. */
export interface EngineOptimizer extends Optimizer {
  /**
   * Drops the gradients since the last step(), like DeepSpeed's zero_grad(). Micro-batches still
   * count. Throws DS_AUTOGRAD between the backward() that completes a step and its step().
   */
  zeroGrad(): void;
}

/** Adds the engine's zeroGrad() to the optimizer until the engine is destroyed. */
function addZeroGrad({ optimizer, owned }: EngineParts, zeroGrad: () => void): EngineOptimizer {
  const property = { value: zeroGrad, configurable: true, writable: true };
  Object.defineProperty(optimizer, 'zeroGrad', property);
  owned.defer(() => delete (optimizer as Partial<EngineOptimizer>).zeroGrad);
  return optimizer as EngineOptimizer;
}
