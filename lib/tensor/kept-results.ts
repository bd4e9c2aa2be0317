// Results of attention that a checkpointed segment keeps in addition to its inputs: their
// recomputation would cost more than their memory.
import { DsError } from '../errors.js';
import { describe } from '../runtime/view.js';
import { beforeBackward, type Saved } from './tape.js';
import type { Tensor } from './tensor.js';

/** Storage of a segment's kept results between its forward and its replay. */
export interface ResultStore extends Saved {
  /** Stores a result while the forward runs. */
  add(result: Tensor): void;
  /** Moves the results to their device. The segment calls it once, before the replay. */
  restore(): void;
  /** Returns result `i` in the current scope. Called at most once, in the replay. */
  take(i: number): Tensor;
  /**
   * Starts to restore the previous segment. The backward calls it at the segment's first
   * attention, because it needs less memory from there on.
   */
  prefetchPredecessor(): void;
}

/** Keeps the results on the device. */
export class ResidentResults implements ResultStore {
  private readonly results: Tensor[] = [];
  private references = 0;

  add(result: Tensor): void {
    this.results.push(result.retain());
  }

  restore(): void {}

  take(i: number): Tensor {
    return (this.results[i] as Tensor).detach();
  }

  prefetchPredecessor(): void {}

  retain(): void {
    this.references++;
  }

  release(): void {
    if (--this.references > 0) return;
    for (const each of this.results.splice(0)) each.release();
  }
}

/** The results of one segment, in call order. */
export interface KeptResults extends Saved {
  /** Runs the segment's forward and keeps results. */
  recordForward<T>(body: () => T): T;
  /** Moves the results to their device, before the replay. */
  restore(): void;
  /** Runs the replay of the segment, with the kept results. */
  replay<T>(body: () => T): T;
}

/** Keeps no results. */
export const noKeptResults: KeptResults = {
  recordForward: (body) => runWithin({ ...active, keeping: null }, body),
  restore() {},
  replay: (body) => runWithin({ keeping: null, replaying: null, watch: null }, body),
  retain() {},
  release() {},
};

/** The innermost segment that keeps results, the innermost that replays them, and an observer. */
interface ActiveSegments {
  keeping: AttentionResults | null;
  replaying: AttentionResults | null;
  watch: FirstAttentionWatch | null;
}

let active: ActiveSegments = { keeping: null, replaying: null, watch: null };

/** Returns whether a surrounding segment keeps or replays results. */
export const isInSegment = (): boolean => active.keeping !== null || active.replaying !== null;

function runWithin<T>(segments: ActiveSegments, body: () => T): T {
  const outer = active;
  active = segments;
  try {
    return body();
  } finally {
    active = outer;
  }
}

/** Observes the backward of the first attention that is recorded. */
class FirstAttentionWatch {
  private isWatched = false;

  constructor(private readonly onReached: () => void) {}

  observe(result: Tensor): void {
    if (this.isWatched || !result.gradFn) return;
    this.isWatched = true;
    beforeBackward(result, this.onReached);
  }
}

/** Runs `body`. Calls `onReached` when a backward reaches the first attention in it. */
export const watchFirstAttention = <T>(onReached: () => void, body: () => T): T =>
  runWithin({ ...active, watch: new FirstAttentionWatch(onReached) }, body);

/** A call of attention: its description for errors, and the number of its results. */
interface Call {
  readonly description: string;
  readonly results: number;
}

/** Keeps the results of computeAttention(). */
export class AttentionResults implements KeptResults {
  private readonly calls: Call[] = [];
  /** Numbers of calls and results that the replay has received. */
  private replayed = { calls: 0, results: 0 };
  private readonly watch = new FirstAttentionWatch(() => this.store.prefetchPredecessor());

  /**
   * Keeps the results of an attention if its queries see at least `minKeys` keys. With
   * `keepsProjections`, also keeps its projections: the results of the ops inside runProjections().
   */
  constructor(
    private readonly store: ResultStore,
    private readonly minKeys: number,
    private readonly keepsProjections = false,
  ) {}

  /**
   * Runs the forward. Inside a replay, results come from the outer segment, and are kept here too.
   */
  recordForward<T>(body: () => T): T {
    return runWithin({ ...active, keeping: this }, body);
  }

  restore(): void {
    this.store.restore();
  }

  replay<T>(body: () => T): T {
    return runWithin({ keeping: null, replaying: this, watch: this.watch }, body);
  }

  isKept(keys: number): boolean {
    return keys >= this.minKeys;
  }

  areProjectionsKept(keys: number): boolean {
    return this.keepsProjections && this.isKept(keys);
  }

  add(description: string, results: readonly Tensor[]): void {
    this.calls.push({ description, results: results.length });
    for (const each of results) this.store.add(each);
  }

