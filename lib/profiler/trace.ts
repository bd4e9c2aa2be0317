// Records what streams, threads and disks do from begin() to end(), by events that nobody waits for
// meanwhile.
import { DsError } from '../errors.js';
import { type Device, threads } from '../runtime/device.js';
import { Event, type Stream, type StreamHome } from '../runtime/stream.js';
import {
  recordsOnly,
  type StreamWork,
  type ThreadWork,
  type WorkWatcher,
  watchWork,
} from '../runtime/watched-work.js';
import { apart, inTurn, type TraceFile, type TraceSpan, traceEvents } from './trace-events.js';

/** Nanoseconds; the addon's threads read the same clock. */
const now = (): number => Number(process.hrtime.bigint());

/** Shorter waits are calls that found nothing to wait for. */
const SHORTEST_WAIT = 20_000;

/** A point that a device has passed, or will. */
interface Mark {
  event: Event;
  /** Nanoseconds of this process's clock, where it is known. */
  at: number | null;
}

/** The clock of one device's events beside that of this process. */
class DeviceClock {
  private readonly marks: Mark[] = [];

  /** Waits for the compute stream, so that the first mark is passed as soon as it is recorded. */
  constructor(private readonly home: StreamHome) {
    home.compute.synchronize();
    const before = now();
    const event = new Event(home, true).record(home.compute);
    event.synchronize();
    this.marks.push({ event, at: (before + now()) / 2 });
  }

  /**
   * Later times are counted from here: a device gives differences in f32, which are exact to 0.1
   * microseconds within a second and to 4 within a minute.
   */
  mark(): void {
    this.marks.push({ event: new Event(this.home, true).record(this.home.compute), at: null });
  }

  /** What time() wants to know of an event that is recorded now. */
  get newest(): number {
    return this.marks.length - 1;
  }

  /** When the device passed `event`, which it has, recorded after mark number `mark`. */
  time(event: Event, mark: number): number {
    const from = this.marks[mark] as Mark;
    if (from.at === null) {
      const before = this.marks[mark - 1] as Mark;
      from.at = this.time(before.event, mark - 1) + 1e6 * from.event.since(before.event);
    }
    return from.at + 1e6 * event.since(from.event);
  }

  dispose(): void {
    for (const { event } of this.marks) event.dispose();
  }
}

type Described = Omit<TraceSpan, 'start' | 'end'>;

/** Between two events of a stream. */
interface Between {
  span: Described;
  clock: DeviceClock;
  mark: number;
  start: Event;
  end: Event;
}

/** A trace that has begun. */
interface Running {
  stop: () => ThreadWork[];
  device: DeviceClock;
  clocks: Map<number, DeviceClock>;
  /** By the streams' handles. */
  lanes: Map<number, string>;
  /** Of the host. To ask while they are at work is to wait for them. */
  threads: number;
}

/** Whose trace it is. */
export interface TraceOptions {
  /** Of several ranks; their files can be joined. Default: 0. */
  rank?: number;
}

/**
 * What runs on the streams of all devices, on host threads in their order, between ranks and with
 * disks, and what this thread does and waits for. An event is recorded before and after each piece
 * of work; nothing waits for one before end(). Outside of begin() and end() it costs nothing.
 */
export class Trace implements WorkWatcher {
  private running: Running | null = null;
  private readonly onStreams: Between[] = [];
  private readonly onThisThread: TraceSpan[] = [];
  private readonly rank: number;

  constructor(
    private readonly device: Device,
    { rank = 0 }: TraceOptions = {},
  ) {
    this.rank = rank;
  }

  /** Waits for the device, once. Throws DS_ARGUMENT while another trace runs in this thread. */
  begin(): void {
    const stop = watchWork(this);
    const clock = orElse(stop, () => new DeviceClock(this.device));
    const clocks = new Map([[this.device.number, clock]]);
    this.running = { stop, device: clock, clocks, lanes: new Map(), threads: threads() };
    // Waiting for the clock is none of the run's waits.
    this.onThisThread.length = 0;
  }

  private get begun(): Running {
    if (this.running) return this.running;
    const expected = 'a trace that has begun';
    throw new DsError({ code: 'DS_ARGUMENT', op: 'trace', expected, got: 'one before begin()' });
  }

