// Results that a checkpointed segment keeps in addition to its inputs, because recomputing them
// costs more than the memory.
import { DsError } from '../errors.js';
import { describe } from '../runtime/view.js';
import { beforeBackward, type Saved } from './tape.js';
import type { Tensor } from './tensor.js';

/** Storage of a segment's kept results between its forward and its replay. */
export interface ResultStore extends Saved {
  /** Stores a result while the forward runs. */
  add(result: Tensor): void;
  /** Called once, before the replay. */
  restore(): void;
  /** Returns result `i` in the current scope. Called at most once, in the replay. */
  take(i: number): Tensor;
  /** The backward has reached the first attention: the rest of it needs less memory. */
  nearEnd(): void;
}

/** The results stay on the device. */
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

  nearEnd(): void {}

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
  gather<T>(body: () => T): T;
  /** Brings the results back to the device, before the replay. */
  restore(): void;
  /** Runs the replay of the segment, which gets the kept results again. */
  handOut<T>(body: () => T): T;
}

/** Nothing is kept. */
export const noKeptResults: KeptResults = {
  gather: (body) => between({ ...ends, to: null }, body),
  restore() {},
  handOut: (body) => between({ to: null, from: null }, body),
  retain() {},
  release() {},
};

/** The innermost segment that keeps results, and the innermost that replays them. */
interface Ends {
  to: GatheredResults | null;
  from: GatheredResults | null;
}

let ends: Ends = { to: null, from: null };

function between<T>(these: Ends, body: () => T): T {
  const outer = ends;
  ends = these;
  try {
    return body();
  } finally {
    ends = outer;
  }
}

/** A call of an op: a text of it, and the number of its results. */
interface Call {
  readonly text: string;
  readonly results: number;
}

/** Keeps the results that ops pass to lasting(). */
export class GatheredResults implements KeptResults {
  private readonly calls: Call[] = [];
  /** Calls, and results of them, that the replay has got. */
  private handed = { calls: 0, results: 0 };
  private isWatched = false;

  /** `fewest`: keys that a query must see for its attention to be kept. */
  constructor(
    private readonly store: ResultStore,
    private readonly fewest: number,
  ) {}

  /** Inside a replay, results come from the outer segment and are also kept here. */
  gather<T>(body: () => T): T {
    return between({ ...ends, to: this }, body);
  }

  restore(): void {
    this.store.restore();
  }

  handOut<T>(body: () => T): T {
    return between({ to: null, from: this }, body);
  }

  keeps(keys: number): boolean {
    return keys >= this.fewest;
  }

  add(text: string, results: readonly Tensor[]): void {
    this.calls.push({ text, results: results.length });
    for (const each of results) this.store.add(each);
  }

  /** The results of the next call. Throws DS_AUTOGRAD unless it is the call `text`. */
  next(text: string): Tensor[] {
    const { handed } = this;
    const call = this.calls[handed.calls++];
    if (call?.text !== text) throw otherCall(text, call);
    const first = handed.results;
    handed.results += call.results;
    return Array.from({ length: call.results }, (_, i) => this.store.take(first + i));
  }

  /** Observes the backward of `result`, if it is the first attention that the replay records. */
  watch(result: Tensor): void {
    if (this.isWatched || !result.gradFn) return;
    this.isWatched = true;
    beforeBackward(result, () => this.store.nearEnd());
  }

  retain(): void {
    this.store.retain();
  }

  release(): void {
    this.store.release();
  }
}

/** An attention in words of its cost. */
export interface AttentionCall {
  /** The queries, or the packed projection. */
  readonly like: Tensor;
  /** Keys that a query sees, on average. */
  readonly keys: number;
}

/**
 * Returns the results of `make`, an attention. The surrounding checkpointed segment keeps them, if
 * it keeps results of this cost, and its replay returns the kept ones. Throws DS_AUTOGRAD if the
 * replay calls different ops than the forward.
 */
export function lasting({ like, keys }: AttentionCall, make: () => Tensor[]): Tensor[] {
  const to = ends.to?.keeps(keys) ? ends.to : null;
  const from = ends.from?.keeps(keys) ? ends.from : null;
  if (!to && !from) return make();
  const text = `attention of ${describe(like)}`;
  const results = from ? from.next(text) : make();
  to?.add(text, results);
  return results;
}

/** Call this after `out`, a result of lasting(), has been recorded. */
export function lastingRecorded(out: Tensor): void {
  ends.from?.watch(out);
}

function otherCall(got: string, kept: Call | undefined): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'checkpoint',
    expected: kept ? `${kept.text}, as in the forward` : 'no more ops than in the forward',
    got,
    hint: 'The rerun of a checkpointed function must call the same ops: use only its inputs and parameters.',
  });
}
