// Answers the page's requests with JSON about the runs, by fixed routes with checked parameters.
import type { RunFolders } from './run-folders.js';
import type { RunIndex } from './run-index.js';
import type { Axis } from './track.js';

/** Thrown for a request with a wrong parameter. */
export class ParameterError extends Error {}

/** Maximum time in milliseconds that an answer waits for new bytes of the runs. */
const WAIT_MS = 150;
/** Milliseconds between two reads of the files. */
const READ_MS = 250;
const MAX_POINTS = 4000;

type Route = (parameters: URLSearchParams) => unknown;

/** The routes of the server. Files are read only on request. */
export class WatchApi {
  /** Functions by route. */
  readonly routes: ReadonlyMap<string, Route> = new Map<string, Route>([
    ['/api/runs', () => this.listRuns()],
    ['/api/run', (parameters) => this.describeRun(parameters)],
    ['/api/series', (parameters) => this.readSeries(parameters)],
    ['/api/events', (parameters) => this.readEvents(parameters)],
  ]);
  private readAt = Number.NEGATIVE_INFINITY;
  private reading: Promise<void> | null = null;

  constructor(private readonly folders: RunFolders) {}

  /** Reads new events. Waits at most WAIT_MS, for example for the first read of a large file. */
  private async refresh(): Promise<void> {
    if (!this.reading && performance.now() - this.readAt >= READ_MS) {
      this.reading = this.folders.update().finally(() => {
        this.reading = null;
        this.readAt = performance.now();
      });
    }
    if (!this.reading) return;
    let timer: NodeJS.Timeout | undefined;
    const timeout = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, WAIT_MS);
    });
    await Promise.race([this.reading, timeout]);
    clearTimeout(timer);
  }

  private async listRuns(): Promise<unknown> {
    await this.refresh();
    return { runs: this.folders.runs.map((run, id) => ({ id, ...run.summarize() })) };
  }

  private async describeRun(parameters: URLSearchParams): Promise<unknown> {
    await this.refresh();
    const run = this.requireRun(parameters);
    const { about = {}, config = null, name = '' } = run.lastStart ?? {};
    return {
      name,
      about,
      config,
      latest: run.latestValues(),
      ranks: run.averageRankTimes(),
      failure: run.failure,
    };
  }

  private async readSeries(parameters: URLSearchParams): Promise<unknown> {
    await this.refresh();
    const run = this.requireRun(parameters);
    const axis = parameters.get('axis') ?? 'step';
    if (axis !== 'step' && axis !== 'time') throw new ParameterError('axis: step or time');
    const width = readNumber(parameters, 'width') ?? 800;
    if (!Number.isInteger(width) || width < 1 || width > MAX_POINTS) {
      throw new ParameterError(`width: an integer from 1 to ${MAX_POINTS}`);
    }
    const [from, to] = [readNumber(parameters, 'from'), readNumber(parameters, 'to')];
    return run.readSeries({ axis: axis as Axis, from, to }, width);
  }

  private async readEvents(parameters: URLSearchParams): Promise<unknown> {
    await this.refresh();
    const run = this.requireRun(parameters);
    const from = (name: string): number => readNumber(parameters, name) ?? 0;
    return {
      texts: run.listFrom('texts', from('texts')),
      lines: run.listFrom('lines', from('lines')),
      notices: run.listFrom('notices', from('notices')),
    };
  }

  private requireRun(parameters: URLSearchParams): RunIndex {
    const id = parameters.get('run') ?? '';
    const run = /^\d{1,4}$/.test(id) ? this.folders.runs[Number(id)] : undefined;
    if (!run) throw new ParameterError('run: the number of a run');
    return run;
  }
}

/** Returns a parameter as a finite number; undefined if it is missing. */
function readNumber(parameters: URLSearchParams, name: string): number | undefined {
  const text = parameters.get(name);
  if (text === null) return undefined;
  const value = Number(text);
  if (text.trim() !== '' && Number.isFinite(value)) return value;
  throw new ParameterError(`${name}: a number`);
}
