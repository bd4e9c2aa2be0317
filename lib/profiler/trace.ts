// Records the work of streams, threads and disks from begin() to end(), without synchronization.

import { DsError } from '../errors.js';
import { type Device, threads } from '../runtime/device.js';
import { required } from '../runtime/required.js';
import { Event, type Stream, type StreamDevice } from '../runtime/stream.js';
import {
  recordsOnly,
  type StreamWork,
  type ThreadWork,
  type WorkWatcher,
  watchWork,
} from '../runtime/watched-work.js';
import {
  createTraceEvents,
  removeOverlaps,
  spreadOverLanes,
  type TraceFile,
  type TraceSpan,
} from './trace-events.js';

/** Returns nanoseconds of the clock that the addon's threads use too. */
const now = (): number => Number(process.hrtime.bigint());

/** Minimum nanoseconds of a wait in the trace: the work of a shorter wait was already complete. */
const SHORTEST_WAIT = 20_000;

/** A recorded event of a device. */
interface ClockMark {
  event: Event;
  /** Nanoseconds of this process's clock, or null if unknown yet. */
  at: number | null;
}

/** Converts event times of one device to the clock of this process. */
class DeviceClock {
  private readonly marks: ClockMark[] = [];

  /** Waits for the compute stream, so that the device completes the first mark at a known time. */
  constructor(private readonly device: StreamDevice) {
    device.compute.synchronize();
    const before = now();
    const event = new Event(device, true).record(device.compute);
    event.synchronize();
    this.marks.push({ event, at: (before + now()) / 2 });
  }

  /**
   * Sets a new base for later times. Devices return differences in f32: exact to 0.1 microseconds
   * within a second, and to 4 microseconds within a minute.
   */
  mark(): void {
    this.marks.push({ event: new Event(this.device, true).record(this.device.compute), at: null });
  }

  /** The `mark` argument of time() for an event recorded now. */
  get newest(): number {
    return this.marks.length - 1;
  }

  /** Returns the time of a completed `event` that was recorded after mark `mark`. */
  time(event: Event, mark: number): number {
    const from = required(this.marks[mark]);
    if (from.at === null) {
      const before = required(this.marks[mark - 1]);
      from.at = this.time(before.event, mark - 1) + 1e6 * from.event.since(before.event);
    }
    return from.at + 1e6 * event.since(from.event);
  }

  dispose(): void {
    for (const { event } of this.marks) event.dispose();
  }
}

type SpanLabel = Omit<TraceSpan, 'start' | 'end'>;

/** Work between two events of a stream. */
interface StreamSpan {
  span: SpanLabel;
  clock: DeviceClock;
  mark: number;
  start: Event;
  end: Event;
}

/** The state between begin() and end(). */
interface TraceState {
  stop: () => ThreadWork[];
  device: DeviceClock;
  clocks: Map<number, DeviceClock>;
  /** Lanes by stream handle. */
  lanes: Map<number, string>;
  /** Number of host threads. begin() reads it, because a later read would wait for the threads. */
  threads: number;
}

/** Options of a Trace. */
export interface TraceOptions {
  /** This rank's number. Files of several ranks can be merged. Default: 0. */
  rank?: number;
}

/**
 * Traces all devices' streams, host threads, collectives, disks, and this thread's calls and waits.
 *
 * An event is recorded before and after each piece of work, without a wait before end(). There is
 * no overhead outside of begin() and end().
 */
export class Trace implements WorkWatcher {
  private running: TraceState | null = null;
  private readonly streamSpans: StreamSpan[] = [];
  private readonly threadSpans: TraceSpan[] = [];
  private readonly rank: number;

  /** Begins to record. `rank` names the process in the trace. */
  constructor(
    private readonly device: Device,
    { rank = 0 }: TraceOptions = {},
  ) {
    this.rank = rank;
  }

  /** Waits once for the device. Throws DS_ARGUMENT while another trace runs in this thread. */
  begin(): void {
    const stop = watchWork(this);
    const clock = stopOnError(stop, () => new DeviceClock(this.device));
    const clocks = new Map([[this.device.number, clock]]);
    this.running = { stop, device: clock, clocks, lanes: new Map(), threads: threads() };
    // Discards the wait of the device clock's first mark.
    this.threadSpans.length = 0;
  }

