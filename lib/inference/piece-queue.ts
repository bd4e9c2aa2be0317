// Streams of generated pieces: a queue between steps and readers, a lazy start, and the separation
// of reasoning.
import { AnswerReader } from '../text/tool-calls/answer-reader.js';
import type { AnswerReading } from './constrained-answer.js';
import type { GenerationPiece } from './continuation.js';

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

/**
 * Moves reasoning out of the text of pieces. Returns the same pieces if the request does not parse
 * answers.
 */
export function separateReasoning(
  pieces: AsyncIterableIterator<GenerationPiece>,
  { reading }: { readonly reading: AnswerReading | null },
): AsyncIterableIterator<GenerationPiece> {
  return reading ? read(pieces, reading) : pieces;
}

async function* read(
  pieces: AsyncIterable<GenerationPiece>,
  { form, promptEnd }: AnswerReading,
): AsyncIterableIterator<GenerationPiece> {
  const readers = new Map<number, AnswerReader>();
  for await (const piece of pieces) {
    const reader = readers.get(piece.index) ?? new AnswerReader(form, promptEnd);
    readers.set(piece.index, reader);
    const events = reader.push(piece.text);
    if (piece.finishReason !== null) events.push(...reader.end());
    const of = (type: 'content' | 'reasoning'): string =>
      events.map((event) => (event.type === type ? event.text : '')).join('');
    const reasoning = of('reasoning');
    yield { ...piece, text: of('content'), ...(reasoning && { reasoning }) };
  }
}

type Pieces = AsyncIterableIterator<GenerationPiece>;

/**
 * Starts a stream at the first next(). Later calls go directly to the stream, because an async
 * generator would cost several microtasks per piece.
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
