// Measures phase times by device events without waiting, and defines the observers of steps.
import type { Device } from '../../runtime/device.js';
import { Event } from '../../runtime/stream.js';

/** A step after its decision. Counters and learning rates are the values after it. */
export interface FinishedStep {
  /** Global steps, including this one. */
  step: number;
  /** Global samples, including this step. */
  samples: number;
  /** Skipped updates so far. */
  skipped: number;
  /** Whether this update changed the weights. */
  applied: boolean;
  /** Mean over the micro-batches of all ranks; null for loss.backward() without scale(). */
  loss: number | null;
  /** Global L2 norm of the gradients before clipping. */
  norm: number;
  /** Learning rate of each group at the next update, as in getLr(). */
  lr: readonly number[];
  /** Betas of each parameter group; empty without betas. */
  betas: readonly (readonly number[])[];
  /** The loss scale of the next backward. */
  lossScale: number;
  /** Busy milliseconds by rank in an earlier step; null if the ranks do not share them. */
  busy: readonly number[] | null;
}

/** Called between steps on the training thread. */
export interface StepObserver {
  /** Once per global step, in order: in the next backward(), or when the engine synchronizes. */
  stepFinished?(report: FinishedStep): void;
  /** Once per timed step, in order, one step later than stepFinished(). */
  stepTimed?(timed: TimedStep): void;
  /** Resolves when all earlier records are on disk. */
  flush?(): Promise<void>;
  /** Called when the engine is destroyed. */
  close?(): void;
}

/**
 * `reduce` is part of backward: the time that compute waits for the reduction of gradients.
 * Overlapped reduction does not count.
 */
export type Phase = 'forward' | 'backward' | 'reduce' | 'step';

/**
 * Milliseconds per phase of one global step, summed over micro-batches. `reduce` is 0 on one rank.
 */
export type PhaseTimes = Record<Phase, number>;

/** The position and times of a finished step. */
export interface TimedStep {
  /** Global steps, including this one. */
  step: number;
  /** Global samples, including this step. */
  samples: number;
  times: PhaseTimes;
}

export interface PhaseTimer {
  /** Runs `body` and measures its compute work. */
  time<T>(phase: Phase, body: () => T): T;
  finishStep(step: number, samples: number): void;
  /**
   * Returns all closed steps except the last, each once. Does not wait if the device has passed the
   * backward of the last step, because earlier steps are then complete.
   */
  takePassed(): TimedStep[];
  /** Returns all closed steps, each once. Waits for the device. */
  all(): TimedStep[];
  /** Returns the times of the last closed step. Waits for the device. */
  last(): PhaseTimes | null;
  /** Returns a timer that records on `device` from now on: this one if it already records. */
  recordOn(device: Device): PhaseTimer;
  dispose(): void;
}

interface Span {
  phase: Phase;
  start: Event;
  end: Event;
}

/** A closed step. After its spans are read, `spans` is empty and `times` has their times. */
interface ClosedStep {
  step: number;
  samples: number;
  spans: Span[];
  times: PhaseTimes;
}

/** Measures spans on the device's compute stream. Events are reused. */
export class EventTimer implements PhaseTimer {
  private open: Span[] = [];
  private readonly closed: ClosedStep[] = [];
  private latest: ClosedStep | null = null;
  private readonly spareEvents: Event[] = [];

  constructor(private readonly device: Device) {}

  time<T>(phase: Phase, body: () => T): T {
    const start = this.takeEvent().record(this.device.compute);
    try {
      return body();
    } finally {
      this.open.push({ phase, start, end: this.takeEvent().record(this.device.compute) });
    }
  }

  finishStep(step: number, samples: number): void {
    const times: PhaseTimes = { forward: 0, backward: 0, reduce: 0, step: 0 };
    this.latest = { step, samples, spans: this.open, times };
    this.closed.push(this.latest);
    this.open = [];
  }

  takePassed(): TimedStep[] {
    return this.closed.splice(0, this.closed.length - 1).map((step) => this.read(step));
  }

  all(): TimedStep[] {
    return this.closed.splice(0).map((step) => this.read(step));
  }

  last(): PhaseTimes | null {
    return this.latest && this.read(this.latest).times;
  }

  recordOn(): this {
    return this;
  }

  dispose(): void {
    for (const step of this.closed) this.read(step);
    for (const { start, end } of this.open.splice(0)) this.spareEvents.push(start, end);
    for (const event of this.spareEvents.splice(0)) event.dispose();
  }

  private read(closed: ClosedStep): TimedStep {
    const { step, samples, spans, times } = closed;
    for (const { phase, start, end } of spans.splice(0)) {
      end.synchronize();
      times[phase] += end.since(start);
      this.spareEvents.push(start, end);
    }
    return { step, samples, times: { ...times } };
  }

  private takeEvent(): Event {
    return this.spareEvents.pop() ?? new Event(this.device, true);
  }
}

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
