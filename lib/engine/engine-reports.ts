// EngineReports: the part of an engine that only reads: ranks, sizes, the last step, progress, and
// phase times.
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

/** The read-only part of an engine. The class Engine adds the calls that change it. */
export class EngineReports {
  /** The model. It keeps its weights after destroy(), unless they are sharded: see destroy(). */
  readonly module: Module;
  /** The device that runs the model. */
  readonly device: Device;
  /** The configuration, with defaults applied. It is frozen. */
  readonly config: ResolvedConfig;
  /** Counters of steps and samples. Checkpoints store them. */
  readonly progress: Progress;
  /** The optimizer. The hyperparameters of its groups may change between steps. */
  readonly optimizer: EngineOptimizer;
  /** The schedules of the groups. Empty if neither the configuration nor the caller sets one. */
  readonly lrScheduler: ScheduleSet;
  /** Index of this process in the job. */
  readonly globalRank: number;
  /** Index of this process on its host. */
  readonly localRank: number;
  /** Number of processes in the job. */
  readonly worldSize: number;
  /** Number of data ranks, which divide a batch; worldSize if dp is the only axis. */
  readonly dpWorldSize: number;
  /** Index of this process among the data ranks. Samplers use it. */
  readonly dpRank: number;
  /** The processes of the job as a grid with named axes. */
  readonly mesh: Mesh;
  /** By name: objects with state that checkpoints store too. initialize() adds its loader. */
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

  /**
   * Returns whether the pending backward() completes a step; without a pending one, whether the
   * next backward() does.
   */
  isGradientAccumulationBoundary(): boolean {
    return this.parts.gradients.atBoundary;
  }

  /**
   * Whether training should end after this step, because a rank received a signal (see stopSignals
   * of initialize()) or called requestStop(). All ranks see true at the same step, one or two steps
   * after the request. The value changes only in step(). On a single rank, it changes at once.
   *
   * The first read installs signal handlers until destroy(). From then on, the first signal only
   * requests a stop. A second signal ends the process if it comes half a second later or more, even
   * if the event loop is blocked. Signal handlers of the program still run.
   */
  get stopRequested(): boolean {
    return this.parts.stop.isDue;
  }

  /** Aborts in step() when stopRequested becomes true. A read installs the signal handlers too. */
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

  /**
   * Returns the gradient norm of the last step before clipping, or null. Waits for its backward.
   */
  getGlobalGradNorm(): number | null {
    return this.parts.stepDecisions.last?.norm ?? null;
  }

  /**
   * Returns the loss of the last step: the mean over its micro-batches and data ranks. Returns null
   * before the first step, and after loss.backward() without scale(). Waits for the backward of the
   * step.
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

  /** Number of steps skipped for a non-finite gradient. Waits for the backward of the last step. */
  get skippedSteps(): number {
    this.parts.stepDecisions.take();
    return this.progress.skippedSteps;
  }

  /** Returns the number of samples per step, over all ranks. */
  trainBatchSize(): number {
    return this.parts.batch.train;
  }

  /** Returns the number of samples per forward on one rank. */
  trainMicroBatchSizePerGpu(): number {
    return this.parts.batch.microPerDevice;
  }

  /** Returns the number of micro-batches per step. */
  gradientAccumulationSteps(): number {
    return this.parts.batch.accumulationSteps;
  }

  /** Returns the number of global steps between two progress lines; null without progress lines. */
  stepsPerPrint(): number | null {
    return this.config.steps_per_print;
  }

  /**
   * Tokens per sample in the next step, by `curriculum_learning`; null without it. In training, a
   * CausalLM cuts its inputs to this length. For other models, the caller cuts the batches. Throws
   * DS_CONFIG if a "custom" schedule is missing.
   */
  get curriculumSeqlen(): number | null {
    return this.parts.curriculum.seqlen;
  }

  /**
   * Fraction of layers that run in the next step, by `progressive_layer_drop`; null without it. In
   * training, a CausalLM drops layers itself. For other models, the training loop reads this value,
   * or the model defines dropLayers().
   */
  get pldTheta(): number | null {
    return this.parts.layerDrop.theta;
  }

  /** Returns the limit of the global gradient norm; 0 disables clipping. */
  gradientClipping(): number {
    return this.config.gradient_clipping;
  }

  /** Returns the ZeRO stage, 0 to 3. */
  zeroOptimizationStage(): number {
    return this.config.zero_optimization.stage;
  }

  /**
   * Starts to record phase times, for phaseTimes() and for monitors. Monitors get them one step
   * later.
   */
  recordPhases(): void {
    this.parts.watch.record(this.device);
  }

  /**
   * Returns the device milliseconds of the last recorded step, or null. Synchronizes the device.
   */
  phaseTimes(): PhaseTimes | null {
    return this.parts.watch.times();
  }

  /**
   * Writes a trace of the next steps in Chrome's trace format (chrome://tracing, Perfetto):
   * activity of streams, host threads, ranks and disks. For a path "*.txt", it writes a table of
   * device time by role instead. Returns the path of the file. Ranks other than 0 write
   * FILE.rankN.json. Throws DS_ARGUMENT for an invalid option, DS_IO if the file cannot be written.
   * Source: torch.profiler's export_chrome_trace.
   */
  trace(path: string, options: TraceStepsOptions = {}): string {
    this.calls.requireOpen('engine.trace');
    const { globalRank: rank, device } = this;
    return this.parts.watch.trace(() => readTraceOptions(path, options, { device, rank }));
  }

  /** Resolves when all records so far are on disk. */
  flushMonitors(): Promise<void> {
    return this.parts.watch.flush();
  }

  /** Returns text for console.log(): step, optimizer, stage, device and model. */
  [Symbol.for('nodejs.util.inspect.custom')](depth: number): string {
    const { globalSteps, globalRank, worldSize, optimizer, device, module, config } = this;
    const stage = `ZeRO stage ${config.zero_optimization.stage}`;
    const rank = worldSize > 1 ? `, rank ${globalRank} of ${worldSize}` : '';
    const head = `Engine(step ${globalSteps}, ${optimizer.name}, ${stage}, ${device.name}${rank})`;
    return depth < 0 ? head : `${head} of ${module}`;
  }
}

/** The optimizer of an engine. Its zeroGrad() acts on the engine. */
export interface EngineOptimizer extends Optimizer {
  /**
   * Drops the gradients since the last step(), like DeepSpeed's zero_grad(). The micro-batches
   * still count. Throws DS_AUTOGRAD between the backward() that completes a step and its step().
   */
  zeroGrad(): void;
}

/** Adds zeroGrad() to the optimizer until the engine is destroyed. */
function addZeroGrad({ optimizer, owned }: EngineParts, zeroGrad: () => void): EngineOptimizer {
  const property = { value: zeroGrad, configurable: true, writable: true };
  Object.defineProperty(optimizer, 'zeroGrad', property);
  owned.defer(() => delete (optimizer as Partial<EngineOptimizer>).zeroGrad);
  return optimizer as EngineOptimizer;
}
