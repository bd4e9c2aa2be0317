// What has been made so far, released in reverse order: a DisposableStack, which Node 20 has not.

/** Owns what is given to it until release(). */
export class ReleaseStack {
  private readonly releases: (() => void)[] = [];

  /** `release` runs before those given earlier. */
  defer(release: () => void): void {
    this.releases.push(release);
  }

  /** Takes over what is freed with dispose(). */
  own<T extends { dispose(): void }>(thing: T): T {
    this.defer(() => thing.dispose());
    return thing;
  }

  /**
   * Releases everything, once; what throws does not keep the others from it, and the first such
   * error is thrown.
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
