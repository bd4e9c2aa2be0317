// A queue of generated pieces: push() does not wait, next() does.

type Read<Piece> = IteratorResult<Piece, undefined>;

/** A pending next(). */
interface Reader<Piece> {
  resolve(read: Read<Piece>): void;
  reject(error: unknown): void;
}

/**
 * An async iterator with one consumer. Calls `onLeave` if the consumer leaves early. A piece goes
 * directly to a pending next(): each step has one piece per sequence.
 */
export class PieceQueue<Piece> implements AsyncIterableIterator<Piece> {
  private pieces: Piece[] = [];
  private readers: Reader<Piece>[] = [];
  private ended = false;
  private failure: { error: unknown } | null = null;

  constructor(private readonly onLeave: () => void) {}

  push(piece: Piece): void {
    if (this.ended) return;
    const reader = this.readers.shift();
    if (reader) reader.resolve({ value: piece, done: false });
    else this.pieces.push(piece);
  }

  /** Ends the iteration after the queued pieces. */
  end(): void {
    this.ended = true;
    const { readers } = this;
    this.readers = [];
    for (const reader of readers) this.reportEnd(reader);
  }

  /** Rejects with `error` after the queued pieces. */
  fail(error: unknown): void {
    this.failure ??= { error };
    this.end();
  }

  next(): Promise<Read<Piece>> {
    const piece = this.pieces.shift();
    if (piece !== undefined) return Promise.resolve({ value: piece, done: false });
    return new Promise((resolve, reject) => {
      const reader = { resolve, reject };
      if (this.ended) this.reportEnd(reader);
      else this.readers.push(reader);
    });
  }

  async return(): Promise<Read<Piece>> {
    this.pieces = [];
    const wasOpen = !this.ended;
    this.end();
    if (wasOpen) this.onLeave();
    return { value: undefined, done: true };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  private reportEnd({ resolve, reject }: Reader<Piece>): void {
    const { failure } = this;
    this.failure = null;
    if (failure) reject(failure.error);
    else resolve({ value: undefined, done: true });
  }
}
