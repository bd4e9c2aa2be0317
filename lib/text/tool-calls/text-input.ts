// Input of parsers that are generators: they yield while text is missing.

/** A running parser; it yields to wait for text. */
export type Parser<Result = void> = Generator<void, Result>;

/** Maximum whitespace before a marker that isBefore() skips. */
const MAX_SPACES = 64;

/**
 * Unread text of an answer. Generator methods wait for more text if their result depends on it. So
 * results do not depend on how the text is split. Memory holds only the text since mark() and a
 * possible start of a marker.
 */
export class TextInput {
  private rest = '';
  private isOver = false;
  private marked: string[] | null = null;

  push(text: string): void {
    this.rest += text;
  }

  /** Ends the text. */
  close(): void {
    this.isOver = true;
  }

  /** Starts to keep the text for unmark(). */
  mark(): void {
    this.marked = [];
  }

  /** Returns the text read since mark(), and stops keeping it. */
  unmark(): string {
    const text = this.marked?.join('') ?? '';
    this.marked = null;
    return text;
  }

  /** Reads `count` available characters. */
  take(count: number): string {
    const text = this.rest.slice(0, count);
    this.rest = this.rest.slice(count);
    this.marked?.push(text);
    return text;
  }

  /** The available text. */
  get ready(): string {
    return this.rest;
  }

  /** Waits for text. Returns false at the end. */
  *waitForText(): Parser<boolean> {
    return this.rest !== '' || (yield* this.waitForMore());
  }

  /** Returns the next character without reading it; '' at the end. */
  *peek(): Parser<string> {
    yield* this.waitForText();
    return this.rest.charAt(0);
  }

  *startsWith(text: string): Parser<boolean> {
    while (this.rest.length < text.length && text.startsWith(this.rest)) {
      if (!(yield* this.waitForMore())) return false;
    }
    return this.rest.startsWith(text);
  }

  /** Reads `text` if it follows. Returns whether it followed. */
  *skip(text: string): Parser<boolean> {
    if (!(yield* this.startsWith(text))) return false;
    this.take(text.length);
    return true;
  }

  /** Reads whitespace. */
  *skipSpaces(): Parser {
    while (yield* this.waitForText()) {
      const { length } = this.rest.trimStart();
      this.take(this.rest.length - length);
      if (length > 0) return;
    }
  }

  /**
   * Passes text on up to the first of `markers`, which stays unread and is returned. Returns null
   * at the end of the text.
   */
  *passUntil(markers: readonly string[], pass: (text: string) => void): Parser<string | null> {
    while (yield* this.waitForText()) {
      const match = findFirst(markers, this.rest);
      if (match) {
        if (match.at > 0) pass(this.take(match.at));
        return match.marker;
      }
      const certain = this.rest.length - partialMarkerLength(markers, this.rest);
      if (certain > 0) pass(this.take(certain));
      if (this.rest !== '' && !(yield* this.waitForMore())) pass(this.take(this.rest.length));
    }
    return null;
  }

  /**
   * Reads at most `max` characters up to the first of `markers`, which stays unread. Returns null,
   * and reads nothing, if no marker follows within `max` characters.
   */
  *readUpTo(markers: readonly string[], max: number): Parser<string | null> {
    const longest = Math.max(...markers.map(({ length }) => length));
    for (;;) {
      const match = findFirst(markers, this.rest.slice(0, max + longest));
      if (match) return match.at <= max ? this.take(match.at) : null;
      if (this.rest.length >= max + longest || !(yield* this.waitForMore())) return null;
    }
  }

  /** Returns whether whitespace and one of `markers` follow, or the end of the text. */
  *isBefore(markers: readonly string[]): Parser<boolean> {
    for (;;) {
      const after = this.rest.trimStart();
      if (this.rest.length - after.length > MAX_SPACES) return false;
      if (markers.some((marker) => after.startsWith(marker))) return true;
      if (after !== '' && !markers.some((marker) => marker.startsWith(after))) return false;
      if (!(yield* this.waitForMore())) return after === '';
    }
  }

  private *waitForMore(): Parser<boolean> {
    const { length } = this.rest;
    while (this.rest.length === length && !this.isOver) yield;
    return this.rest.length > length;
  }
}

/** Returns the marker that starts first in `text`; of several at one position, the longest. */
function findFirst(
  markers: readonly string[],
  text: string,
): { marker: string; at: number } | null {
  let first: { marker: string; at: number } | null = null;
  for (const marker of markers) {
    const at = text.indexOf(marker);
    if (at >= 0 && (first === null || at < first.at)) first = { marker, at };
  }
  return first;
}

/** Returns the length of the longest suffix of `text` that is the start of a marker. */
function partialMarkerLength(markers: readonly string[], text: string): number {
  let longest = 0;
  for (const marker of markers) {
    for (let length = Math.min(marker.length - 1, text.length); length > longest; --length) {
      if (text.endsWith(marker.slice(0, length))) longest = length;
    }
  }
  return longest;
}
