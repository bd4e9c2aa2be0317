// Text that arrives in pieces, for parsers that are generators: they yield while text is missing.

/** A parser at work; it yields to wait for text. */
export type Reading<Result = void> = Generator<void, Result>;

/** White space before a marker that isBefore() looks through. */
const MAX_SPACES = 64;

/**
 * The text that is not read yet. Methods with a generator wait for more text if the answer depends
 * on it. So the results do not depend on where the pieces are cut. Only a possible beginning of a
 * marker waits in memory, and the text since mark().
 */
export class TextInput {
  private rest = '';
  private isOver = false;
  private kept: string[] | null = null;

  push(text: string): void {
    this.rest += text;
  }

  /** No text follows. */
  close(): void {
    this.isOver = true;
  }

  /** From here on, the text is kept for unmark(). */
  mark(): void {
    this.kept = [];
  }

  /** Returns the text since mark() that was read, and forgets it. */
  unmark(): string {
    const text = this.kept?.join('') ?? '';
    this.kept = null;
    return text;
  }

  /** Reads `count` characters that are there. */
  take(count: number): string {
    const text = this.rest.slice(0, count);
    this.rest = this.rest.slice(count);
    this.kept?.push(text);
    return text;
  }

  /** The text that is there. */
  get ready(): string {
    return this.rest;
  }

  /** Waits for text; false at the end of the text. */
  *some(): Reading<boolean> {
    return this.rest !== '' || (yield* this.more());
  }

  /** The next character, unread; '' at the end. */
  *peek(): Reading<string> {
    yield* this.some();
    return this.rest.charAt(0);
  }

  *startsWith(text: string): Reading<boolean> {
    while (this.rest.length < text.length && text.startsWith(this.rest)) {
      if (!(yield* this.more())) return false;
    }
    return this.rest.startsWith(text);
  }

  /** Reads `text` if it follows. */
  *skip(text: string): Reading<boolean> {
    if (!(yield* this.startsWith(text))) return false;
    this.take(text.length);
    return true;
  }

  /** Reads white space. */
  *spaces(): Reading {
    while (yield* this.some()) {
      const { length } = this.rest.trimStart();
      this.take(this.rest.length - length);
      if (length > 0) return;
    }
  }

  /**
   * Passes text on up to the first of `markers`, which stays unread and is returned. At the end of
   * the text it returns null.
   */
  *until(markers: readonly string[], pass: (text: string) => void): Reading<string | null> {
    while (yield* this.some()) {
      const found = firstOf(markers, this.rest);
      if (found) {
        if (found.at > 0) pass(this.take(found.at));
        return found.marker;
      }
      const certain = this.rest.length - beginningOf(markers, this.rest);
      if (certain > 0) pass(this.take(certain));
      if (this.rest !== '' && !(yield* this.more())) pass(this.take(this.rest.length));
    }
    return null;
  }

  /**
   * Reads at most `max` characters up to the first of `markers`, which stays unread. Null, with
   * nothing read, if no marker follows so soon.
   */
  *upTo(markers: readonly string[], max: number): Reading<string | null> {
    const longest = Math.max(...markers.map(({ length }) => length));
    for (;;) {
      const found = firstOf(markers, this.rest.slice(0, max + longest));
      if (found) return found.at <= max ? this.take(found.at) : null;
      if (this.rest.length >= max + longest || !(yield* this.more())) return null;
    }
  }

  /** Returns whether white space and one of `markers` follow, or the end of the text. */
  *isBefore(markers: readonly string[]): Reading<boolean> {
    for (;;) {
      const after = this.rest.trimStart();
      if (this.rest.length - after.length > MAX_SPACES) return false;
      if (markers.some((marker) => after.startsWith(marker))) return true;
      if (after !== '' && !markers.some((marker) => marker.startsWith(after))) return false;
      if (!(yield* this.more())) return after === '';
    }
  }

  private *more(): Reading<boolean> {
    const { length } = this.rest;
    while (this.rest.length === length && !this.isOver) yield;
    return this.rest.length > length;
  }
}

/** The marker that begins first, the longest of them, in `text`. */
function firstOf(markers: readonly string[], text: string): { marker: string; at: number } | null {
  let first: { marker: string; at: number } | null = null;
  for (const marker of markers) {
    const at = text.indexOf(marker);
    if (at >= 0 && (first === null || at < first.at)) first = { marker, at };
  }
  return first;
}

/** Length of the longest suffix of `text` that begins a marker. */
function beginningOf(markers: readonly string[], text: string): number {
  let longest = 0;
  for (const marker of markers) {
    for (let length = Math.min(marker.length - 1, text.length); length > longest; --length) {
      if (text.endsWith(marker.slice(0, length))) longest = length;
    }
  }
  return longest;
}
