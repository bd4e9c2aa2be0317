// Phase timers for runs of `ds --autotuning`. They measure, write the result and end the process,
// as DeepSpeed does.

import { readFileSync } from 'node:fs';
import type { ResolvedConfig } from '../../../types/config.js';
import type { Module } from '../../nn/module.js';
import { type ExperimentMetrics, type ModelInfo, writeResult } from '../../plan/index.js';
import { FlopsProfiler } from '../../profiler/index.js';
import type { Device } from '../../runtime/device.js';
import { required } from '../../runtime/required.js';
import { Tensor, zeros } from '../../tensor/index.js';
import type { Collectives } from '../../zero/wire.js';
import { type Phase, type PhaseTimer, WrappedTimer } from './phase-timer.js';

/** The engine under measurement. */
interface ExperimentRun {
  module: Module;
  device: Device;
  config: ResolvedConfig;
  world: Collectives;
  /**
   * Whether ranks wait for each other inside forwards. If so, the run ends after its first step.
   */
  isPipeline: boolean;
}

/**
 * Measures the milliseconds of the steps from start_profile_step to end_profile_step, counted from
 * 0, by the clock. Work of the program between engine calls is included. DeepSpeed instead adds up
 * forward, backward and step.
 */
export class MeasuredSteps extends WrappedTimer {
  private readonly profiler: FlopsProfiler;
  private steps = 0;
  private startedAt: number | null = null;
  private metrics: ExperimentMetrics | null = null;

  constructor(
    inner: PhaseTimer,
    private readonly run: ExperimentRun,
  ) {
    super(inner);
    this.profiler = new FlopsProfiler(run);
  }

  override time<T>(phase: Phase, body: () => T): T {
    if (this.steps === this.settings.start_profile_step) this.startedAt ??= this.now();
    return super.time(phase, body);
  }

  override finishStep(step: number, samples: number): void {
    super.finishStep(step, samples);
    const { start_profile_step: start, end_profile_step: end, metric } = this.settings;
    this.steps++;
    if (this.steps === start) this.startedAt = this.now();
    if (this.steps === end + 1) {
      this.metrics = this.measure(end + 1 - start);
      if (metric === 'flops') this.profiler.startProfile();
      else this.leave(this.metrics);
    } else if (this.metrics) this.leave(this.withOperations(this.metrics));
  }

  private get settings(): ResolvedConfig['autotuning'] {
    return this.run.config.autotuning;
  }

  /** Waits for the device. Returns the milliseconds on the clock. */
  private now(): number {
    this.run.device.compute.synchronize();
    return performance.now();
  }

  private measure(steps: number): ExperimentMetrics {
    const { device, config } = this.run;
    const { train_batch_size } = config;
    const latency = (this.now() - (this.startedAt ?? 0)) / steps;
    return {
      latency,
      throughput: (train_batch_size * 1000) / latency,
      train_batch_size,
      peak_memory: device.memory.peakInUse,
    };
  }

  /**
   * Returns the FLOPs of one more step, divided by the time of the measured steps. Counting slows a
   * step, so that step is not timed.
   */
  private withOperations(metrics: ExperimentMetrics): ExperimentMetrics {
    this.profiler.stopProfile();
    const { forward, backward, recompute } = this.profiler.profile().work;
    this.profiler.endProfile();
    const operations = forward.flops + backward.flops + recompute.flops;
    return { ...metrics, FLOPS_per_gpu: (operations * 1000) / metrics.latency };
  }

  private leave(metrics: ExperimentMetrics): void {
    const { world, device } = this.run;
    if (world.rank === 0) writeResult(required(this.settings.metric_path), metrics);
    endTogether(world, device);
  }
}

/** Measures the activation memory of the first forward, and adds it to the model description. */
export class FirstForward extends WrappedTimer {
  private tokens: number | null = null;
  private isKnown = false;
  private readonly unhook: () => void;

  constructor(
    inner: PhaseTimer,
    private readonly run: ExperimentRun,
    private readonly file: string,
  ) {
    super(inner);
    this.unhook = run.module.registerForwardPreHook((_module, inputs) => {
      const batch = inputs.find((input): input is Tensor => input instanceof Tensor);
      this.tokens = batch?.shape[1] ?? null;
    });
  }

  override time<T>(phase: Phase, body: () => T): T {
    if (phase !== 'forward') return super.time(phase, body);
    const { device, config, world, isPipeline } = this.run;
    const before = device.memory.inUse;
    const result = super.time(phase, body);
    const keptBytes = Math.max(0, device.memory.inUse - before);
    if (world.rank === 0 && !this.isKnown) {
      const info = JSON.parse(readFileSync(this.file, 'utf8')) as ModelInfo;
      const activation_mem_per_gpu = keptBytes / config.train_micro_batch_size_per_gpu;
      writeResult(this.file, { ...info, activation_mem_per_gpu, sequence_length: this.tokens });
    }
    this.isKnown = true;
    if (!isPipeline) endTogether(world, device);
    return result;
  }

  override finishStep(): void {
    endTogether(this.run.world, this.run.device);
  }

  override dispose(): void {
    this.unhook();
    super.dispose();
  }
}

/**
 * Ends the process when every rank has arrived. This is the only place where the library ends a
 * process. The measurement is done, and the rest of the program must not run: it could overwrite a
 * checkpoint.
 */
function endTogether(world: Collectives, device: Device): void {
  if (world.size > 1) {
    const arrived = zeros([1], { device });
    const { compute: stream } = device;
    world.allReduce(arrived, { stream, purpose: 'the end of an experiment' }).wait(stream);
  }
  device.compute.synchronize();
  process.exit(0);
}