  /**
   * Opens a span of this thread and one of the device's compute stream, which lie inside those open
   * already; the function returned closes both, by another name where it is given one. What begins
   * or ends while a graph is recorded has the first alone: the device runs nothing then. Throws
   * DS_ARGUMENT before begin().
   */
  open(called: string, category: 'step' | 'phase'): (name?: string) => void {
    const { device } = this.begun;
    if (category === 'step' && !recordsOnly()) device.mark();
    const began = now();
    const start = this.point();
    const mark = device.newest;
    return (name = called) => {
      const end = this.point();
      const span = { process: 'device', lane: 'phases', name, category } as const;
      if (start && end) this.onStreams.push({ span, clock: device, mark, start, end });
      else for (const event of [start, end]) event?.dispose();
      this.add({ name, category, start: began, end: now() });
    };
  }

  /** Where the compute stream is now; null while it is only recorded. */
  private point(): Event | null {
    return recordsOnly() ? null : new Event(this.device, true).record(this.device.compute);
  }

  enqueued({ name, by, stream, bytes }: StreamWork, enqueue: () => void): void {
    const clock = this.clockOf(stream.device);
    const start = new Event(stream.device, true).record(stream);
    try {
      enqueue();
    } finally {
      const end = new Event(stream.device, true).record(stream);
      const span: Described = {
        process: by === 'host' ? 'host threads' : 'device',
        lane: this.laneOf(stream),
        name,
        category: bytes === null ? 'op' : 'copy',
        ...(bytes !== null && { details: { bytes } }),
        ...(by === 'host' && { details: { threads: this.begun.threads } }),
      };
      this.onStreams.push({ span, clock, mark: clock.newest, start, end });
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
   * Waits for the device and gives what was recorded. Another begin() may follow. Throws
   * DS_ARGUMENT before the first, and what the device has failed with: the trace is over then too.
   */
  end(): TraceFile {
    const { clocks } = this.begun;
    try {
      const beside = this.stopped();
      const streams = inTurnByLane(this.onStreams.map((one) => this.spanOf(one)));
      const spans = [...this.onThisThread, ...streams, ...apart(beside.map(spanBeside))];
      return {
        traceEvents: traceEvents(spans, this.rank),
        displayTimeUnit: 'ms',
        otherData: { device: `${this.device} (${this.device.info.name})`, rank: this.rank },
      };
    } finally {
      for (const { start, end } of this.onStreams)
        for (const event of [start, end]) event.dispose();
      for (const clock of clocks.values()) clock.dispose();
      this.onStreams.length = 0;
      this.onThisThread.length = 0;
    }
  }

  /** What threads have done beside the streams, once the device is through; nothing more comes. */
  private stopped(): ThreadWork[] {
    const { stop } = this.begun;
    try {
      orElse(stop, () => this.device.synchronize());
      return stop();
    } finally {
      this.running = null;
    }
  }

  private add(span: Omit<TraceSpan, 'process' | 'lane'>): void {
    this.onThisThread.push({ process: 'JavaScript', lane: 'training thread', ...span });
  }

  private spanOf({ span, clock, mark, start, end }: Between): TraceSpan {
    return { ...span, start: clock.time(start, mark), end: clock.time(end, mark) };
  }

  /** Of a device that nobody has asked for yet, it waits for the compute stream once. */
  private clockOf(home: StreamHome): DeviceClock {
    const { clocks } = this.begun;
    let clock = clocks.get(home.number);
    if (!clock) {
      clock = new DeviceClock(home);
      clocks.set(home.number, clock);
    }
    return clock;
  }

  /** The stream's name; two of one name are two lanes. */
  private laneOf({ handle, name, device }: Stream): string {
    const { lanes } = this.begun;
    const found = lanes.get(handle);
    if (found) return found;
    const own = device.number === this.device.number ? name : `${device.name}: ${name}`;
    const alike = [...lanes.values()].filter((lane) => lane.replace(/ \d+$/, '') === own).length;
    const lane = alike === 0 ? own : `${own} ${alike + 1}`;
    lanes.set(handle, lane);
    return lane;
  }
}

/** What `body` gives; where it throws, nobody watches any more. */
function orElse<T>(stop: () => unknown, body: () => T): T {
  try {
    return body();
  } catch (error) {
    stop();
    throw error;
  }
}

/** Phases lie inside steps; steps, and what is enqueued on a stream, do not overlap. */
function inTurnByLane(spans: readonly TraceSpan[]): TraceSpan[] {
  const isPhase = ({ category }: TraceSpan): boolean => category === 'phase';
  return [...spans.filter(isPhase), ...inTurn(spans.filter((span) => !isPhase(span)))];
}

function spanBeside({ kind, name, bytes, began: start, ended: end }: ThreadWork): TraceSpan {
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
