// Times collectives on the device, and how long compute stands still for them.
import type { Device } from '../runtime/device.js';
import { Event, type Stream } from '../runtime/stream.js';

export interface CommTimer {
  /** Runs `body`, which enqueues a collective on `stream`. */
  collective<Result>(stream: Stream, body: () => Result): Result;
  /** Runs `body`, after which `compute` waits for collectives. */
  stall<Result>(compute: Stream, body: () => Result): Result;
}

/** Times nothing. */
export const untimedComm: CommTimer = {
  collective: (_stream, body) => body(),
  stall: (_compute, body) => body(),
};

export interface CommTimes {
  collectives: number;
  /** Milliseconds that collectives took on their streams, waiting for other ranks included. */
  total: number;
  /** Milliseconds that compute stood still for them. */
  exposed: number;
}

interface Span {
  start: Event;
  end: Event;
}

/** Owns two events for each collective and each wait since the last reset(). */
export class EventCommTimer implements CommTimer {
  private readonly collectives: Span[] = [];
  private readonly stalls: Span[] = [];

  constructor(private readonly device: Device) {}

  collective<Result>(stream: Stream, body: () => Result): Result {
    return this.time(this.collectives, stream, body);
  }

  stall<Result>(compute: Stream, body: () => Result): Result {
    return this.time(this.stalls, compute, body);
  }

  /** Sums since the last reset(); waits for the device. */
  times(): CommTimes {
    const sum = (spans: readonly Span[]): number =>
      spans.reduce((total, { start, end }) => {
        end.synchronize();
        return total + end.since(start);
      }, 0);
    const { length } = this.collectives;
    return { collectives: length, total: sum(this.collectives), exposed: sum(this.stalls) };
  }

  reset(): void {
    for (const { start, end } of [...this.collectives, ...this.stalls]) {
      start.dispose();
      end.dispose();
    }
    this.collectives.length = 0;
    this.stalls.length = 0;
  }

  private time<Result>(spans: Span[], stream: Stream, body: () => Result): Result {
    const span = { start: new Event(this.device, true), end: new Event(this.device, true) };
    span.start.record(stream);
    const result = body();
    span.end.record(stream);
    spans.push(span);
    return result;
  }
}
