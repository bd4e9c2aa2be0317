// Gradients of leaves that a backward defers. Their inputs are held until then.
import { promptly } from '../runtime/postponed.js';
import { Scope, within } from './scope.js';

/** A tensor, or an object that holds tensors. */
interface Held {
  /** Holds it once more. */
  retain(): unknown;
  /** Gives up one hold. */
  release(): void;
}

/**
 * The deferred gradients of one backward, for ops that declare their reads (GradSink.later). Calls
 * leaves' hooks as the backward would have.
 */
export class LateGradients {
  private readonly left: { body: () => void; reads: readonly Held[] }[] = [];

  /** @internal */
  add(body: () => void, reads: readonly Held[]): void {
    for (const each of reads) each.retain();
    this.left.push({ body, reads });
  }

  /** Computes the gradients in the order of the backward; releases the rest on failure. */
  run(): void {
    const temporaries = new Scope();
    try {
      promptly(() => {
        for (const { body } of this.left) {
          within(temporaries, body);
          temporaries.release();
        }
      });
    } finally {
      temporaries.release();
      this.drop();
    }
  }

  /** Gives them up. */
  drop(): void {
    for (const { reads } of this.left.splice(0)) {
      for (const each of reads) each.release();
    }
  }
}

let collector: LateGradients | null = null;

/** Runs `body` with a backward that defers no gradient, so its reads are released when it ends. */
export function leavingNothing(body: () => void): void {
  const outer = collector;
  collector = null;
  try {
    body();
  } finally {
    collector = outer;
  }
}

/** @internal The collector of the running backward; null if it computes gradients at once. */
export const lateGradients = (): LateGradients | null => collector;

/** Runs `body` with a backward that defers gradients of leaves to `into` where ops allow it. */
export function leavingLate<T>(into: LateGradients, body: () => T): T {
  const outer = collector;
  collector = into;
  try {
    return body();
  } finally {
    collector = outer;
  }
}