  private get state(): TraceState {
    if (this.running) return this.running;
    const expected = 'begin() before this call';
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'trace',
      expected,
      got: 'a trace without begin()',
    });
  }

  /**
   * Opens one span of this thread and one of the compute stream, inside the spans already open. The
   * returned function closes both, with a new name if given.
   *
   * A span that begins or ends during graph capture has no device part.
   *
   * Throws DS_ARGUMENT before begin().
   */
  open(defaultName: string, category: 'step' | 'phase'): (name?: string) => void {
    const { device } = this.state;
    if (category === 'step' && !recordsOnly()) device.mark();
    const began = now();
    const start = this.recordEvent();
    const mark = device.newest;
    return (name = defaultName) => {
      const end = this.recordEvent();
      const span = { process: 'device', lane: 'phases', name, category } as const;
      if (start && end) this.streamSpans.push({ span, clock: device, mark, start, end });
      else for (const event of [start, end]) event?.dispose();
      this.add({ name, category, start: began, end: now() });
    };
  }

  /** Records an event on the compute stream. Returns null during graph capture. */
  private recordEvent(): Event | null {
    return recordsOnly() ? null : new Event(this.device, true).record(this.device.compute);
  }

  enqueued({ name, by, stream, bytes }: StreamWork, enqueue: () => void): void {
    const clock = this.clockOf(stream.device);
    const start = new Event(stream.device, true).record(stream);
    try {
      enqueue();
    } finally {
      const end = new Event(stream.device, true).record(stream);
      const span: SpanLabel = {
        process: by === 'host' ? 'host threads' : 'device',
        lane: this.laneOf(stream),
        name,
        category: bytes === null ? 'op' : 'copy',
        ...(bytes !== null && { details: { bytes } }),
        ...(by === 'host' && { details: { threads: this.state.threads } }),
      };
      this.streamSpans.push({ span, clock, mark: clock.newest, start, end });
    }
  }

  waited<T>(what: string, wait: () => T): T {
    const start = now();
    try {
      return wait();
    } finally {
      const end = now();
      if (end - start >= SHORTEST_WAIT) this.add({ name: what, category: 'wait', start, end });
    }
  }

  /**
   * Waits for the device and returns the trace. Ends the trace even if it throws. A new begin() can
   * follow.
   *
   * Throws DS_ARGUMENT before begin(), and the device's errors.
   */
  end(): TraceFile {
    const { clocks } = this.state;
    try {
      const hostWork = this.stopRecording();
      const streams = orderStreamSpans(this.streamSpans.map((stream) => this.spanOf(stream)));
      const spans = [
        ...this.threadSpans,
        ...streams,
        ...spreadOverLanes(hostWork.map(toThreadSpan)),
      ];
      return {
        traceEvents: createTraceEvents(spans, this.rank),
        displayTimeUnit: 'ms',
        otherData: { device: `${this.device} (${this.device.info.name})`, rank: this.rank },
      };
    } finally {
      for (const { start, end } of this.streamSpans)
        for (const event of [start, end]) event.dispose();
      for (const clock of clocks.values()) clock.dispose();
      this.streamSpans.length = 0;
      this.threadSpans.length = 0;
    }
  }

  /** Waits for the device, ends the recording, and returns the work of other threads. */
  private stopRecording(): ThreadWork[] {
    const { stop } = this.state;
    try {
      stopOnError(stop, () => this.device.synchronize());
      return stop();
    } finally {
      this.running = null;
    }
  }

  private add(span: Omit<TraceSpan, 'process' | 'lane'>): void {
    this.threadSpans.push({ process: 'JavaScript', lane: 'training thread', ...span });
  }

  private spanOf({ span, clock, mark, start, end }: StreamSpan): TraceSpan {
    return { ...span, start: clock.time(start, mark), end: clock.time(end, mark) };
  }

  /** Waits for the compute stream at the first call for a device. */
  private clockOf(device: StreamDevice): DeviceClock {
    const { clocks } = this.state;
    let clock = clocks.get(device.number);
    if (!clock) {
      clock = new DeviceClock(device);
      clocks.set(device.number, clock);
    }
    return clock;
  }

  /** Returns the stream's name. Streams with equal names have separate lanes. */
  private laneOf({ handle, name, device }: Stream): string {
    const { lanes } = this.state;
    const existing = lanes.get(handle);
    if (existing) return existing;
    const label = device.number === this.device.number ? name : `${device.name}: ${name}`;
    const sameName = [...lanes.values()].filter(
      (lane) => lane.replace(/ \d+$/, '') === label,
    ).length;
    const lane = sameName === 0 ? label : `${label} ${sameName + 1}`;
    lanes.set(handle, lane);
    return lane;
  }
}

/** Returns the result of `body`. If it throws, stops the recording. */
function stopOnError<T>(stop: () => unknown, body: () => T): T {
  try {
    return body();
  } catch (error) {
    stop();
    throw error;
  }
}

/** Returns spans without overlaps of steps and enqueued work. Phases are nested in steps. */
function orderStreamSpans(spans: readonly TraceSpan[]): TraceSpan[] {
  const isPhase = ({ category }: TraceSpan): boolean => category === 'phase';
  return [...spans.filter(isPhase), ...removeOverlaps(spans.filter((span) => !isPhase(span)))];
}

function toThreadSpan({ kind, name, bytes, began: start, ended: end }: ThreadWork): TraceSpan {
  const isDisk = kind !== 'collective';
  return {
    process: isDisk ? 'disk' : 'collectives',
    lane: isDisk ? `${kind}s` : 'between ranks',
    name: isDisk ? kind : name,
    category: isDisk ? 'disk' : 'collective',
    start,
    end,
    details: { bytes },
  };
}
