// Measures the forward and the recomputation of a segment: by device events, by waits for the
// device, or not at all.
import type { Device } from '../../runtime/device.js';
import { Event } from '../../runtime/stream.js';
import type { Saved } from '../tape.js';

/** Observes one run of a segment: its forward, its recomputation, and its end by release(). */
export interface WatchedSegment extends Saved {
  forward<T>(body: () => T): T;
  recompute<T>(body: () => T): T;
}

/** Observes the runs of segments. configure() chooses one. */
export interface SegmentWatch {
  open(device: Device): WatchedSegment;
  /** See SegmentTimes; only runs that the device has finished. */
  times(): SegmentTimes[];
  dispose(): void;
}

/** Device milliseconds of one segment, means over its runs. */
export interface SegmentTimes {
  /** Index in forward order, from 0. */
  segment: number;
  /** Number of runs in the means. */
  runs: number;
  /** Time of the first forward. */
  forwardMs: number;
  /** Time of the recomputed forward inside the backward; 0 without a backward. */
  recomputeMs: number;
}

/** One run of a segment, as an observer gets it. */
export type SegmentRun = Omit<SegmentTimes, 'runs'>;
/** Receives each run of a checkpointed segment. */
export type SegmentObserver = (run: SegmentRun) => void;

export const unwatchedSegment: WatchedSegment = {
  forward: (body) => body(),
  recompute: (body) => body(),
  retain() {},
  release() {},
};

export const unwatched: SegmentWatch = {
  open: () => unwatchedSegment,
  times: () => [],
  dispose() {},
};

/**
 * Waits for the device before and after each forward and recomputation. Source: DeepSpeed's
 * synchronize.
 */
export class SynchronizedWatch implements SegmentWatch {
  constructor(private readonly inner: SegmentWatch) {}

  open(device: Device): WatchedSegment {
    const inner = this.inner.open(device);
    const runSynchronized = <T>(run: () => T): T => {
      device.synchronize();
      const result = run();
      device.synchronize();
      return result;
    };
    return {
      forward: (body) => runSynchronized(() => inner.forward(body)),
      recompute: (body) => runSynchronized(() => inner.recompute(body)),
      retain: () => inner.retain(),
      release: () => inner.release(),
    };
  }

  times(): SegmentTimes[] {
    return this.inner.times();
  }

  dispose(): void {
    this.inner.dispose();
  }
}

interface Span {
  start: Event;
  end: Event;
}

/** Times both halves of a run by events, which are read after the device has passed them. */
class TimedSegment implements WatchedSegment {
  private references = 0;
  readonly spans: Partial<Record<'forward' | 'recompute', Span>> = {};

  constructor(
    private readonly device: Device,
    readonly number: number,
    private readonly onEnd: (segment: TimedSegment) => void,
  ) {}

  forward<T>(body: () => T): T {
    return this.time('forward', body);
  }

  recompute<T>(body: () => T): T {
    return this.time('recompute', body);
  }

  retain(): void {
    this.references++;
  }

  release(): void {
    if (--this.references === 0) this.onEnd(this);
  }

  get isFinished(): boolean {
    return Object.values(this.spans).every(({ end }) => end.done);
  }

  /** Milliseconds of a finished half; 0 if it did not run. */
  milliseconds(half: 'forward' | 'recompute'): number {
    const span = this.spans[half];
    return span ? span.end.since(span.start) : 0;
  }

  dispose(): void {
    for (const { start, end } of Object.values(this.spans)) {
      start.dispose();
      end.dispose();
    }
  }

  private time<T>(half: 'forward' | 'recompute', body: () => T): T {
    const { compute } = this.device;
    const start = new Event(this.device, true).record(compute);
    try {
      return body();
    } finally {
      this.spans[half] = { start, end: new Event(this.device, true).record(compute) };
    }
  }
}

/**
 * Times every segment. Numbers restart from 0 if no earlier segment waits for its replay. A segment
 * inside another segment's replay gets the next number, and the outer segment's time includes it.
 * The observer receives runs in the order of their ends, when a later segment opens or times() is
 * called.
 */
export class ProfilingWatch implements SegmentWatch {
  private alive = 0;
  private next = 0;
  private ended: TimedSegment[] = [];
  private disposed = false;
  private readonly totals = new Map<number, SegmentTimes>();

  constructor(private readonly observer: SegmentObserver | null) {}

  open(device: Device): WatchedSegment {
    this.report();
    if (this.alive++ === 0) this.next = 0;
    return new TimedSegment(device, this.next++, (segment) => {
      this.alive--;
      if (this.disposed) segment.dispose();
      else this.ended.push(segment);
    });
  }

  times(): SegmentTimes[] {
    this.report();
    return [...this.totals.values()]
      .sort((a, b) => a.segment - b.segment)
      .map((sum) => ({
        ...sum,
        forwardMs: sum.forwardMs / sum.runs,
        recomputeMs: sum.recomputeMs / sum.runs,
      }));
  }

  /** Reports the runs that the device has finished, and drops all others. */
  dispose(): void {
    this.report();
    this.disposed = true;
    for (const segment of this.ended.splice(0)) segment.dispose();
  }

  private report(): void {
    const firstUnfinished = this.ended.findIndex((segment) => !segment.isFinished);
    const finished = this.ended.splice(
      0,
      firstUnfinished < 0 ? this.ended.length : firstUnfinished,
    );
    for (const segment of finished) {
      const run: SegmentRun = {
        segment: segment.number,
        forwardMs: segment.milliseconds('forward'),
        recomputeMs: segment.milliseconds('recompute'),
      };
      segment.dispose();
      this.add(run);
      this.observer?.(run);
    }
  }

  private add({ segment, forwardMs, recomputeMs }: SegmentRun): void {
    const sum = this.totals.get(segment) ?? { segment, runs: 0, forwardMs: 0, recomputeMs: 0 };
    sum.runs++;
    sum.forwardMs += forwardMs;
    sum.recomputeMs += recomputeMs;
    this.totals.set(segment, sum);
  }
}
