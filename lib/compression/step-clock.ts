// The global step of compressed layers: the step of their engine.

/** Completed steps. 0 without an engine; the last value after an engine ends. */
export class StepClock {
  private read = (): number => 0;

  /** Global steps that are done. */
  get step(): number {
    return this.read();
  }

  /** Reads steps with `read` until the returned function is called. */
  follow(read: () => number): () => void {
    this.read = read;
    return () => {
      const last = read();
      this.read = () => last;
    };
  }
}
