// A phase timer that forwards all calls to another; subclasses override some.
import type { Device } from '../../runtime/device.js';
import type { Phase, PhaseTimer, PhaseTimes, TimedStep } from './phase-timer.js';

/** Owns the inner timer. */
export abstract class WrappedTimer implements PhaseTimer {
  constructor(protected inner: PhaseTimer) {}

  time<T>(phase: Phase, body: () => T): T {
    return this.inner.time(phase, body);
  }

  finishStep(step: number, samples: number): void {
    this.inner.finishStep(step, samples);
  }

  takePassed(): TimedStep[] {
    return this.inner.takePassed();
  }

  all(): TimedStep[] {
    return this.inner.all();
  }

  last(): PhaseTimes | null {
    return this.inner.last();
  }

  recordOn(device: Device): this {
    this.inner = this.inner.recordOn(device);
    return this;
  }

  dispose(): void {
    this.inner.dispose();
  }
}
