// ReleaseStack: releases resources in reverse order, like DisposableStack, which Node 20 lacks.

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
