// Indexes one run: decimated tracks, and the last texts, log lines and notices.

import { hostname } from 'node:os';
import { required } from '../runtime/required.js';
import { errorCode, errorMessage } from '../runtime/system-error.js';

import {
  decodeEvent,
  eventsPath,
  type LogEvent,
  type NoticeEvent,
  type RunEvent,
  type StartEvent,
  type TextEvent,
  TRACKS,
  type TrackName,
} from './events.js';
import { GrowingFile } from './line-reader.js';
import { type DecimatedPoints, type Range, Track } from './track.js';

/** Numbers of events that stay in memory, by kind. */
const MAX_KEPT = { texts: 400, lines: 2000, notices: 400 };
/** Number of rows in the mean of a rank's times. */
const RANK_ROWS = 20;
/** Maximum number of bytes that one query reads from the file for exact rows. */
const MAX_QUERY_BYTES = 16 * 2 ** 20;
/** Maximum number of buckets of a track of exact rows. */
const EXACT_ROWS = 262_144;

/**
 * "running"; "ended" normally; or "stopped" without an end event: killed, or on another machine.
 */
type RunState = 'running' | 'ended' | 'stopped';

/** An event with its number; numbers are consecutive. */
type Numbered<Event> = Event & { number: number };

/** An entry in the page's list of runs. */
interface RunSummary {
  name: string;
  state: RunState;
  /** Reason of the end, or "". */
  reason: string;
  step: number;
  /** Number of steps of the whole run; null if unknown. */
  steps: number | null;
  /** Times of the first and the last event, in milliseconds since 1970. */
  began: number;
  changed: number;
  /** Increases with every change. */
  version: number;
  /** Fraction of the file that has been read, from 0 to 1. */
  read: number;
  starts: number;
  texts: number;
  lines: number;
  notices: number;
}

interface RankTimes {
  step: number;
  /** Mean busy milliseconds of each rank in the last rows. */
  busy: number[];
}

/** Follows the file of one run. Memory is bounded for any length of the file. */
export class RunIndex {
  private readonly file: GrowingFile;
  private tracks = createTracks();
  private starts: StartEvent[] = [];
  private startCount = 0;
  private texts: Numbered<TextEvent>[] = [];
  private lines: Numbered<LogEvent>[] = [];
  private notices: Numbered<NoticeEvent>[] = [];
  private readonly counts = { texts: 0, lines: 0, notices: 0 };
  private rankRows: { step: number; busy: readonly number[] }[] = [];
  private steps: number | null = null;
  private endReason: string | null = null;
  private began = 0;
  private changed = 0;
  private version = 0;
  private updating: Promise<void> | null = null;
  /** Message of the last read if it failed; null after a successful read. */
  failure: string | null = null;

  constructor(
    readonly dir: string,
    /** Name of the folder as the user wrote it. */
    readonly name: string,
  ) {
    this.file = new GrowingFile(eventsPath(dir));
  }

  /** Reads new events. Concurrent calls share one read. A failed read sets `failure`. */
  update(): Promise<void> {
    this.updating ??= this.readEvents().finally(() => {
      this.updating = null;
    });
    return this.updating;
  }

  private async readEvents(): Promise<void> {
    try {
      const onLine = (line: string, offset: number): void => {
        const event = decodeEvent(line);
        if (event) this.apply(event, offset);
      };
      const isNew = await this.file.update(onLine, () => this.clear());
      if (isNew) this.version++;
      this.failure = null;
    } catch (error) {
      this.failure = errorMessage(error);
    }
  }

  summarize(): RunSummary {
    const { file, name, counts, began, changed, version, steps } = this;
    const { size, bytesRead } = file;
    return {
      name,
      state: this.findState(),
      reason: this.endReason ?? '',
      step: Math.max(0, ...TRACKS.map((name) => this.tracks[name].lastRowStep)),
      steps,
      began,
      changed,
      version,
      ...counts,
      read: size === 0 ? 1 : Math.min(1, (bytesRead + 1) / size),
      starts: this.startCount,
    };
  }

  /** The last start event, with facts and configuration; null if there is none. */
  get lastStart(): StartEvent | null {
    return this.starts.at(-1) ?? null;
  }

  /** Returns the last value of each column, by track. */
  latestValues(): Record<TrackName, Record<string, number>> {
    const all = TRACKS.map((name) => [name, this.tracks[name].latestValues()]);
    return Object.fromEntries(all) as Record<TrackName, Record<string, number>>;
  }

