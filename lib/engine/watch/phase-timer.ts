// Phase times of a step from device events, read only after the device has passed them: no host
// stalls.
import type { Device } from '../../runtime/device.js';
import { Event } from '../../runtime/stream.js';

/**
 * `reduce` lies inside backward: what compute waits for the reduction of gradients over ranks. What
 * overlaps with compute is not in it.
 */
export type Phase = 'forward' | 'backward' | 'reduce' | 'step';

/**
 * Milliseconds per phase of one global step, all micro-batches together; on one rank `reduce` is 0.
 */
export type PhaseTimes = Record<Phase, number>;

/** A closed step: its place in the run, and its times. */
export interface TimedStep {
  /** Global steps, this one included. */
  step: number;
  /** Global samples, this step's included. */
  samples: number;
  times: PhaseTimes;
}

export interface PhaseTimer {
  /** Runs `body` and times the compute work it enqueues. */
  time<T>(phase: Phase, body: () => T): T;
  /** Closes a step. */
  finishStep(step: number, samples: number): void;
  /**
   * All closed steps but the last, each once. Does not wait when the device has passed the backward
   * of the last one: the steps before it lie before that.
   */
  passed(): TimedStep[];
  /** All closed steps, each once; waits for the device. */
  all(): TimedStep[];
  /** The times of the last closed step; waits for the device. */
  last(): PhaseTimes | null;
  /** This timer with times of `device` from now on: itself where it has them. */
  recording(device: Device): PhaseTimer;
  dispose(): void;
}

/** Times nothing. */
export const untimed: PhaseTimer = {
  time: (_phase, body) => body(),
  finishStep() {},
  passed: () => [],
  all: () => [],
  last: () => null,
  recording: (device) => new EventTimer(device),
  dispose() {},
};

interface Span {
  phase: Phase;
  start: Event;
  end: Event;
}

/** `spans` is empty once `times` holds what they said. */
interface ClosedStep {
  step: number;
  samples: number;
  spans: Span[];
  times: PhaseTimes;
}

/** Times spans on the device's compute stream. Events are reused. */
export class EventTimer implements PhaseTimer {
  private open: Span[] = [];
  private readonly closed: ClosedStep[] = [];
  private latest: ClosedStep | null = null;
  private readonly spare: Event[] = [];

  constructor(private readonly device: Device) {}

  time<T>(phase: Phase, body: () => T): T {
    const start = this.event().record(this.device.compute);
    try {
      return body();
    } finally {
      this.open.push({ phase, start, end: this.event().record(this.device.compute) });
    }
  }

  finishStep(step: number, samples: number): void {
    const times: PhaseTimes = { forward: 0, backward: 0, reduce: 0, step: 0 };
    this.latest = { step, samples, spans: this.open, times };
    this.closed.push(this.latest);
    this.open = [];
  }

  passed(): TimedStep[] {
    return this.closed.splice(0, this.closed.length - 1).map((step) => this.read(step));
  }

  all(): TimedStep[] {
    return this.closed.splice(0).map((step) => this.read(step));
  }

  last(): PhaseTimes | null {
    return this.latest && this.read(this.latest).times;
  }

  recording(): this {
    return this;
  }

  dispose(): void {
    for (const step of this.closed) this.read(step);
    for (const { start, end } of this.open.splice(0)) this.spare.push(start, end);
    for (const event of this.spare.splice(0)) event.dispose();
  }

  private read(closed: ClosedStep): TimedStep {
    const { step, samples, spans, times } = closed;
    for (const { phase, start, end } of spans.splice(0)) {
      end.synchronize();
      times[phase] += end.since(start);
      this.spare.push(start, end);
    }
    return { step, samples, times: { ...times } };
  }

  private event(): Event {
    return this.spare.pop() ?? new Event(this.device, true);
  }
}