  /** Returns the results of the next call. Throws DS_AUTOGRAD unless its description is equal. */
  next(description: string): Tensor[] {
    const { replayed } = this;
    const call = this.calls[replayed.calls++];
    if (call?.description !== description) throw replayMismatchError(description, call);
    const first = replayed.results;
    replayed.results += call.results;
    return Array.from({ length: call.results }, (_, i) => this.store.take(first + i));
  }

  retain(): void {
    this.store.retain();
  }

  release(): void {
    this.store.release();
  }
}

/** The properties of an attention that determine its cost. */
interface AttentionCall {
  /** The queries, or the packed projection. */
  readonly like: Tensor;
  /** Keys that a query sees, on average. */
  readonly keys: number;
}

/**
 * Returns the results of `compute`, an attention. A surrounding checkpointed segment keeps them if
 * the cost suffices, and its replay returns them without calling `compute`. Throws DS_AUTOGRAD if
 * the replay calls different ops than the forward.
 */
export function computeAttention({ like, keys }: AttentionCall, compute: () => Tensor[]): Tensor[] {
  const keeping = active.keeping?.isKept(keys) ? active.keeping : null;
  const replaying = active.replaying?.isKept(keys) ? active.replaying : null;
  if (!keeping && !replaying) return compute();
  const description = `attention of ${describe(like)}`;
  const results = replaying ? replaying.next(description) : compute();
  keeping?.add(description, results);
  return results;
}

/** The attention whose projections are running. */
interface ProjectedAttention {
  /** Keys that a query sees, on average. */
  readonly keys: number;
  /** Whether a backward reads the results; false if they only serve to compute kept results. */
  readonly isRead: boolean;
}

let projected: ProjectedAttention | null = null;

/**
 * Runs `body`: rotations and linear layers whose results an attention reads, or that read its
 * result. No op may change their results in place.
 */
export function runProjections<T>(attention: ProjectedAttention, body: () => T): T {
  const outer = projected;
  projected = attention;
  try {
    return body();
  } finally {
    projected = outer;
  }
}

/** The two parts of an op with one output. */
interface Projection {
  allocate(): Tensor;
  compute(out: Tensor): void;
}

/**
 * Returns the result of the op `op` of `like`. Inside runProjections(), a surrounding
 * segment keeps it if it keeps projections: see computeAttention(). Its replay does not compute a
 * result that is not read; reading it throws DS_RELEASED.
 */
export function computeProjection(
  op: string,
  like: Tensor,
  { allocate, compute }: Projection,
): Tensor {
  const make = (): Tensor => {
    const out = allocate();
    compute(out);
    return out;
  };
  if (projected === null) return make();
  const { keys, isRead } = projected;
  const keeping = active.keeping?.areProjectionsKept(keys) ? active.keeping : null;
  const replaying = active.replaying?.areProjectionsKept(keys) ? active.replaying : null;
  if (!keeping && !replaying) return make();
  const description = `${op} of ${describe(like)}`;
  const result = replaying ? (replaying.next(description)[0] ?? allocateUnread(allocate)) : make();
  keeping?.add(description, isRead ? [result] : []);
  return result;
}

/** The kept result of an op that computes several. */
interface KeptSum {
  /** The result in a replay; null: the op computes it. */
  readonly kept: Tensor | null;
  /** Keeps the computed result, if a surrounding segment keeps projections. */
  keep(result: Tensor): void;
}

const NOTHING_KEPT: KeptSum = { kept: null, keep() {} };

/** Returns the kept result of an op that computes it together with other results. */
export function keptSumOf(op: string, like: Tensor): KeptSum {
  if (projected === null) return NOTHING_KEPT;
  const { keys } = projected;
  const keeping = active.keeping?.areProjectionsKept(keys) ? active.keeping : null;
  const replaying = active.replaying?.areProjectionsKept(keys) ? active.replaying : null;
  if (!keeping && !replaying) return NOTHING_KEPT;
  const description = `${op} of ${describe(like)}`;
  const kept = replaying?.next(description)[0] ?? null;
  return { kept, keep: (result) => keeping?.add(description, [result]) };
}

function allocateUnread(allocate: () => Tensor): Tensor {
  const out = allocate();
  out.buffer.abandon();
  return out;
}

/** Observes the backward of `out`, a result of computeAttention(). Call it after record(). */
export function watchRecorded(out: Tensor): void {
  active.watch?.observe(out);
}

function replayMismatchError(got: string, kept: Call | undefined): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'checkpoint',
    expected: kept ? `${kept.description}, as in the forward` : 'no more ops than in the forward',
    got,
    hint: 'The rerun of a checkpointed function must call the same ops: use only its inputs and parameters.',
  });
}
