// Gradients of leaves that a backward leaves for later: what they are computed from is held until
// then.
import { promptly } from '../runtime/postponed.js';
import { Scope, within } from './scope.js';

/** A tensor, or what stands for tensors. */
interface Held {
  /** Holds it once more. */
  retain(): unknown;
  /** Gives up one hold. */
  release(): void;
}

/**
 * Those of one backward whose ops say what they read (GradSink.later). Leaves' hooks are called as
 * the backward would have called them.
 */
export class LateGradients {
  private readonly left: { body: () => void; reads: readonly Held[] }[] = [];

  /** @internal */
  add(body: () => void, reads: readonly Held[]): void {
    for (const each of reads) each.retain();
    this.left.push({ body, reads });
  }

  /** Computes them in the order in which backward has reached them; gives up what fails. */
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

/** Runs `body`, whose backward leaves nothing for later: what it reads goes when it ends. */
export function leavingNothing(body: () => void): void {
  const outer = collector;
  collector = null;
  try {
    body();
  } finally {
    collector = outer;
  }
}

/** @internal Where a backward under way leaves them; null where it computes them at once. */
export const lateGradients = (): LateGradients | null => collector;

/** Runs `body`, whose backward leaves gradients of leaves in `into` where it can. */
export function leavingLate<T>(into: LateGradients, body: () => T): T {
  const outer = collector;
  collector = into;
  try {
    return body();
  } finally {
    collector = outer;
  }
}
