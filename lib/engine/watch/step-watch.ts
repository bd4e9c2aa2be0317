// Who watches the steps: the phase timer, and the observers that are told of finished steps and of
// their times.
import type { Device } from '../../runtime/device.js';
import type { FinishedStep, StepObserver } from './observer.js';
import type { Phase, PhaseTimer, PhaseTimes, TimedStep } from './phase-timer.js';
import { type TracedStepOptions, TracedSteps } from './traced-steps.js';

/** Owns the timer and the observers. Nothing but times() and tellTimes() waits for the device. */
export class StepWatch {
  constructor(
    private timer: PhaseTimer,
    private readonly observers: readonly StepObserver[],
  ) {}

  /** Runs `body` and times the compute work that it enqueues. */
  time<T>(phase: Phase, body: () => T): T {
    return this.timer.time(phase, body);
  }

  /** Closes a step: the times so far are its own. */
  finishStep(step: number, samples: number): void {
    this.timer.finishStep(step, samples);
  }

  /**
   * A step's decision was taken; the device has passed the steps before it, whose times are told as
   * well.
   */
  report(step: FinishedStep): void {
    this.reportTimed(this.timer.passed());
    for (const observer of this.observers) observer.stepFinished?.(step);
  }

  /** Tells the times of all closed steps. Waits for the device. */
  reportTimes(): void {
    this.reportTimed(this.timer.all());
  }

  /** Times the phases on `device` from now on. */
  record(device: Device): void {
    this.timer = this.timer.recording(device);
  }

  /** Traces coming steps; returns the file. Throws DS_ARGUMENT while others are awaited. */
  trace(wanted: () => TracedStepOptions): string {
    const { timer } = this;
    if (timer instanceof TracedSteps) throw timer.refuseAnother();
    const options = wanted();
    this.timer = new TracedSteps(timer, options, (inner) => {
      this.timer = inner;
    });
    return options.path;
  }

  /** Of the last closed step; null when it was not timed. Waits for the device. */
  times(): PhaseTimes | null {
    return this.timer.last();
  }

  /** Resolves when what observers were told so far is safe. */
  async flush(): Promise<void> {
    await Promise.all(this.observers.map((observer) => observer.flush?.()));
  }

  close(): void {
    this.reportTimes();
    for (const observer of this.observers) observer.close?.();
    this.timer.dispose();
  }

  private reportTimed(steps: readonly TimedStep[]): void {
    for (const timed of steps) {
      for (const observer of this.observers) observer.stepTimed?.(timed);
    }
  }
}
