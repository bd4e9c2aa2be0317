// The global step of compressed layers: the step of their engine.

/** Steps done. At 0 until an engine is followed, and where the last one has stopped after it. */
export class StepClock {
  private read = (): number => 0;

  /** Global steps that are done. */
  get step(): number {
    return this.read();
  }

  /** Goes by `read` until the function returned is called. */
  follow(read: () => number): () => void {
    this.read = read;
    return () => {
      const last = read();
      this.read = () => last;
    };
  }
}
