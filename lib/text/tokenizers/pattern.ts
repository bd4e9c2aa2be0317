// The pattern of a Split or Replace step, which the Rust crate runs by Oniguruma.

import { dataError } from '../../runtime/refused.js';
import { RegexFault } from '../../runtime/regex/fault.js';
import { Regex } from '../../runtime/regex/regex.js';
import { Fields } from './fields.js';

/** Bounds of the matches in a text: [start, end, start, end, ...]. */
export type Finder = (text: string) => number[];

/** Reads { "String": ... } or { "Regex": ... } under `pattern`. Throws DS_DATA. */
export function readPattern(fields: Fields): Finder {
  const place = `${fields.place}.pattern`;
  const given = fields.get('pattern');
  const pattern =
    typeof given === 'string' ? new Fields(place, { String: given }) : new Fields(place, given);
  const literal = pattern.get('String');
  if (literal === undefined) return regexFinder(pattern.text('Regex'), `${place}.Regex`);
  const text = pattern.text('String');
  return text === '' ? regexFinder('', place) : (whole) => occurrences(whole, text);
}

/** Throws DS_DATA for a pattern that is wrong, not supported, or too slow on a text. */
export function regexFinder(source: string, place: string): Finder {
  const regex = guarded(place, () => new Regex(source, { dialect: 'oniguruma' }));
  return (text) => guarded(place, () => regex.bounds(text));
}

function guarded<T>(place: string, body: () => T): T {
  try {
    return body();
  } catch (cause) {
    if (!(cause instanceof RegexFault)) throw cause;
    throw dataError(place, 'a supported regular expression', cause.message);
  }
}

function occurrences(text: string, part: string): number[] {
  const bounds: number[] = [];
  for (let at = text.indexOf(part); at >= 0; at = text.indexOf(part, at + part.length)) {
    bounds.push(at, at + part.length);
  }
  return bounds;
}

/** `text` with `content` in place of each match. */
export function replaceAll(text: string, find: Finder, content: string): string {
  const bounds = find(text);
  if (bounds.length === 0) return text;
  let replaced = '';
  let at = 0;
  for (let i = 0; i < bounds.length; i += 2) {
    replaced += text.slice(at, bounds[i]) + content;
    at = bounds[i + 1] as number;
  }
  return replaced + text.slice(at);
}
