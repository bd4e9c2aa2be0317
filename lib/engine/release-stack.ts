// ReleaseStack: releases resources in reverse order. Node 20 lacks the standard DisposableStack.
import { allOrNothing } from '../tensor/scope.js';

/** Owns releases until release() runs them. */
export class ReleaseStack {
  private readonly releases: (() => void)[] = [];

  /** Registers `release`. Releases registered later run before it. */
  defer(release: () => void): void {
    this.releases.push(release);
  }

  /** Takes ownership of an object: its dispose() runs in release(). */
  own<T extends { dispose(): void }>(thing: T): T {
    this.defer(() => thing.dispose());
    return thing;
  }

  /**
   * Runs every release once. If releases throw, the others still run, and the first error is
   * thrown.
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

/**
 * The resources that a build has created. The engine keeps `owned`. `undo` runs only if the build
 * fails.
 */
export interface BuildResources {
  owned: ReleaseStack;
  undo: ReleaseStack;
}

/**
 * Runs `build`. If it throws, releases the resources in both stacks, and tensors created outside of
 * them.
 */
export function buildOrRelease<Result>(build: (resources: BuildResources) => Result): Result {
  return allOrNothing(() => {
    const resources: BuildResources = { owned: new ReleaseStack(), undo: new ReleaseStack() };
    try {
      return build(resources);
    } catch (error) {
      for (const stack of [resources.owned, resources.undo]) releaseAfter(stack);
      throw error;
    }
  });
}

/**
 * Releases `stack` after a failure. If the release fails too, it only warns: the first error
 * matters.
 */
function releaseAfter(stack: ReleaseStack): void {
  try {
    stack.release();
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    const warning = `initialize() failed, and releasing its resources failed too: ${reason}`;
    process.emitWarning(warning, { type: 'DsWarning', code: 'DS_RELEASE' });
  }
}
