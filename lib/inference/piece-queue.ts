// Pieces of texts on their way to whoever reads them: written without waiting, read in turns.

/** An endless list that is read once. Whoever leaves the loop early is reported to `onLeave`. */
export class PieceQueue<Piece> implements AsyncIterableIterator<Piece> {
  private pieces: Piece[] = [];
  private ended = false;
  private failure: { error: unknown } | null = null;
  private wake: (() => void) | null = null;

  constructor(private readonly onLeave: () => void) {}

  push(piece: Piece): void {
    if (this.ended) return;
    this.pieces.push(piece);
    this.wake?.();
  }

  /** Nothing follows what was pushed. */
  end(): void {
    this.ended = true;
    this.wake?.();
  }

  /** The reader gets `error` behind what was pushed. */
  fail(error: unknown): void {
    this.failure ??= { error };
    this.end();
  }

  async next(): Promise<IteratorResult<Piece, undefined>> {
    for (;;) {
      const piece = this.pieces.shift();
      if (piece !== undefined) return { value: piece, done: false };
      const { failure } = this;
      this.failure = null;
      if (failure) throw failure.error;
      if (this.ended) return { value: undefined, done: true };
      await new Promise<void>((resolve) => {
        this.wake = resolve;
      });
    }
  }

  async return(): Promise<IteratorResult<Piece, undefined>> {
    this.pieces = [];
    const wasOpen = !this.ended;
    this.end();
    if (wasOpen) this.onLeave();
    return { value: undefined, done: true };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
