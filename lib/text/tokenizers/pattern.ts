// Patterns of Split and Replace steps, which the Rust crate runs with Oniguruma.

import { dataError } from '../../runtime/input-errors.js';
import { RegexFault } from '../../runtime/regex/fault.js';
import { Regex } from '../../runtime/regex/regex.js';
import { required } from '../../runtime/required.js';
import { Fields } from './fields.js';

/** Bounds of the matches in a text: [start, end, start, end, ...]. */
export type MatchFinder = (text: string) => number[];

/**
 * Reads { "String": ... } or { "Regex": ... } in the key `pattern`. Throws DS_DATA for another
 * form, or an unsupported regular expression.
 */
export function readPattern(fields: Fields): MatchFinder {
  const location = `${fields.location}.pattern`;
  const given = fields.get('pattern');
  const pattern =
    typeof given === 'string'
      ? new Fields(location, { String: given })
      : new Fields(location, given);
  const literal = pattern.get('String');
  if (literal === undefined) return createRegexFinder(pattern.text('Regex'), `${location}.Regex`);
  const text = pattern.text('String');
  return text === '' ? createRegexFinder('', location) : (whole) => findOccurrences(whole, text);
}

/**
 * Creates a finder of a regular expression. Throws DS_DATA for a pattern that is invalid, not
 * supported, or too slow on a text.
 */
export function createRegexFinder(source: string, location: string): MatchFinder {
  const regex = toDataErrors(location, () => new Regex(source, { dialect: 'oniguruma' }));
  // In the crate, an empty text has no match, not even an empty one.
  return (text) => (text === '' ? [] : toDataErrors(location, () => regex.bounds(text)));
}

function toDataErrors<T>(location: string, body: () => T): T {
  try {
    return body();
  } catch (cause) {
    if (!(cause instanceof RegexFault)) throw cause;
    throw dataError(location, 'a supported regular expression', cause.message);
  }
}

/** Returns the bounds of the occurrences of `part`, which must not be empty. */
export function findOccurrences(text: string, part: string): number[] {
  const bounds: number[] = [];
  for (let at = text.indexOf(part); at >= 0; at = text.indexOf(part, at + part.length)) {
    bounds.push(at, at + part.length);
  }
  return bounds;
}

/** Converts a text to the text that a later step reads. */
export interface Replacement {
  (text: string): string;
  /**
   * Returns how many units of the result come from the first `count` units of the text. Default:
   * the result length of these units alone.
   */
  readonly leading?: (text: string, count: number) => number;
}

/** Returns how many units of `step(text)` come from the first `count` units of the text. */
export function countLeading(step: Replacement, text: string, count: number): number {
  return step.leading ? step.leading(text, count) : step(text.slice(0, count)).length;
}

/** Maximum characters of a replaced text: a few steps that double it would exhaust memory. */
const MAX_REPLACED = 2 ** 26;

/**
 * Reads `pattern` and `content`, and returns a step that replaces each match by `content`. The step
 * throws DS_DATA if the text becomes too long.
 */
export function readReplacement(fields: Fields): Replacement {
  const find = readPattern(fields);
  const content = fields.text('content');
  const replace = (text: string): string => {
    const bounds = find(text);
    if (bounds.length === 0) return text;
    if (text.length + (bounds.length / 2) * content.length > MAX_REPLACED) {
      const expected = `texts of at most ${MAX_REPLACED} characters`;
      throw dataError(
        fields.location,
        expected,
        'a longer text',
        'Shorten the text: this step of the tokenizer lengthens it.',
      );
    }
    let replaced = '';
    let at = 0;
    for (let i = 0; i < bounds.length; i += 2) {
      replaced += text.slice(at, bounds[i]) + content;
      at = required(bounds[i + 1]);
    }
    return replaced + text.slice(at);
  };
  // The content is at the position of the match's last character.
  const leading = (text: string, count: number): number => {
    const bounds = find(text);
    let [lead, at] = [0, 0];
    for (let i = 0; i < bounds.length && required(bounds[i]) <= count; i += 2) {
      const end = required(bounds[i + 1]);
      lead += required(bounds[i]) - at;
      at = end;
      if (end > count) return lead;
      lead += content.length;
    }
    return lead + Math.max(0, count - at);
  };
  return Object.assign(replace, { leading });
}
