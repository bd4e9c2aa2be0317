// Python's string functions for templates. Python indexes code points, JavaScript UTF-16 units. A
// comment such as "title()." names the Python method.
import { required } from '../../runtime/required.js';

/** Python's whitespace, as the content of a character class in an expression with the flag "u". */
export const SPACES =
  '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
const BREAKS = new RegExp(['\\r\\n', '[\\n-\\r\\x1c-\\x1e\\x85\\u2028\\u2029]'].join('|'), 'g');

const SURROGATE = /[\ud800-\udfff]/;

let lastText = '';
let lastLetters: readonly string[] | null = null;

/** Returns the code points of a text; null if each UTF-16 unit is one. */
export function splitLetters(text: string): readonly string[] | null {
  if (text === lastText) return lastLetters;
  lastLetters = SURROGATE.test(text) ? Array.from(text) : null;
  lastText = text;
  return lastLetters;
}

/** len(). */
export const textLength = (text: string): number => splitLetters(text)?.length ?? text.length;

/** Returns the code points [start, end), which must be within the text. */
export function subtext(text: string, start: number, end = Number.POSITIVE_INFINITY): string {
  const letters = splitLetters(text);
  return letters === null ? text.slice(start, end) : letters.slice(start, end).join('');
}

/** Converts the index of a UTF-16 unit to the index of its code point; -1 stays. */
export function letterIndex(text: string, unit: number): number {
  if (unit <= 0 || splitLetters(text) === null) return unit;
  return Array.from(text.slice(0, unit)).length;
}

/** Converts the index of a code point to the index of its first UTF-16 unit. */
export function unitIndex(text: string, index: number): number {
  const letters = splitLetters(text);
  if (letters === null) return Math.min(index, text.length);
  let unit = 0;
  for (let i = 0; i < index && i < letters.length; ++i) unit += required(letters[i]).length;
  return unit;
}

/** Compares two texts by code points: negative if a < b. */
export function compareTexts(a: string, b: string): number {
  if (a === b) return 0;
  let at = 0;
  const shorter = Math.min(a.length, b.length);
  while (at < shorter && a.charCodeAt(at) === b.charCodeAt(at)) at++;
  if (at === shorter) return a.length - b.length;
  const [one, other] = [a.charCodeAt(at), b.charCodeAt(at)];
  const isHigh = (code: number): boolean => code >= 0xd800 && code < 0xe000;
  // Code points of surrogate pairs are above all single units.
  if (isHigh(one) !== isHigh(other)) {
    return (pairAround(a, at) ?? one) - (pairAround(b, at) ?? other);
  }
  return one - other;
}

/** Returns the code point of the surrogate pair at `at`; null for a single unit. */
function pairAround(text: string, at: number): number | null {
  const code = required(text.codePointAt(at));
  if (code > 0xffff) return code;
  const before = at > 0 ? required(text.codePointAt(at - 1)) : 0;
  return before > 0xffff ? before : null;
}

const SPACE = new RegExp(`[${SPACES}]`);
export const isSpace = (letter: string): boolean => SPACE.test(letter);

/** strip(): removes whitespace, or characters of a set. */
export function stripText(
  text: string,
  characters: string | null,
  isLeft: boolean,
  isRight: boolean,
): string {
  const letters = splitLetters(text) ?? text;
  const removed = characters === null ? null : new Set(characters);
  const isGone = (letter: string): boolean => (removed ? removed.has(letter) : isSpace(letter));
  let [start, end] = [0, letters.length];
  while (isLeft && start < end && isGone(required(letters[start]))) start++;
  while (isRight && end > start && isGone(required(letters[end - 1]))) end--;
  if (start === 0 && end === letters.length) return text;
  return typeof letters === 'string'
    ? letters.slice(start, end)
    : letters.slice(start, end).join('');
}

/** splitlines(). */
export function splitLines(text: string, keepsEnds = false): string[] {
  const lines: string[] = [];
  let start = 0;
  for (const { 0: end, index } of text.matchAll(BREAKS)) {
    lines.push(text.slice(start, keepsEnds ? index + end.length : index));
    start = index + end.length;
  }
  if (start < text.length) lines.push(text.slice(start));
  return lines;
}

const WORDS = new RegExp(`[^${SPACES}]+`, 'g');

/** split(). */
export function splitWords(text: string): string[] {
  return text.match(WORDS) ?? [];
}

/** Digits that are not decimal digits, such as superscripts. */
const DIGITS =
  '\\xb2\\xb3\\xb9\\u1369-\\u1371\\u19da\\u2070\\u2074-\\u2079\\u2080-\\u2089\\u2460-\\u2468\\u2474-\\u247c\\u2488-\\u2490\\u24ea\\u24f5-\\u24fd\\u24ff\\u2776-\\u277e\\u2780-\\u2788\\u278a-\\u2792\\u{10a40}-\\u{10a43}\\u{10e60}-\\u{10e68}\\u{11052}-\\u{1105a}\\u{1f100}-\\u{1f10a}';
