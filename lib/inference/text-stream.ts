// Decodes the tokens of one sequence to text, up to the first stop string.

import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import type { Tokenizer } from '../text/index.js';

/**
 * Decodes tokens in a stream. The joined results equal the text of all tokens up to the first stop
 * string. Incomplete characters and possible stop strings are held back.
 */
export class TextStream {
  private readonly decode: ReturnType<Tokenizer['decodeStream']>;
  private readonly stops: StopStrings;

  /**
   * `after` are the tokens before the stream. Throws DS_ARGUMENT for invalid stop strings. Special
   * tokens decode to no text, unless `visible` lists them.
   */
  constructor(
    tokenizer: Pick<Tokenizer, 'decodeStream'>,
    stops: readonly string[] = [],
    after: readonly number[] = [],
    visible: readonly number[] = [],
  ) {
    this.decode = tokenizer.decodeStream({ after, visible });
    this.stops = new StopStrings(stops);
  }

  /**
   * Takes one or more tokens. With `mayStop` false, stop strings are ordinary text. Throws DS_INDEX
   * for an invalid token id.
   */
  push(tokens: number | ArrayLike<number>, mayStop = true): StoppedText {
    return this.stops.push(this.decode.push(tokens), mayStop);
  }

  /** Returns the held-back text after the last token. It may contain a stop string. */
  end(mayStop = true): StoppedText {
    const last = this.stops.push(this.decode.end(), mayStop);
    return { text: last.text + this.stops.end(), stop: last.stop };
  }
}

/** Final text after a piece. */
interface StoppedText {
  /** Text that no later stop string can remove. */
  readonly text: string;
  /** The stop string that ended the text; `text` ends before it. Null while the text continues. */
  readonly stop: string | null;
}

/**
 * Holds back the end of a text while it may become a stop string. It holds back at most the longest
 * stop string minus one character. The text ends before the stop string that completes first. If
 * several complete at the same character, the longest counts.
 */
export class StopStrings {
  /** Text that may become a stop string. */
  private held = '';
  private stopped = false;

  /** Throws DS_ARGUMENT for operation `op` unless `stops` is a list of non-empty strings. */
  constructor(
    private readonly stops: readonly string[],
    op = 'generate stop',
  ) {
    const isText = (stop: unknown): boolean => typeof stop === 'string' && stop !== '';
    if (Array.isArray(stops) && stops.every(isText)) return;
    const expected = 'a list of strings that are not empty';
    const got = formatValue(stops);
    throw argumentError(op, expected, got, 'Write one stop string as ["\\n"].');
  }

  /**
   * Takes the next piece and returns final text. After a stop it returns no text. With `mayStop`
   * false, stop strings that complete in this piece are ordinary text.
   */
  push(piece: string, mayStop = true): StoppedText {
    if (this.stopped) return { text: '', stop: null };
    const seen = this.held.length;
    this.held += piece;
    const match = mayStop ? this.firstComplete(seen) : null;
    if (match) {
      this.stopped = true;
      const text = this.held.slice(0, match.at);
      this.held = '';
      return { text, stop: match.stop };
    }
    const certain = this.held.length - this.longestBeginning();
    const text = this.held.slice(0, certain);
    this.held = this.held.slice(certain);
    return { text, stop: null };
  }

  /** Returns the held-back text at the end of the input. */
  end(): string {
    const text = this.held;
    this.held = '';
    this.stopped = true;
    return text;
  }

  /**
   * Returns the stop string that completes first. The first `seen` characters contain no complete
   * one.
   */
  private firstComplete(seen: number): { stop: string; at: number } | null {
    let first: { stop: string; at: number } | null = null;
    const endOf = (item: { stop: string; at: number }) => item.at + item.stop.length;
    for (const stop of this.stops) {
      const at = this.held.indexOf(stop, Math.max(0, seen - stop.length + 1));
      if (at < 0) continue;
      const match = { stop, at };
      const sooner = first === null || endOf(match) < endOf(first);
      if (sooner || (first && endOf(match) === endOf(first) && at < first.at)) first = match;
    }
    return first;
  }

  /**
   * Returns the length of the longest suffix of the held text that is a prefix of a stop string.
   */
  private longestBeginning(): number {
    let longest = 0;
    for (const stop of this.stops) {
      const max = Math.min(stop.length - 1, this.held.length);
      for (let length = max; length > longest; --length) {
        if (this.held.endsWith(stop.slice(0, length))) longest = length;
      }
    }
    return longest;
  }
}
