// Measures the collectives of a training step by device events.
import type { Device } from '../lib/runtime/device.js';
import { Event, type Stream } from '../lib/runtime/stream.js';
import type { CommTimer } from '../lib/zero/gradients.js';

interface CommTimes {
  collectives: number;
  /** Milliseconds of collectives on their streams, including waits for other ranks. */
  total: number;
  /** Milliseconds that compute waited for them. */
  exposed: number;
}

interface Span {
  start: Event;
  end: Event;
}

/** Owns two events per collective and per wait since the last reset(). */
export class EventCommTimer implements CommTimer {
  private readonly collectives: Span[] = [];
  private readonly stalls: Span[] = [];

  constructor(private readonly device: Device) {}

  beginCollective(stream: Stream): () => void {
    return this.open(this.collectives, stream);
  }

  beginStall(compute: Stream): () => void {
    return this.open(this.stalls, compute);
  }

  /** Returns sums since the last reset(). Waits for the device. */
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

  private open(spans: Span[], stream: Stream): () => void {
    const span = { start: new Event(this.device, true), end: new Event(this.device, true) };
    span.start.record(stream);
    return () => {
      span.end.record(stream);
      spans.push(span);
    };
  }
}
