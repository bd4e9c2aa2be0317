// Phase timers: measure the phases of a step by device events, without waiting. This file also
// defines the observers of steps.
import type { Device } from '../../runtime/device.js';
import { Event } from '../../runtime/stream.js';

/**
 * A step after its decision was read. Counters and learning rates are the values after the step.
 */
export interface FinishedStep {
  /** Number of global steps, including this one. */
  step: number;
  /** Number of global samples, including this step. */
  samples: number;
  /** Number of skipped updates so far. */
  skipped: number;
  /** Whether this update changed the weights. */
  applied: boolean;
  /** Mean loss over the micro-batches of all ranks. Null after loss.backward() without scale(). */
  loss: number | null;
  /** Global L2 norm of the gradients before clipping. */
  norm: number;
  /** Learning rate of each group at the next update, as in getLr(). */
  lr: readonly number[];
  /** Betas of each parameter group. Empty for a group without betas. */
  betas: readonly (readonly number[])[];
  /** The loss scale of the next backward. */
  lossScale: number;
  /** By rank: busy milliseconds in an earlier step. Null if the ranks do not exchange them. */
  busy: readonly number[] | null;
}

/** Gets reports of steps. The training thread calls it between steps. */
export interface StepObserver {
  /**
   * Called once per global step, in order: in the next backward(), or when the engine synchronizes.
   */
  stepFinished?(report: FinishedStep): void;
  /** Called once per timed step, in order, one step later than stepFinished(). */
  stepTimed?(timed: TimedStep): void;
  /** Resolves when all earlier records are on disk. */
  flush?(): Promise<void>;
  /** Called when the engine is destroyed. */
  close?(): void;
}

/**
 * A phase of a step. `reduce` is a part of backward: the time that compute waits for the reduction
 * of gradients. Reduction in parallel with compute does not count.
 */
export type Phase = 'forward' | 'backward' | 'reduce' | 'step';

/**
 * Milliseconds of each phase in one global step, summed over micro-batches. `reduce` is 0 on one
 * rank.
 */
export type PhaseTimes = Record<Phase, number>;

/** A finished step with its phase times. */
export interface TimedStep {
  /** Number of global steps, including this one. */
  step: number;
  /** Number of global samples, including this step. */
  samples: number;
  times: PhaseTimes;
}

export interface PhaseTimer {
  /** Runs `body`, and measures its work on the compute stream. */
  time<T>(phase: Phase, body: () => T): T;
  finishStep(step: number, samples: number): void;
  /**
   * Returns all finished steps except the last one, each once. If the device has passed the
   * backward of the last step, earlier steps are complete and this does not wait.
   */
  takePassed(): TimedStep[];
  /** Returns all finished steps, each once. Waits for the device. */
  all(): TimedStep[];
  /** Returns the times of the last finished step. Waits for the device. */
  last(): PhaseTimes | null;
  /**
   * Returns a timer that records on `device` from now on. If this timer records already, returns
   * itself.
   */
  recordOn(device: Device): PhaseTimer;
  dispose(): void;
}

interface Span {
  phase: Phase;
  start: Event;
  end: Event;
}

/**
 * A finished step. When its spans are read, their times are added to `times`, and `spans` becomes
 * empty.
 */
interface ClosedStep {
  step: number;
  samples: number;
  spans: Span[];
  times: PhaseTimes;
}

/** Measures spans on the compute stream of the device. Reuses its events. */
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

/**
 * A timer that forwards all calls to an inner timer, which it owns. Subclasses add their own work.
 */
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
