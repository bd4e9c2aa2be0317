// engine.watch(): records a run, and serves a local page that shows it.
import { hostname } from 'node:os';
import { join } from 'node:path';

import type { JsonValue } from '../../../types/json.js';
import type { Device } from '../../runtime/device.js';
import { valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireOneOf, requireType } from '../../runtime/require-type.js';
import { absolutePath } from '../../runtime/system-error.js';
import { version } from '../../version.js';
import { EventLog, NOTICE_LEVELS, type NoticeLevel, ServedPage } from '../../watch/index.js';
import type { EngineCore } from '../engine-parts.js';
import { RunRecorder } from './run-recorder.js';

/** Options of engine.watch(). */
export interface WatchOptions {
  /**
   * Folder of the run. The log is appended to DIR/watch/events.jsonl. Use one folder per run, and
   * the same folder when you resume it. Default: runs/DATE_TIME.
   */
  dir?: string;
  /**
   * Port of the page. 0: a free port. null: no page; `ds watch DIR` can show the run later.
   * Default: 6006, or a free port if 6006 is in use.
   */
  port?: number | null;
  /** Address to listen on. Default: 127.0.0.1, which only this machine can reach. */
  host?: string;
  /** Name of the run. Default: none. */
  name?: string;
}

/** Default port of the page, the same as TensorBoard's. */
const USUAL_PORT = 6006;

type WatchedEngine = EngineCore;

/**
 * Records a run for the watch page. engine.watch() creates it. On ranks other than 0, `url` is null
 * and the methods do nothing.
 */
export class RunWatch {
  private closing: Promise<void> | null = null;

  /** @internal */
  constructor(
    /** Folder of the run, for `ds watch DIR`. */
    readonly dir: string,
    /** Address of the page with its token. Null without a page. */
    readonly url: string | null,
    private readonly parts: WatchParts | null,
  ) {}

  /** Records numbers at the current step. Each name becomes a chart. */
  scalars(values: Readonly<Record<string, number>>): void {
    this.row('own', values);
  }

  /**
   * Records metrics of an evaluation at the current step. "loss" appears in the chart of losses.
   */
  evaluated(metrics: Readonly<Record<string, number>>): void {
    this.row('eval', metrics);
  }

  /** Records a generated text at the current step. */
  text({ prompt = '', text }: { prompt?: string; text: string }): void {
    requireType('watch.text text', text, 'string');
    this.parts?.log.write({ e: 'text', step: this.parts.step(), prompt, text });
  }

  /** Records a line of the run's log. */
  log(line: string): void {
    requireType('watch.log', line, 'string');
    this.parts?.log.write({ e: 'log', line });
  }

  /** Records a message that needs attention. Default level: "info". */
  notice(message: string, level: NoticeLevel = 'info'): void {
    requireOneOf('watch.notice level', level, NOTICE_LEVELS);
    requireType('watch.notice', message, 'string');
    this.parts?.log.write({ e: 'notice', level, message, step: this.parts.step() });
  }

  /** @internal Records speed in tokens and MFU at `step`. */
  speed(step: number, values: Readonly<Record<string, number>>): void {
    this.parts?.log.write({ e: 'row', track: 'speed', step, values });
  }

  /** @internal Records the number of updates in the whole run. */
  length(steps: number): void {
    if (Number.isSafeInteger(steps)) this.parts?.log.write({ e: 'length', steps });
  }

  /** @internal Excludes the time until the next step from step times. */
  pause(): void {
    this.parts?.recorder.pause();
  }

  /** @internal Records the end of the run. Later events are still recorded. */
  ended(reason: string): void {
    this.parts?.end(reason);
  }

  /** Resolves when all events so far are on disk. */
  async flush(): Promise<void> {
    await this.parts?.log.flush();
  }

  /** Ends the recording and the page. engine.destroy() calls it. */
  close(): Promise<void> {
    this.closing ??= Promise.resolve(this.parts?.close());
    return this.closing;
  }

  private row(track: 'own' | 'eval', values: Readonly<Record<string, number>>): void {
    for (const [name, value] of Object.entries(values)) {
      if (typeof value === 'number') continue;
      throw valueError(`watch ${name}`, 'a number', value);
    }
    this.parts?.log.write({ e: 'row', track, step: this.parts.step(), values });
  }
}

