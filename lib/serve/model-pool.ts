// Several models of one server, loaded on demand and unloaded when idle or when memory is short.
import { DsError } from '../errors.js';
import { argumentError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import { timerMs } from '../runtime/timer.js';
import { ApiError, noModelError, overloadedError } from './api-error.js';
import type { EngineStats, ServedEngine } from './served-engine.js';
import type { ServedModel } from './served-model.js';

/** A loaded model. */
export interface OpenedModel {
  readonly engine: ServedEngine;
  /** Bytes of weights and cache. */
  readonly bytes: number;
  /** Frees its memory. */
  close(): Promise<void>;
}

/** A model that a pool may load. */
export interface ModelSource {
  /** Estimated bytes. After the first load, the pool uses the measured bytes. */
  readonly bytes: number;
  open(): Promise<OpenedModel>;
}

/** Bounds of a pool. */
export interface PoolLimits {
  /** Bytes of all loaded models together. Default: no bound. */
  memory?: number;
  /** Seconds without a request after which a model is unloaded. Default: never. */
  idleSeconds?: number;
}

/** State of a model in /v1/models and /health. */
type ModelState = 'unloaded' | 'loading' | 'loaded' | 'unloading' | 'failed';

/** Keeps a model loaded while a request uses it. */
export interface Lease {
  readonly served: ServedModel;
  release(): void;
}

/** State of one model, for answers and metrics. */
export interface PooledModel {
  readonly name: string;
  readonly state: ModelState;
  /** Error of the last load; null if it succeeded. */
  readonly reason: string | null;
  /** Null unless the model is loaded. */
  readonly served: ServedModel | null;
  readonly bytes: number;
  readonly loads: number;
  readonly failures: number;
  readonly waiting: number;
}

interface Waiter {
  grant(lease: Lease): void;
  refuse(error: unknown): void;
}

/** Milliseconds after a failed load in which requests get the same error without a retry. */
const RETRY_MS = 10_000;
/** Maximum milliseconds between two checks for idle models. */
const CHECK_MS = 5000;

/** A model and its state. The pool changes it; other files see a PooledModel. */
class PoolEntry implements PooledModel {
  state: ModelState = 'unloaded';
  reason: string | null = null;
  served: ServedModel | null = null;
  opened: OpenedModel | null = null;
  bytes: number;
  loads = 0;
  failures = 0;
  failedAt = -RETRY_MS;
  /** Number of requests that use the model. */
  users = 0;
  /** Time of the last use by a request. */
  usedAt = 0;
  /** The model takes no more requests, because another model needs its memory. */
  isLeaving = false;
  /** A load is queued or running. */
  isQueued = false;
  readonly waiters = new Set<Waiter>();

  constructor(
    readonly name: string,
    readonly source: ModelSource,
  ) {
    this.bytes = source.bytes;
  }

  get waiting(): number {
    return this.waiters.size;
  }
}

/** Thrown if all requests that waited for a load have left. */
class NoWaiterError extends Error {}

/**
 * Models by name. One load runs at a time, in the order of the first requests. If a load needs more
 * memory, it first unloads the least recently used models. If all models are in use, it stops new
 * requests to the least recently used model and waits until its running requests end. The pool owns
 * its models.
 */
export class ModelPool {
  private readonly entries: readonly PoolEntry[];
  private readonly memory: number;
  private readonly idleMs: number;
  /** The last load or unload. Loads and unloads run one at a time, so the next waits for it. */
  private changing: Promise<void> = Promise.resolve();
  private readonly changes: (() => void)[] = [];
  private readonly timer: NodeJS.Timeout | null;
  private isClosed = false;
  private serve: (engine: ServedEngine, name: string) => ServedModel = () => {
    throw new DsError({ code: 'DS_INTERNAL', op: 'ModelPool', expected: 'bind()', got: 'none' });
  };
  private report: (thrown: unknown) => void = console.error;

  /** Throws DS_ARGUMENT without a model. */
  constructor(models: Readonly<Record<string, ModelSource>>, limits: PoolLimits = {}) {
    const { memory = Number.POSITIVE_INFINITY, idleSeconds } = limits;
    this.entries = Object.entries(models).map(([name, source]) => new PoolEntry(name, source));
    if (this.entries.length === 0)
      throw argumentError('serve models', 'at least one model', 'none');
    this.memory = memory;
    this.idleMs = idleSeconds === undefined ? Number.POSITIVE_INFINITY : idleSeconds * 1000;
    const every = timerMs(Math.min(this.idleMs / 4, CHECK_MS) / 1000);
    const isTimed = Number.isFinite(this.idleMs);
    this.timer = isTimed ? setInterval(() => this.unloadIdle(), every).unref() : null;
  }

  /**
   * @internal Sets the function that wraps an engine as a served model, and the receiver of
   * unexpected errors.
   */
  bind(
    serve: (engine: ServedEngine, name: string) => ServedModel,
    report: (thrown: unknown) => void,
  ): void {
    this.serve = serve;
    this.report = report;
  }

  /** Returns the models in the order of their declaration. */
  get models(): readonly PooledModel[] {
    return this.entries;
  }

  /** Bytes of the loaded models. */
  get used(): number {
    return this.entries.reduce((sum, { opened, bytes }) => sum + (opened ? bytes : 0), 0);
  }

  /** The first loaded engine that has failed permanently. */
  get failed(): ServedEngine | undefined {
    return this.entries.find(({ opened }) => opened?.engine.failure)?.opened?.engine;
  }

  /** Returns the counters of the loaded models. */
  stats(): ReadonlyMap<string, EngineStats> {
    const loaded = this.entries.filter(({ opened }) => opened !== null);
    return new Map(loaded.map(({ name, opened }) => [name, required(opened).engine.stats()]));
  }

  /**
   * Returns a lease of the named model, or of the first model without a name. Returns null if the
   * model is not loaded.
   */
  now(name: string | undefined): Lease | null {
    const entry = this.find(name);
    return entry.served && !entry.isLeaving ? this.lease(entry) : null;
  }

  /**
   * Resolves when the model is loaded. Rejects with the reason of `signal`, with 404 for an unknown
   * name, and with 503 if it does not load.
   */
  acquire(name: string | undefined, signal: AbortSignal): Promise<Lease> {
    const entry = this.find(name);
    if (this.isClosed) throw overloadedError('The server is stopping.', { code: 'stopping' });
    if (entry.state === 'failed' && performance.now() - entry.failedAt < RETRY_MS) {
      throw loadFailedError(entry);
    }
    return new Promise((resolve, reject) => {
      const leave = (): void => {
        entry.waiters.delete(waiter);
        this.notifyChange();
        reject(signal.reason);
      };
      const removeListener = (): void => signal.removeEventListener('abort', leave);
      const waiter: Waiter = {
        grant: (lease) => {
          removeListener();
          resolve(lease);
        },
        refuse: (error) => {
          removeListener();
          reject(error);
        },
      };
      signal.addEventListener('abort', leave, { once: true });
      entry.waiters.add(waiter);
      this.enqueue(entry);
    });
  }

  /** Refuses waiting requests and unloads all models. A load that runs ends first. */
  async close(): Promise<void> {
    this.isClosed = true;
    if (this.timer) clearInterval(this.timer);
    for (const entry of this.entries)
      this.refuseAll(entry, overloadedError('The server is stopping.'));
    this.notifyChange();
    await this.changing;
    for (const entry of this.entries) if (entry.opened) await this.unload(entry);
  }

  private find(name: string | undefined): PoolEntry {
    const entry =
      name === undefined ? this.entries[0] : this.entries.find((entry) => entry.name === name);
    if (entry) return entry;
    throw noModelError(
      name ?? '',
      this.entries.map((entry) => entry.name),
    );
  }

  private lease(entry: PoolEntry): Lease {
    entry.users++;
    let isOver = false;
    return {
      served: required(entry.served),
      release: () => {
        if (isOver) return;
        isOver = true;
        entry.users--;
        entry.usedAt = performance.now();
        this.notifyChange();
        if (this.used > this.memory) this.changing = this.changing.then(() => this.trim(null));
      },
    };
  }

  private enqueue(entry: PoolEntry): void {
    if (entry.isQueued) return;
    entry.isQueued = true;
    this.changing = this.changing.then(() => this.runLoad(entry));
  }

  /** Loads a model and grants it to all waiting requests. Never rejects. */
  private async runLoad(entry: PoolEntry): Promise<void> {
    try {
      if (entry.waiters.size > 0 && !entry.opened) await this.load(entry);
      for (const waiter of entry.waiters) waiter.grant(this.lease(entry));
      entry.waiters.clear();
    } catch (error) {
      if (!(error instanceof NoWaiterError)) this.fail(entry, error);
    } finally {
      entry.isQueued = false;
    }
    // Requests may have arrived while the load of a model that left was queued.
    if (entry.waiters.size > 0 && !this.isClosed) this.enqueue(entry);
  }

  private async load(entry: PoolEntry): Promise<void> {
    await this.makeRoom(entry);
    entry.state = 'loading';
    const opened = await this.open(entry);
    entry.bytes = opened.bytes;
    try {
      this.requireFit(entry);
      entry.served = this.serve(opened.engine, entry.name);
    } catch (error) {
      await opened.close();
      throw error;
    }
    entry.opened = opened;
    entry.loads++;
    entry.reason = null;
    entry.state = 'loaded';
    entry.usedAt = performance.now();
    await this.trim(entry);
  }

  private requireFit({ name, bytes }: PoolEntry): void {
    if (bytes <= this.memory) return;
    const expected = `at most ${this.memory} bytes of weights and cache`;
    const hint = 'Raise --model-memory, or lower kv_cache.memory in --config.';
    throw argumentError(`serve model ${name}`, expected, `${bytes}`, hint);
  }

  /**
   * Opens the model. If the device has no memory left, unloads all idle models and tries once more.
   */
  private async open(entry: PoolEntry): Promise<OpenedModel> {
    try {
      return await entry.source.open();
    } catch (error) {
      const idle = this.entries.filter(({ opened, users }) => opened && users === 0);
      const isFull = error instanceof DsError && error.code === 'DS_OUT_OF_MEMORY';
      if (!isFull || idle.length === 0) throw error;
      for (const entry of idle) await this.unload(entry);
      return entry.source.open();
    }
  }

  /** Unloads other models until the estimate of `entry` fits, or none is left. */
  private async makeRoom(entry: PoolEntry): Promise<void> {
    while (this.used + entry.bytes > this.memory) {
      const victim = this.findVictim();
      if (!victim) return;
      victim.isLeaving = true;
      victim.state = 'unloading';
      try {
        while (victim.users > 0) {
          if (entry.waiters.size === 0) throw new NoWaiterError();
          await new Promise<void>((resolve) => this.changes.push(resolve));
        }
        await this.unload(victim);
      } finally {
        victim.isLeaving = false;
        if (victim.opened) victim.state = 'loaded';
      }
    }
  }

  /**
   * Returns the model to unload first: the least recently used idle one, else the least recently
   * used one.
   */
  private findVictim(): PoolEntry | undefined {
    const loaded = this.entries.filter(({ opened }) => opened !== null);
    return loaded.sort(
      (a, b) => Number(a.users > 0) - Number(b.users > 0) || a.usedAt - b.usedAt,
    )[0];
  }

  /** Estimates may be too low: unloads idle models, apart from `kept`, until the bound holds. */
  private async trim(kept: PoolEntry | null): Promise<void> {
    while (this.used > this.memory) {
      const idle = this.entries.filter(
        (entry) => entry.opened && entry.users === 0 && entry !== kept,
      );
      const [victim] = idle.sort((a, b) => a.usedAt - b.usedAt);
      if (!victim) return;
      await this.unload(victim);
    }
  }

  private unloadIdle(): void {
    const now = performance.now();
    const isIdle = ({ opened, users, waiters, usedAt }: PoolEntry): boolean =>
      opened !== null && users === 0 && waiters.size === 0 && now - usedAt >= this.idleMs;
    if (!this.entries.some(isIdle)) return;
    this.changing = this.changing.then(async () => {
      for (const entry of this.entries) if (isIdle(entry)) await this.unload(entry);
    });
  }

  /** Unloads a model. Reports an error of freeing its memory; the model counts as unloaded. */
  private async unload(entry: PoolEntry): Promise<void> {
    const { served, opened } = entry;
    entry.served = null;
    entry.opened = null;
    entry.state = 'unloaded';
    try {
      await served?.reader?.close();
      await opened?.close();
    } catch (error) {
      this.report(error);
    }
  }

  private fail(entry: PoolEntry, error: unknown): void {
    entry.failures++;
    entry.failedAt = performance.now();
    entry.state = 'failed';
    entry.reason =
      error instanceof DsError ? error.message : 'see the log of the server for the reason';
    this.report(error);
    this.refuseAll(entry, loadFailedError(entry));
  }

  private refuseAll(entry: PoolEntry, error: ApiError): void {
    for (const waiter of entry.waiters) waiter.refuse(error);
    entry.waiters.clear();
  }

  private notifyChange(): void {
    for (const wake of this.changes.splice(0)) wake();
  }
}

/** 503: the last load failed. The header asks clients not to retry at once. */
function loadFailedError({ name, reason }: PoolEntry): ApiError {
  const headers = { 'retry-after': String(RETRY_MS / 1000), 'x-should-retry': 'false' };
  const message = `The model ${name} did not load: ${reason}`;
  return new ApiError(503, message, { code: 'model_load_failed', param: 'model', headers });
}
