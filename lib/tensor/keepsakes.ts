// What a checkpointed segment keeps beside its inputs: results that cost more to make again than to
// hold.
import { DsError } from '../errors.js';
import { describe } from '../runtime/view.js';
import type { Saved } from './tape.js';
import type { Tensor } from './tensor.js';

/** One op's results, with what it was called on as text. */
interface Kept {
  readonly call: string;
  readonly results: readonly Tensor[];
}

/** The results of one segment, in the order in which its function asks for them. */
export interface Keepsakes extends Saved {
  /** The segment's forward: results are kept. */
  gather<T>(body: () => T): T;
  /** Its replay: they are handed out again. */
  handOut<T>(body: () => T): T;
}

/** Nothing is kept. */
export const noKeepsakes: Keepsakes = {
  gather: (body) => between({ ...ends, to: null }, body),
  handOut: (body) => between({ to: null, from: null }, body),
  retain() {},
  release() {},
};

/** The innermost segment that gathers, and the innermost that hands out. */
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

/** Keeps what every op gives to lasting(). */
export class GatheredKeepsakes implements Keepsakes {
  private readonly kept: Kept[] = [];
  private references = 0;

  /** In a replay around it, results come from the outer segment and are kept here as well. */
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
 * The results of `make`, an op called on `like`: kept by the checkpointed segment around it, if it
 * keeps any, and in its replay those kept. Throws DS_AUTOGRAD when the replay calls other ops than
 * the forward.
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
    hint: 'A checkpointed function must do the same when it runs again: it depends on its inputs and parameters alone.',
  });
}
