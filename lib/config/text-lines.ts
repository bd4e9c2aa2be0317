// Converts offsets of a text to lines and columns: finds the line starts once, and each line by
// bisection.
import { required } from '../runtime/required.js';
import type { SourceLocation } from './config-error.js';

/** The lines of a text. */
export class TextLines {
  /** Offsets of the first character of every line, in order; null before the first at(). */
  private starts: number[] | null = null;

  constructor(private readonly text: string) {}

  /** Returns line and column of `offset`, both from 1. */
  at(offset: number): SourceLocation {
    this.starts ??= lineStarts(this.text);
    let [low, high] = [0, this.starts.length];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (required(this.starts[middle]) <= offset) low = middle;
      else high = middle;
    }
    return { line: low + 1, column: offset - required(this.starts[low]) + 1 };
  }
}

function lineStarts(text: string): number[] {
  const starts = [0];
  for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n', end + 1)) {
    starts.push(end + 1);
  }
  return starts;
}
