// StepWatch: owns the phase timer and the observers of an engine.
import type { Device } from '../../runtime/device.js';
import {
  EventTimer,
  type FinishedStep,
  type Phase,
  type PhaseTimer,
  type PhaseTimes,
  type StepObserver,
  type TimedStep,
} from './phase-timer.js';
import { type TracedStepOptions, TracedSteps } from './traced-steps.js';

/** A phase timer that records nothing. */
export const untimed: PhaseTimer = {
  time: (_phase, body) => body(),
  finishStep() {},
  takePassed: () => [],
  all: () => [],
  last: () => null,
  recordOn: (device) => new EventTimer(device),
  dispose() {},
};

/**
 * Measures phases, and reports steps to observers. Only times() and reportTimes() wait for the
 * device.
 */
export class StepWatch {
  /** Busy milliseconds of this rank in the last timed step. Null before share(). */
  busy: number | null = null;
  /** Observers of engine.watch(). They always get phase times; monitors may not. */
  private readonly watchers: StepObserver[] = [];
  /** Whether the configuration or the program requested phase times for monitors. */
  private isTimed: boolean;

  constructor(
    private timer: PhaseTimer,
    private readonly monitors: readonly StepObserver[],
  ) {
    this.isTimed = timer !== untimed;
  }

  /** Adds an observer. Returns a function that removes it. */
  add(observer: StepObserver): () => void {
    this.watchers.push(observer);
    return () => {
      const at = this.watchers.indexOf(observer);
      if (at >= 0) this.watchers.splice(at, 1);
    };
  }

  /** Measures phases for added observers. The busy time is then sent to the other ranks. */
  share(device: Device): void {
    this.timer = this.timer.recordOn(device);
    this.busy ??= 0;
  }

  /** Runs `body`, and measures its work on the compute stream. */
  time<T>(phase: Phase, body: () => T): T {
    return this.timer.time(phase, body);
  }

  /** Finishes a step with the times so far. */
  finishStep(step: number, samples: number): void {
    this.timer.finishStep(step, samples);
  }

  /**
   * Reports a step after its decision was read. The device has passed earlier steps by then, so
   * this reports their times too.
   */
  report(step: FinishedStep): void {
    this.reportTimed(this.timer.takePassed());
    for (const observer of this.all) observer.stepFinished?.(step);
  }

  /** Reports the times of all finished steps. Waits for the device. */
  reportTimes(): void {
    this.reportTimed(this.timer.all());
  }

  /** Records phase times on `device` from now on. */
  record(device: Device): void {
    this.isTimed = true;
    this.timer = this.timer.recordOn(device);
  }

  /**
   * Traces the next steps. Returns the path of the file. Throws DS_ARGUMENT during another trace.
   */
  trace(readTraceOptions: () => TracedStepOptions): string {
    const { timer } = this;
    if (timer instanceof TracedSteps) throw timer.refuseAnother();
    const options = readTraceOptions();
    this.timer = new TracedSteps(timer, options, (inner) => {
      this.timer = inner;
    });
    return options.path;
  }

  /**
   * Returns the times of the last finished step, or null if it was not recorded. Waits for the
   * device.
   */
  times(): PhaseTimes | null {
    return this.timer.last();
  }

  /** Resolves when all records of the observers are on disk. */
  async flush(): Promise<void> {
    await Promise.all(this.all.map((observer) => observer.flush?.()));
  }

  close(): void {
    this.reportTimes();
    for (const observer of this.all) observer.close?.();
    this.timer.dispose();
  }

  private reportTimed(steps: readonly TimedStep[]): void {
    for (const timed of steps) {
      const { forward, backward, reduce, step } = timed.times;
      if (this.busy !== null) this.busy = forward + backward - reduce + step;
      const observers = this.isTimed ? this.all : this.watchers;
      for (const observer of observers) observer.stepTimed?.(timed);
    }
  }

  private get all(): readonly StepObserver[] {
    return [...this.monitors, ...this.watchers];
  }
}
