// ReleaseStack: releases resources in reverse order, like DisposableStack, which Node 20 lacks.
import { allOrNothing } from '../tensor/scope.js';

/** Owns deferred releases until release(). */
export class ReleaseStack {
  private readonly releases: (() => void)[] = [];

  /** Registers `release`, which runs before those registered earlier. */
  defer(release: () => void): void {
    this.releases.push(release);
  }

  /** Takes ownership of an object with dispose(). */
  own<T extends { dispose(): void }>(thing: T): T {
    this.defer(() => thing.dispose());
    return thing;
  }

  /**
   * Releases everything once. An error does not stop the other releases; the first error is thrown.
   */
  release(): void {
    const failures: unknown[] = [];
    for (let next = this.releases.pop(); next; next = this.releases.pop()) {
      try {
        next();
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw failures[0];
  }
}

/** Resources created so far. The engine keeps `owned`; `undo` runs only if the build fails. */
export interface BuildResources {
  owned: ReleaseStack;
  undo: ReleaseStack;
}

/** Runs `build`. If it throws, releases its resources, both in the stacks and outside of them. */
export function buildOrRelease<Result>(build: (site: BuildResources) => Result): Result {
  return allOrNothing(() => {
    const site: BuildResources = { owned: new ReleaseStack(), undo: new ReleaseStack() };
    try {
      return build(site);
    } catch (error) {
      for (const stack of [site.owned, site.undo]) releaseAfter(stack);
      throw error;
    }
  });
}

/** Releases `stack` after a failure. A failed release only warns: the first error matters. */
function releaseAfter(stack: ReleaseStack): void {
  try {
    stack.release();
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    const warning = `initialize() failed, and releasing its resources failed too: ${reason}`;
    process.emitWarning(warning, { type: 'DsWarning', code: 'DS_RELEASE' });
  }
}
