// Results that a checkpointed segment keeps in addition to its inputs, because recomputing them
// costs more than the memory.
import { DsError } from '../errors.js';
import { describe } from '../runtime/view.js';
import type { Saved } from './tape.js';
import type { Tensor } from './tensor.js';

/** The results of one op, and a text of its call. */
interface Kept {
  readonly call: string;
  readonly results: readonly Tensor[];
}

/** The results of one segment, in call order. */
export interface KeptResults extends Saved {
  /** Runs the segment's forward and keeps results. */
  gather<T>(body: () => T): T;
  /** Runs the replay of the segment, which gets the kept results again. */
  handOut<T>(body: () => T): T;
}

/** Nothing is kept. */
export const noKeptResults: KeptResults = {
  gather: (body) => between({ ...ends, to: null }, body),
  handOut: (body) => between({ to: null, from: null }, body),
  retain() {},
  release() {},
};

/** The innermost segment that keeps results, and the innermost that replays them. */
interface Ends {
  to: Kept[] | null;
  from: Iterator<Kept> | null;
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

/** Keeps the results that ops pass to lasting(). */
export class GatheredResults implements KeptResults {
  private readonly kept: Kept[] = [];
  private references = 0;

  /** Inside a replay, results come from the outer segment and are also kept here. */
  gather<T>(body: () => T): T {
    return between({ ...ends, to: this.kept }, body);
  }

  handOut<T>(body: () => T): T {
    return between({ to: null, from: this.kept.values() }, body);
  }

  retain(): void {
    this.references++;
  }

  release(): void {
    if (--this.references > 0) return;
    for (const { results } of this.kept.splice(0)) for (const each of results) each.release();
  }
}

/**
 * Returns the results of `make`, an op called on `like`. The surrounding checkpointed segment keeps
 * them, if it keeps results, and its replay returns the kept ones. Throws DS_AUTOGRAD if the replay
 * calls different ops than the forward.
 */
export function lasting(op: string, like: Tensor, make: () => Tensor[]): Tensor[] {
  const { to, from } = ends;
  if (!to && !from) return make();
  const call = `${op} of ${describe(like)}`;
  const results = from ? again(from, call) : make();
  to?.push({ call, results: results.map((each) => each.retain()) });
  return results;
}

function again(from: Iterator<Kept>, call: string): Tensor[] {
  const next: Kept | undefined = from.next().value;
  if (next?.call === call) return next.results.map((each) => each.detach());
  throw new DsError({
    code: 'DS_AUTOGRAD',
    op: 'checkpoint',
    expected: next ? `${next.call}, as in the forward` : 'no more ops than in the forward',
    got: call,
    hint: 'The rerun of a checkpointed function must call the same ops: use only its inputs and parameters.',
  });
}
