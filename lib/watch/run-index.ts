// The index of one run: decimated tracks, and the last texts, log lines and notices.

import { hostname } from 'node:os';
import { required } from '../runtime/required.js';
import { errorCode, errorMessage } from '../runtime/system-error.js';

import {
  decode,
  eventsFile,
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

/** Events of a kind that stay in memory. */
const MAX = { texts: 400, lines: 2000, notices: 400 };
/** Rows in the mean of a rank's times. */
const RANK_ROWS = 20;
/** Bytes of the file that one query reads at most for exact rows. */
const MAX_BYTES = 16 * 2 ** 20;
/** Buckets of a track of exact rows. */
const EXACT_ROWS = 262_144;

/** "running", "ended" in order, or "stopped" without an end: killed, or on another machine. */
type RunState = 'running' | 'ended' | 'stopped';

/** A line or notice with its number; numbers rise by one. */
type Numbered<Event> = Event & { number: number };

/** What the page shows in the list of runs. */
interface RunSummary {
  name: string;
  state: RunState;
  /** Why an ended run ended. */
  reason: string;
  step: number;
  /** Steps of the whole run; null if unknown. */
  steps: number | null;
  /** Milliseconds since 1970. */
  began: number;
  changed: number;
  /** Rises with every change. */
  version: number;
  /** Share of the file that is read, from 0 to 1. */
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
  private tracks = newTracks();
  private starts: StartEvent[] = [];
  private startCount = 0;
  private texts: Numbered<TextEvent>[] = [];
  private lines: Numbered<LogEvent>[] = [];
  private notices: Numbered<NoticeEvent>[] = [];
  private readonly counts = { texts: 0, lines: 0, notices: 0 };
  private rankRows: { step: number; busy: readonly number[] }[] = [];
  private steps: number | null = null;
  private end: string | null = null;
  private began = 0;
  private changed = 0;
  private version = 0;
  private updating: Promise<void> | null = null;
  /** Message of the last failed read; null after a successful one. */
  failure: string | null = null;

  constructor(
    readonly dir: string,
    /** Name of the folder as the user wrote it. */
    readonly name: string,
  ) {
    this.file = new GrowingFile(eventsFile(dir));
  }

  /** Reads what was appended. Concurrent calls share one read. A failure is in `failure`. */
  update(): Promise<void> {
    this.updating ??= this.read().finally(() => {
      this.updating = null;
    });
    return this.updating;
  }

  private async read(): Promise<void> {
    try {
      const onLine = (line: string, offset: number): void => {
        const event = decode(line);
        if (event) this.apply(event, offset);
      };
      const isNew = await this.file.update(onLine, () => this.restart());
      if (isNew) this.version++;
      this.failure = null;
    } catch (error) {
      this.failure = errorMessage(error);
    }
  }

  summary(): RunSummary {
    const { file, name, counts, began, changed, version, steps } = this;
    const { size, read } = file;
    return {
      name,
      state: this.state(),
      reason: this.end ?? '',
      step: Math.max(0, ...TRACKS.map((name) => this.tracks[name].last)),
      steps,
      began,
      changed,
      version,
      ...counts,
      read: size === 0 ? 1 : Math.min(1, (read + 1) / size),
      starts: this.startCount,
    };
  }

  /** Facts and configuration of the last start; null before it. */
  get start(): StartEvent | null {
    return this.starts.at(-1) ?? null;
  }

  /** The last value of each column, by track. */
  latest(): Record<TrackName, Record<string, number>> {
    const all = TRACKS.map((name) => [name, this.tracks[name].latest()]);
    return Object.fromEntries(all) as Record<TrackName, Record<string, number>>;
  }

  ranks(): RankTimes | null {
    const last = this.rankRows.at(-1);
    if (!last) return null;
    const rows = this.rankRows.filter(({ busy }) => busy.length === last.busy.length);
    const mean = (rank: number): number =>
      rows.reduce((sum, { busy }) => sum + required(busy[rank]), 0) / rows.length;
    return { step: last.step, busy: last.busy.map((_, rank) => mean(rank)) };
  }

  /** Texts, lines or notices with a number of at least `from`. */
  recent(kind: 'texts' | 'lines' | 'notices', from: number): readonly Numbered<RunEvent>[] {
    return this[kind].filter(({ number }) => number >= from);
  }

  /**
   * Returns about `width` points of each track in a range. A narrow range of a long run is read
   * from the file, so that every row is there.
   */
  async series(range: Range, width: number): Promise<Record<TrackName, DecimatedPoints>> {
    const found = {} as Record<TrackName, DecimatedPoints>;
    for (const name of TRACKS) {
      const track = this.tracks[name];
      const rough = track.decimated(range, width);
      const isCoarse = track.rowsPerBucket > 1 && rough.rows === track.rowsPerBucket;
      found[name] = isCoarse ? ((await this.exact(name, range, width)) ?? rough) : rough;
    }
    return found;
  }

  /** Reads the rows of a range from the file; null if they are too many. */
  private async exact(
    name: TrackName,
    range: Range,
    width: number,
  ): Promise<DecimatedPoints | null> {
    const part = this.tracks[name].bytesOf(range, this.file.read);
    if (!part || part.end - part.begin > MAX_BYTES) return null;
    const rows = new Track(EXACT_ROWS);
    try {
      await this.file.again(part, (line) => {
        const event = decode(line);
        if (event?.e !== 'row' || event.track !== name) return;
        rows.add(event.step, event.time, event.values);
      });
    } catch {
      return null; // The file is gone; the index still answers.
    }
    return rows.buckets > 0 ? rows.decimated(range, width) : null;
  }

  private apply(event: RunEvent, offset: number): void {
    this.began ||= event.time;
    this.changed = Math.max(this.changed, event.time);
    switch (event.e) {
      case 'row':
        this.tracks[event.track].add(event.step, event.time, event.values, offset);
        if (event.track === 'train') this.end = null; // The program trains again.
        break;
      case 'ranks':
        if (event.step <= (this.rankRows.at(-1)?.step ?? -1)) this.rankRows = [];
        this.rankRows = [...this.rankRows.slice(1 - RANK_ROWS), event];
        break;
      case 'start':
        this.starts = [event];
        this.startCount++;
        this.end = null;
        break;
      case 'length':
        this.steps = event.steps;
        break;
      case 'text':
        this.texts = this.append('texts', this.texts, event);
        break;
      case 'log':
        this.lines = this.append('lines', this.lines, event);
        break;
      case 'notice':
        this.notices = this.append('notices', this.notices, event);
        break;
      case 'end':
        this.end = event.reason;
    }
  }

  private append<Event>(
    kind: keyof typeof MAX,
    list: Numbered<Event>[],
    event: Event,
  ): Numbered<Event>[] {
    list.push({ ...event, number: this.counts[kind]++ });
    return list.length > 2 * MAX[kind] ? list.slice(-MAX[kind]) : list;
  }

  private restart(): void {
    this.tracks = newTracks();
    [this.starts, this.texts, this.lines, this.notices, this.rankRows] = [[], [], [], [], []];
    Object.assign(this.counts, { texts: 0, lines: 0, notices: 0 });
    [this.startCount, this.began, this.changed] = [0, 0, 0];
    [this.steps, this.end] = [null, null];
    this.version++;
  }

  private state(): RunState {
    if (this.end !== null) return 'ended';
    const { pid, host } = this.starts.at(-1) ?? { pid: 0, host: '' };
    if (pid > 0 && host === hostname()) return isAlive(pid) ? 'running' : 'stopped';
    return Date.now() - this.changed < SILENCE_MS ? 'running' : 'stopped';
  }
}

/** A run of another machine without news for so long counts as stopped. */
const SILENCE_MS = 10 * 60_000;

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0); // Signal 0 only asks.
    return true;
  } catch (error) {
    return errorCode(error) === 'EPERM';
  }
}

const newTracks = (): Record<TrackName, Track> =>
  Object.fromEntries(TRACKS.map((name) => [name, new Track()])) as Record<TrackName, Track>;
