// The pieces of a stream that starts with its first reader.
import type { GenerationPiece } from './continuation.js';

type Pieces = AsyncIterableIterator<GenerationPiece>;

/**
 * Starts a stream at the first next(). Later calls go directly to the stream: an async generator
 * around it would cost several microtasks a piece.
 */
export class StartedPieces implements AsyncIterableIterator<GenerationPiece> {
  private starting: Promise<Pieces> | null = null;
  private pieces: Pieces | null = null;
  private hasLeft = false;

  constructor(private readonly start: () => Promise<Pieces>) {}

  next(): Promise<IteratorResult<GenerationPiece>> {
    if (this.pieces) return this.pieces.next();
    if (this.hasLeft) return Promise.resolve({ value: undefined, done: true });
    this.starting ??= this.start();
    return this.starting.then(
      (pieces) => {
        this.pieces = pieces;
        return pieces.next();
      },
      (error) => {
        this.hasLeft = true;
        throw error;
      },
    );
  }

  async return(): Promise<IteratorResult<GenerationPiece>> {
    this.hasLeft = true;
    const pieces = await this.starting?.catch(() => null);
    await pieces?.return?.();
    return { value: undefined, done: true };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
