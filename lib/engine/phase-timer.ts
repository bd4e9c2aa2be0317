// Phase times of a step from device events, read only after the device has passed them: no host stalls.
import type { Device } from '../runtime/device.js';
import { Event } from '../runtime/stream.js';

export type Phase = 'forward' | 'backward' | 'step';

interface Span {
  phase: Phase;
  start: Event;
  end: Event;
}

/** Milliseconds per phase of one global step, all micro-batches together. */
export type PhaseTimes = Record<Phase, number>;

/** Times spans on the device's compute stream. Events are reused. */
export class PhaseTimer {
  private open: Span[] = [];
  private readonly spare: Event[] = [];

  constructor(private readonly device: Device) {}

  /** Runs `body` and times the compute work it enqueues. */
  time<T>(phase: Phase, body: () => T): T {
    const start = this.event().record(this.device.compute);
    try {
      return body();
    } finally {
      this.open.push({ phase, start, end: this.event().record(this.device.compute) });
    }
  }

  /** Closes the step: a function that gives its times once they can be read (it waits for the device). */
  finishStep(): () => PhaseTimes {
    const spans = this.open;
    this.open = [];
    return () => {
      const times: PhaseTimes = { forward: 0, backward: 0, step: 0 };
      for (const { phase, start, end } of spans.splice(0)) {
        end.synchronize();
        times[phase] += end.since(start);
        this.spare.push(start, end);
      }
      return times;
    };
  }

  private event(): Event {
    return this.spare.pop() ?? new Event(this.device, true);
  }
}