interface WatchParts {
  log: EventLog;
  recorder: RunRecorder;
  step(): number;
  end(reason: string): void;
  close(): Promise<void> | undefined;
}

/**
 * Records a run in a folder, and serves a local page until close(), or until the end of the engine
 * or the process. Rank 0 records and serves; other ranks send it their step times. Rejects with
 * DS_ARGUMENT, and with DS_IO if the folder is not writable or the port is not free.
 */
export async function watchRun(engine: WatchedEngine, given: WatchOptions): Promise<RunWatch> {
  const options = readOptions('engine.watch', given, namesOf.WatchOptions);
  const { port, host, name = '' } = options;
  const dir = absolutePath(requireType('engine.watch dir', options.dir ?? newFolder(), 'string'));
  requireType('engine.watch name', name, 'string');
  if (host !== undefined) requireType('engine.watch host', host, 'string');
  requirePort(port);
  const { watch, stepDecisions, stage, state } = engine.parts;
  watch.share(engine.device);
  if (engine.globalRank !== 0) return new RunWatch(dir, null, null);
  const log = new EventLog(dir);
  const page = port === null ? null : await servePage(log, { dir, port, host });
  log.write({ e: 'start', name, ...describeEngine(engine), pid: process.pid, host: hostname() });
  const owners = { device: engine.device, stage, state };
  const recorder = new RunRecorder(log, owners, engine.config.fp16.enabled);
  const remove = watch.add(recorder);
  const onWarning = (warning: Error): void => {
    const level = warning.name === 'DsNotice' ? 'info' : 'warning';
    log.write({ e: 'notice', level, message: warning.message, step: engine.globalSteps });
  };
  process.on('warning', onWarning);
  let endedAt: number | null = null;
  const end = (reason: string): void => {
    endedAt = engine.globalSteps;
    log.write({ e: 'end', reason });
  };
  const close = (): Promise<void> | undefined => {
    try {
      stepDecisions.takeLast();
      watch.reportTimes();
    } catch {
      // The last step failed. The caller of the engine has the error.
    }
    recorder.finish();
    process.off('warning', onWarning);
    remove();
    if (endedAt !== engine.globalSteps) end('closed');
    log.close();
    return page?.close();
  };
  const step = (): number => engine.globalSteps;
  const run = new RunWatch(dir, page?.url ?? null, { log, recorder, step, end, close });
  // The engine reads its last step decision before it closes the observers.
  recorder.onClose = () => void run.close();
  return run;
}

async function servePage(
  log: EventLog,
  { dir, port, host }: { dir: string; port: number | undefined; host: string | undefined },
): Promise<ServedPage> {
  const start = (value: number): Promise<ServedPage> =>
    ServedPage.start({ dirs: [dir], port: value, host });
  try {
    if (port !== undefined) return await start(port);
    return await start(USUAL_PORT).catch(() => start(0));
  } catch (error) {
    log.close();
    throw error;
  }
}

function requirePort(port: unknown): void {
  const isPort = typeof port === 'number' && Number.isInteger(port) && port >= 0 && port < 65_536;
  if (port === undefined || port === null || isPort) return;
  throw valueError('engine.watch port', 'a port from 0 to 65535, or null', port);
}

/** Returns the path of a new folder, such as "runs/2026-11-28_16-05-09". */
function newFolder(): string {
  const now = new Date(Date.now() - new Date().getTimezoneOffset() * 60_000).toISOString();
  return join('runs', now.slice(0, 19).replace('T', '_').replaceAll(':', '-'));
}

function describeEngine(engine: WatchedEngine): {
  about: Record<string, JsonValue>;
  config: JsonValue;
} {
  const { module, device, worldSize, optimizer, config } = engine;
  const parameters = module.parameters().reduce((sum, { numel }) => sum + numel, 0);
  const about = {
    model: module.constructor.name,
    parameters,
    ranks: worldSize,
    device: device.name,
    processor: processorOf(device),
    optimizer: optimizer.constructor.name,
    version,
    node: process.version,
    host: hostname(),
  };
  return { about, config: config as unknown as JsonValue };
}

const processorOf = (device: Device): string => (device.kind === 'cpu' ? 'CPU' : device.info.name);
