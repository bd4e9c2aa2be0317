// Sets of code points: the single characters, classes and properties of a pattern.
import { required } from '../required.js';

/** A set of code points. Sets with the same key are equal. */
export interface CharSet {
  readonly key: string;
  has(code: number): boolean;
}

const set = (key: string, has: (code: number) => boolean): CharSet => ({ key, has });

export const ANY = set('any', () => true);

export const single = (code: number): CharSet => set(`${code}`, (value) => value === code);

export const range = (first: number, last: number): CharSet =>
  set(`${first}-${last}`, (code) => code >= first && code <= last);

export const not = (inner: CharSet): CharSet => set(`!(${inner.key})`, (code) => !inner.has(code));

export function union(parts: readonly CharSet[]): CharSet {
  if (parts.length === 1) return required(parts[0]);
  const key = `(${parts.map((part) => part.key).join('|')})`;
  return set(key, (code) => parts.some((part) => part.has(code)));
}

export function intersection(parts: readonly CharSet[]): CharSet {
  if (parts.length === 1) return required(parts[0]);
  const key = `(${parts.map((part) => part.key).join('&')})`;
  return set(key, (code) => parts.every((part) => part.has(code)));
}

/** Returns `inner` with both cases of its letters, by simple case mappings. */
export const foldCase = (inner: CharSet): CharSet =>
  set(`i(${inner.key})`, (code) => casesOf(code).some((item) => inner.has(item)));

function casesOf(code: number): number[] {
  const text = String.fromCodePoint(code);
  const lower = text.toLowerCase();
  const upper = text.toUpperCase();
  const all = [text, lower, upper, upper.toLowerCase(), lower.toUpperCase()];
  return all.flatMap((text) => (isOne(text) ? required(text.codePointAt(0)) : []));
}

const isOne = (text: string): boolean =>
  text.length === 1 || (text.length === 2 && required(text.codePointAt(0)) > 0xffff);

const properties = new Map<string, CharSet | null>();

/**
 * Returns the code points of a Unicode property, such as "L" or "Han"; null for an unknown name.
 */
export function property(name: string): CharSet | null {
  let set = properties.get(name);
  if (set === undefined) {
    set = nativeProperty(name);
    properties.set(name, set);
  }
  return set;
}

function nativeProperty(name: string): CharSet | null {
  if (!/^[\w=]+$/.test(name)) return null;
  for (const text of [name, `Script=${name}`, toTitle(name), `Script=${toTitle(name)}`]) {
    try {
      const pattern = new RegExp(`^\\p{${text}}$`, 'u');
      return set(`\\p{${text}}`, (code) => pattern.test(String.fromCodePoint(code)));
    } catch {}
  }
  return null;
}

const toTitle = (name: string): string =>
  name.toLowerCase().replace(/(?:^|_)[a-z]/g, (letter) => letter.toUpperCase());

/** Returns a property that every engine has. */
const known = (name: string): CharSet => required(property(name));

export const SPACE = known('White_Space');
export const DIGIT = known('Nd');
/** Oniguruma's and Python's \w. */
export const WORD = union(['Alphabetic', 'M', 'Nd', 'Pc'].map(known));
/** Oniguruma's \w outside of classes. */
export const LOOSE_WORD = union([WORD, ...[0xb2, 0xb3, 0xb9].map(single), range(0xbc, 0xbe)]);
export const HEX = union([range(0x30, 0x39), range(0x41, 0x46), range(0x61, 0x66)]);
export const NEWLINE = single(10);

const GRAPH = not(union([SPACE, ...['Cc', 'Cn', 'Cs'].map(known)]));

/** Classes such as [:alpha:], which Oniguruma accepts as properties too. */
export const POSIX: ReadonlyMap<string, CharSet> = new Map([
  ['alpha', known('Alphabetic')],
  ['alnum', union(['Alphabetic', 'Nd'].map(known))],
  ['ascii', range(0, 0x7f)],
  ['blank', union([single(9), known('Zs')])],
  ['cntrl', known('Cc')],
  ['digit', DIGIT],
  ['graph', GRAPH],
  ['lower', known('Lowercase')],
  ['print', union([GRAPH, known('Zs')])],
  ['punct', union(['P', 'S'].map(known))],
  ['space', SPACE],
  ['upper', known('Uppercase')],
  ['word', WORD],
  ['xdigit', HEX],
]);
