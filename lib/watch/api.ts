// Answers of the server: JSON about the runs, by fixed routes and checked parameters.
import type { RunFolders } from './run-folders.js';
import type { RunIndex } from './run-index.js';
import type { Axis } from './track.js';

/** Thrown for a request with a wrong parameter. */
export class ParameterError extends Error {}

/** Milliseconds that an answer waits for new bytes of the runs. */
const WAIT_MS = 150;
/** Milliseconds between two reads of the files. */
const READ_MS = 250;
const MAX_POINTS = 4000;

type Answer = (parameters: URLSearchParams) => unknown;

/** Reads the files only when a page asks. */
export class WatchApi {
  /** Answers by route. */
  readonly routes: ReadonlyMap<string, Answer> = new Map<string, Answer>([
    ['/api/runs', () => this.list()],
    ['/api/run', (parameters) => this.about(parameters)],
    ['/api/series', (parameters) => this.series(parameters)],
    ['/api/events', (parameters) => this.events(parameters)],
  ]);
  private readAt = Number.NEGATIVE_INFINITY;
  private reading: Promise<void> | null = null;

  constructor(private readonly folders: RunFolders) {}

  /** Reads new events; does not wait long for a file that is read for the first time. */
  private async refresh(): Promise<void> {
    if (!this.reading && performance.now() - this.readAt >= READ_MS) {
      this.reading = this.folders.update().finally(() => {
        this.reading = null;
        this.readAt = performance.now();
      });
    }
    if (!this.reading) return;
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, WAIT_MS);
    });
    await Promise.race([this.reading, late]);
    clearTimeout(timer);
  }

  private async list(): Promise<unknown> {
    await this.refresh();
    return { runs: this.folders.runs.map((run, id) => ({ id, ...run.summary() })) };
  }

  private async about(parameters: URLSearchParams): Promise<unknown> {
    await this.refresh();
    const run = this.run(parameters);
    const { about = {}, config = null, name = '' } = run.start ?? {};
    return { name, about, config, latest: run.latest(), ranks: run.ranks(), failure: run.failure };
  }

  private async series(parameters: URLSearchParams): Promise<unknown> {
    await this.refresh();
    const run = this.run(parameters);
    const axis = parameters.get('axis') ?? 'step';
    if (axis !== 'step' && axis !== 'time') throw new ParameterError('axis: step or time');
    const width = numberIn(parameters, 'width') ?? 800;
    if (!Number.isInteger(width) || width < 1 || width > MAX_POINTS) {
      throw new ParameterError(`width: an integer from 1 to ${MAX_POINTS}`);
    }
    const [from, to] = [numberIn(parameters, 'from'), numberIn(parameters, 'to')];
    return run.series({ axis: axis as Axis, from, to }, width);
  }

  private async events(parameters: URLSearchParams): Promise<unknown> {
    await this.refresh();
    const run = this.run(parameters);
    const from = (name: string): number => numberIn(parameters, name) ?? 0;
    return {
      texts: run.recent('texts', from('texts')),
      lines: run.recent('lines', from('lines')),
      notices: run.recent('notices', from('notices')),
    };
  }

  private run(parameters: URLSearchParams): RunIndex {
    const id = parameters.get('run') ?? '';
    const run = /^\d{1,4}$/.test(id) ? this.folders.runs[Number(id)] : undefined;
    if (!run) throw new ParameterError('run: the number of a run');
    return run;
  }
}

/** A finite number; undefined without one. */
function numberIn(parameters: URLSearchParams, name: string): number | undefined {
  const text = parameters.get(name);
  if (text === null) return undefined;
  const value = Number(text);
  if (text.trim() !== '' && Number.isFinite(value)) return value;
  throw new ParameterError(`${name}: a number`);
}
