// StepWatch: the phase timer, and the observers of finished steps.
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

/** Records nothing. */
export const untimed: PhaseTimer = {
  time: (_phase, body) => body(),
  finishStep() {},
  takePassed: () => [],
  all: () => [],
  last: () => null,
  recordOn: (device) => new EventTimer(device),
  dispose() {},
};

/** Owns the timer and the observers. Only times() and reportTimes() wait for the device. */
export class StepWatch {
  /** Busy milliseconds of the last timed step on this rank; null before share(). */
  busy: number | null = null;
  /** Observers of a watched run. They get times whether or not the monitors do. */
  private readonly watchers: StepObserver[] = [];
  /** Whether the configuration or the program measures phases for monitors. */
  private isTimed: boolean;

  constructor(
    private timer: PhaseTimer,
    private readonly monitors: readonly StepObserver[],
  ) {
    this.isTimed = timer !== untimed;
  }

  /** Adds an observer; the returned function removes it. */
  add(observer: StepObserver): () => void {
    this.watchers.push(observer);
    return () => {
      const at = this.watchers.indexOf(observer);
      if (at >= 0) this.watchers.splice(at, 1);
    };
  }

  /** Measures phases for added observers, and shares the busy time with the other ranks. */
  share(device: Device): void {
    this.timer = this.timer.recordOn(device);
    this.busy ??= 0;
  }

  /** Runs `body` and measures its compute work. */
  time<T>(phase: Phase, body: () => T): T {
    return this.timer.time(phase, body);
  }

  /** Closes a step with the times so far. */
  finishStep(step: number, samples: number): void {
    this.timer.finishStep(step, samples);
  }

  /**
   * Reports a step after its decision. The device has passed earlier steps, so their times are
   * reported too.
   */
  report(step: FinishedStep): void {
    this.reportTimed(this.timer.takePassed());
    for (const observer of this.all) observer.stepFinished?.(step);
  }

  /** Reports the times of all closed steps. Waits for the device. */
  reportTimes(): void {
    this.reportTimed(this.timer.all());
  }

  /** Records the phases on `device` from now on. */
  record(device: Device): void {
    this.isTimed = true;
    this.timer = this.timer.recordOn(device);
  }

  /** Traces the next steps; returns the file. Throws DS_ARGUMENT during another trace. */
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
   * Returns the times of the last closed step, or null if it was not recorded. Waits for the
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