  averageRankTimes(): RankTimes | null {
    const last = this.rankRows.at(-1);
    if (!last) return null;
    const rows = this.rankRows.filter(({ busy }) => busy.length === last.busy.length);
    const mean = (rank: number): number =>
      rows.reduce((sum, { busy }) => sum + required(busy[rank]), 0) / rows.length;
    return { step: last.step, busy: last.busy.map((_, rank) => mean(rank)) };
  }

  /** Returns the texts, lines or notices from number `from` on. */
  listFrom(kind: 'texts' | 'lines' | 'notices', from: number): readonly Numbered<RunEvent>[] {
    return this[kind].filter(({ number }) => number >= from);
  }

  /**
   * Returns about `width` points of each track in a range. A narrow range of a long run is read
   * from the file, so that it includes every row.
   */
  async readSeries(range: Range, width: number): Promise<Record<TrackName, DecimatedPoints>> {
    const points = {} as Record<TrackName, DecimatedPoints>;
    for (const name of TRACKS) {
      const track = this.tracks[name];
      const rough = track.decimate(range, width);
      const isCoarse = track.rowsPerBucket > 1 && rough.rows === track.rowsPerBucket;
      points[name] = isCoarse ? ((await this.readExact(name, range, width)) ?? rough) : rough;
    }
    return points;
  }

  /** Reads the rows of a range from the file; returns null if there are too many. */
  private async readExact(
    name: TrackName,
    range: Range,
    width: number,
  ): Promise<DecimatedPoints | null> {
    const part = this.tracks[name].findBytes(range, this.file.bytesRead);
    if (!part || part.end - part.begin > MAX_QUERY_BYTES) return null;
    const rows = new Track(EXACT_ROWS);
    try {
      await this.file.readAgain(part, (line) => {
        const event = decodeEvent(line);
        if (event?.e !== 'row' || event.track !== name) return;
        rows.add(event.step, event.time, event.values);
      });
    } catch {
      return null; // The file was removed; the index can still answer.
    }
    return rows.bucketCount > 0 ? rows.decimate(range, width) : null;
  }

  private apply(event: RunEvent, offset: number): void {
    this.began ||= event.time;
    this.changed = Math.max(this.changed, event.time);
    switch (event.e) {
      case 'row':
        this.tracks[event.track].add(event.step, event.time, event.values, offset);
        if (event.track === 'train') this.endReason = null; // The program trains again.
        break;
      case 'ranks':
        if (event.step <= (this.rankRows.at(-1)?.step ?? -1)) this.rankRows = [];
        this.rankRows = [...this.rankRows.slice(1 - RANK_ROWS), event];
        break;
      case 'start':
        this.starts = [event];
        this.startCount++;
        this.endReason = null;
        break;
      case 'length':
        this.steps = event.steps;
        break;
      case 'text':
        this.texts = this.appendNumbered('texts', this.texts, event);
        break;
      case 'log':
        this.lines = this.appendNumbered('lines', this.lines, event);
        break;
      case 'notice':
        this.notices = this.appendNumbered('notices', this.notices, event);
        break;
      case 'end':
        this.endReason = event.reason;
    }
  }

  private appendNumbered<Event>(
    kind: keyof typeof MAX_KEPT,
    list: Numbered<Event>[],
    event: Event,
  ): Numbered<Event>[] {
    list.push({ ...event, number: this.counts[kind]++ });
    return list.length > 2 * MAX_KEPT[kind] ? list.slice(-MAX_KEPT[kind]) : list;
  }

  private clear(): void {
    this.tracks = createTracks();
    [this.starts, this.texts, this.lines, this.notices, this.rankRows] = [[], [], [], [], []];
    Object.assign(this.counts, { texts: 0, lines: 0, notices: 0 });
    [this.startCount, this.began, this.changed] = [0, 0, 0];
    [this.steps, this.endReason] = [null, null];
    this.version++;
  }

  private findState(): RunState {
    if (this.endReason !== null) return 'ended';
    const { pid, host } = this.starts.at(-1) ?? { pid: 0, host: '' };
    if (pid > 0 && host === hostname()) return isAlive(pid) ? 'running' : 'stopped';
    return Date.now() - this.changed < SILENCE_MS ? 'running' : 'stopped';
  }
}

/** Milliseconds after which a silent run of another machine counts as stopped. */
const SILENCE_MS = 10 * 60_000;

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0); // Signal 0 only tests whether the process exists.
    return true;
  } catch (error) {
    return errorCode(error) === 'EPERM';
  }
}

const createTracks = (): Record<TrackName, Track> =>
  Object.fromEntries(TRACKS.map((name) => [name, new Track()])) as Record<TrackName, Track>;
