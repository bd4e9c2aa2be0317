// Ends a text where one of some strings appears in it, whatever pieces it comes in.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';

/** What a piece of text has made certain. */
export interface StoppedText {
  /** Text that no stop string can take back any more. */
  readonly text: string;
  /** The string that ended the text, which `text` ends before; null while it goes on. */
  readonly stop: string | null;
}

/**
 * Holds back the end of a text that may become a stop string, at most the longest one less a
 * character. The text ends before the first string to be complete; of those that are complete at
 * the same character, before the longest.
 */
export class StopStrings {
  /** What has come and is not certain. */
  private held = '';
  private stopped = false;

  /** Throws DS_ARGUMENT, naming `op`, unless `stops` is a list of texts that are not empty. */
  constructor(
    private readonly stops: readonly string[],
    op = 'generate stop',
  ) {
    const isText = (stop: unknown): boolean => typeof stop === 'string' && stop !== '';
    if (Array.isArray(stops) && stops.every(isText)) return;
    const expected = 'a list of strings that are not empty';
    const got = formatValue(stops);
    throw new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint: 'For one: ["\\n"].' });
  }

  /**
   * Takes the next piece of the text. After a stop there is no more text. A stop string that is
   * complete within a piece that `mayStop` denies is text as any other.
   */
  push(piece: string, mayStop = true): StoppedText {
    if (this.stopped) return { text: '', stop: null };
    const seen = this.held.length;
    this.held += piece;
    const found = mayStop ? this.firstComplete(seen) : null;
    if (found) {
      this.stopped = true;
      const text = this.held.slice(0, found.at);
      this.held = '';
      return { text, stop: found.stop };
    }
    const certain = this.held.length - this.longestBeginning();
    const text = this.held.slice(0, certain);
    this.held = this.held.slice(certain);
    return { text, stop: null };
  }

  /** What was held back: the text is over. */
  end(): string {
    const rest = this.held;
    this.held = '';
    this.stopped = true;
    return rest;
  }

  /** The stop string that is complete first behind the `seen` characters in which there is none. */
  private firstComplete(seen: number): { stop: string; at: number } | null {
    let first: { stop: string; at: number } | null = null;
    const endOf = (one: { stop: string; at: number }) => one.at + one.stop.length;
    for (const stop of this.stops) {
      const at = this.held.indexOf(stop, Math.max(0, seen - stop.length + 1));
      if (at < 0) continue;
      const found = { stop, at };
      const sooner = first === null || endOf(found) < endOf(first);
      if (sooner || (first && endOf(found) === endOf(first) && at < first.at)) first = found;
    }
    return first;
  }

  /** Characters at the end of what is held with which some stop string begins. */
  private longestBeginning(): number {
    let longest = 0;
    for (const stop of this.stops) {
      const most = Math.min(stop.length - 1, this.held.length);
      for (let length = most; length > longest; --length) {
        if (this.held.endsWith(stop.slice(0, length))) longest = length;
      }
    }
    return longest;
  }
}