/** Ideographs with a numeric value. */
const NUMERALS =
  '㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅升半卌叁-叄四壱壹幺廾廿弌-弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零參拾兩零六陸什𠀁𠁤𠃢𠄡𠤪𠦃𠦌𠦜𠫪𠫽𠬙𢎐𢦘𣬛𦉭廾';

const matchWhole = (letters: string): RegExp => new RegExp(`^[${letters}]+$`, 'u');

/** Methods such as isalpha(), by name without "is": a pattern that all letters must match. */
export const CLASSES: Readonly<Record<string, RegExp>> = {
  alpha: matchWhole('\\p{L}'),
  alnum: matchWhole(`\\p{L}\\p{N}${NUMERALS}`),
  decimal: matchWhole('\\p{Nd}'),
  digit: matchWhole(`\\p{Nd}${DIGITS}`),
  numeric: matchWhole(`\\p{N}${NUMERALS}`),
  space: matchWhole(SPACES),
  identifier: /^[\p{XID_Start}_]\p{XID_Continue}*$/u,
};

export const PRINTABLE = /^(?:[^\p{C}\p{Z}]| )*$/u;
const UPPER = /\p{Uppercase}/u;
const LOWER = /\p{Lowercase}/u;
const TITLE = /\p{Lt}/u;

/** isupper(): at least one letter has case, and all of these are upper case. */
export const isUpper = (text: string): boolean =>
  UPPER.test(text) && !LOWER.test(text) && !TITLE.test(text);
export const isLower = (text: string): boolean =>
  LOWER.test(text) && !UPPER.test(text) && !TITLE.test(text);
const isCased = (letter: string): boolean =>
  UPPER.test(letter) || LOWER.test(letter) || TITLE.test(letter);

/** istitle(). */
export function isTitle(text: string): boolean {
  let [found, inWord] = [false, false];
  for (const letter of text) {
    const starts = UPPER.test(letter) || TITLE.test(letter);
    if (starts && inWord) return false;
    const isLow = LOWER.test(letter);
    if (isLow && !inWord) return false;
    inWord = starts || isLow;
    found ||= inWord;
  }
  return found;
}

/** Returns the title case of a letter, which may differ from its upper case. */
function titleLetter(letter: string): string {
  const upper = letter.toUpperCase();
  if (letter < '\x80') return upper;
  if (/[Ǆ-ǌǱ-ǳ]/.test(letter)) return `${upper[0]}`.replace(/[ǄǇǊǱ]/, nextLetter);
  if (/[ა-ჺჽ-ჿ]/.test(letter)) return letter;
  if (/[ßևﬀ-ﬆﬓ-ﬗ]/.test(letter)) {
    const [first = '', ...rest] = upper;
    return first + rest.join('').toLowerCase();
  }
  const parts = letter.normalize('NFD');
  if (!parts.includes('\u0345') || parts.length === 1) return upper;
  return `${parts.replace('\u0345', '').toUpperCase()}\u0345`.normalize('NFC');
}

const nextLetter = (letter: string): string => String.fromCharCode(letter.charCodeAt(0) + 1);

/** capitalize(). */
export function capitalize(text: string): string {
  const [first = ''] = text;
  return titleLetter(first) + toLower(text, first.length);
}

/** title(). */
export function toTitle(text: string): string {
  let inWord = false;
  let [result, start] = ['', 0];
  for (const letter of text) {
    result += inWord ? toLower(text, start, start + letter.length) : titleLetter(letter);
    inWord = isCased(letter);
    start += letter.length;
  }
  return result;
}

/**
 * Returns [start, end) in lower case. Converts the whole text, because the form of a sigma depends
 * on the letters around it.
 */
function toLower(text: string, start: number, end = text.length): string {
  const part = text.slice(start, end);
  if (!part.includes('Σ')) return part.toLowerCase();
  const before = text.slice(0, start).toLowerCase().length;
  const after = text.slice(end).length;
  const all = text.toLowerCase();
  return all.slice(before, all.length - after);
}

/** swapcase(). */
export function swapCase(text: string): string {
  let start = 0;
  const letters = Array.from(text, (letter) => {
    const at = start;
    start += letter.length;
    if (UPPER.test(letter)) return toLower(text, at, start);
    return LOWER.test(letter) ? letter.toUpperCase() : letter;
  });
  return letters.join('');
}

/** casefold(). */
export function foldCase(text: string): string {
  if (!/[\x80-\uffff]/.test(text)) return text.toLowerCase();
  return Array.from(text, (letter) => {
    if (letter === 'ı') return letter;
    if (/[Ꭰ-Ᏽᏸ-ᏽꭰ-ꮿ]/.test(letter)) return letter.toUpperCase();
    return letter === 'ẞ' ? 'ss' : letter.toUpperCase().toLowerCase();
  }).join('');
}
