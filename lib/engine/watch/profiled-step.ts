// Profiles one global step with the FLOPs profiler (flops_profiler.profile_step).

import type { FlopsProfiler, PrintOptions } from '../../profiler/index.js';
import { required } from '../../runtime/required.js';
import { Event } from '../../runtime/stream.js';
import { EventTimer, type Phase, type PhaseTimer, WrappedTimer } from './phase-timer.js';

interface ProfiledStepOptions extends PrintOptions {
  /**
   * Number of the global step to profile, from 1. A run that resumes after this step profiles
   * nothing.
   */
  profileStep: number;
}

/** The step that is being profiled. */
interface Running {
  timer: EventTimer;
  start: Event;
  microBatches: number;
}

/**
 * A phase timer that profiles one step. Hooks, counts and events exist only during this step. At
 * its end, the host waits for the device.
 */
export class ProfiledStep extends WrappedTimer {
  private nextStep = 1;
  private samples = 0;
  private running: Running | null = null;

  constructor(
    inner: PhaseTimer,
    private readonly profiler: FlopsProfiler,
    private readonly options: ProfiledStepOptions,
  ) {
    super(inner);
  }

  override time<T>(phase: Phase, body: () => T): T {
    if (this.nextStep !== this.options.profileStep) return this.inner.time(phase, body);
    this.running ??= this.start();
    const { running } = this;
    if (phase === 'forward') running.microBatches++;
    return this.inner.time(phase, () => running.timer.time(phase, body));
  }

  override finishStep(step: number, samples: number): void {
    super.finishStep(step, samples);
    if (this.running) this.finish(this.running, step, samples - this.samples);
    this.nextStep = step + 1;
    this.samples = samples;
  }

  override dispose(): void {
    if (this.running) this.drop(this.running);
    super.dispose();
  }

  private start(): Running {
    this.profiler.startProfile();
    const { device } = this.profiler;
    const start = new Event(device, true).record(device.compute);
    return { timer: new EventTimer(device), start, microBatches: 0 };
  }

  /**
   * Ends the profile, and prints it. If the first step of a resumed run has another number, prints
   * nothing.
   */
  private finish(running: Running, step: number, samples: number): void {
    this.profiler.stopProfile();
    const { timer, microBatches } = running;
    timer.finishStep(step, samples);
    if (step === this.options.profileStep) {
      const latencyMs = { ...required(timer.last()), total: this.elapsed(running.start) };
      this.print({ step, samples, microBatches, latencyMs });
    }
    this.drop(running);
  }

  /** Returns the device milliseconds since `start`. Waits for the device. */
  private elapsed(start: Event): number {
    const { device } = this.profiler;
    const end = new Event(device, true).record(device.compute);
    end.synchronize();
    const ms = end.since(start);
    end.dispose();
    return ms;
  }

  /** Prints the profile. If it cannot be written, warns, and training continues. */
  private print(facts: Parameters<FlopsProfiler['profile']>[0]): void {
    const { profileStep: _, ...printed } = this.options;
    try {
      this.profiler.printModelProfile(printed, facts);
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      const warning = `flops_profiler could not write its profile: ${reason}`;
      process.emitWarning(warning, { type: 'DsWarning', code: 'DS_MONITOR' });
    }
  }

  private drop({ timer, start }: Running): void {
    this.profiler.endProfile();
    timer.all();
    timer.dispose();
    start.dispose();
    this.running = null;
  }
}
