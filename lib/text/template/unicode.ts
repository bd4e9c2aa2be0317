// Texts by code points, as Python counts them, and its classes of characters.
import { required } from '../../runtime/required.js';

/** Inside brackets of an expression with the flag "u". */
export const SPACES =
  '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
const BREAKS = new RegExp(['\\r\\n', '[\\n-\\r\\x1c-\\x1e\\x85\\u2028\\u2029]'].join('|'), 'g');

const SURROGATE = /[\ud800-\udfff]/;

let lastText = '';
let lastLetters: readonly string[] | null = null;

/** The code points of a text; null if each of its units is one. */
export function lettersOf(text: string): readonly string[] | null {
  if (text === lastText) return lastLetters;
  lastLetters = SURROGATE.test(text) ? Array.from(text) : null;
  lastText = text;
  return lastLetters;
}

/** len(). */
export const textLength = (text: string): number => lettersOf(text)?.length ?? text.length;

/** The code points of [start, end), both within the text. */
export function subtext(text: string, start: number, end = Number.POSITIVE_INFINITY): string {
  const letters = lettersOf(text);
  return letters === null ? text.slice(start, end) : letters.slice(start, end).join('');
}

/** The index of a code point for that of its first unit; -1 stays. */
export function letterIndex(text: string, unit: number): number {
  if (unit <= 0 || lettersOf(text) === null) return unit;
  return Array.from(text.slice(0, unit)).length;
}

/** The first unit of the code point at an index. */
export function unitIndex(text: string, index: number): number {
  const letters = lettersOf(text);
  if (letters === null) return Math.min(index, text.length);
  let unit = 0;
  for (let i = 0; i < index && i < letters.length; ++i) unit += required(letters[i]).length;
  return unit;
}

/** Negative where a < b by code points. */
export function compareTexts(a: string, b: string): number {
  if (a === b) return 0;
  let at = 0;
  const shorter = Math.min(a.length, b.length);
  while (at < shorter && a.charCodeAt(at) === b.charCodeAt(at)) at++;
  if (at === shorter) return a.length - b.length;
  const [one, other] = [a.charCodeAt(at), b.charCodeAt(at)];
  const isHigh = (code: number): boolean => code >= 0xd800 && code < 0xe000;
  // Units of a pair stand for code points above all single units.
  if (isHigh(one) !== isHigh(other)) {
    return (codeOver(a, at) ?? one) - (codeOver(b, at) ?? other);
  }
  return one - other;
}

/** The code point that holds the unit, where it takes two. */
function codeOver(text: string, at: number): number | null {
  const code = required(text.codePointAt(at));
  if (code > 0xffff) return code;
  const before = at > 0 ? required(text.codePointAt(at - 1)) : 0;
  return before > 0xffff ? before : null;
}

const SPACE = new RegExp(`[${SPACES}]`);
export const isSpace = (letter: string): boolean => SPACE.test(letter);

/** strip(), of white space or of a set of characters. */
export function stripped(
  text: string,
  characters: string | null,
  isLeft: boolean,
  isRight: boolean,
): string {
  const letters = lettersOf(text) ?? text;
  const gone = characters === null ? null : new Set(characters);
  const isGone = (letter: string): boolean => (gone ? gone.has(letter) : isSpace(letter));
  let [start, end] = [0, letters.length];
  while (isLeft && start < end && isGone(required(letters[start]))) start++;
  while (isRight && end > start && isGone(required(letters[end - 1]))) end--;
  if (start === 0 && end === letters.length) return text;
  return typeof letters === 'string'
    ? letters.slice(start, end)
    : letters.slice(start, end).join('');
}

/** splitlines(). */
export function linesOf(text: string, keepsEnds = false): string[] {
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
export function wordsOf(text: string): string[] {
  return text.match(WORDS) ?? [];
}

/** Numbers that are digits, but not decimal ones: superscripts, and digits in circles. */
const DIGITS =
  '\\xb2\\xb3\\xb9\\u1369-\\u1371\\u19da\\u2070\\u2074-\\u2079\\u2080-\\u2089\\u2460-\\u2468\\u2474-\\u247c\\u2488-\\u2490\\u24ea\\u24f5-\\u24fd\\u24ff\\u2776-\\u277e\\u2780-\\u2788\\u278a-\\u2792\\u{10a40}-\\u{10a43}\\u{10e60}-\\u{10e68}\\u{11052}-\\u{1105a}\\u{1f100}-\\u{1f10a}';
/** Ideographs that Unicode gives a number. */
const NUMERALS =
  '㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅升半卌叁-叄四壱壹幺廾廿弌-弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零參拾兩零六陸什𠀁𠁤𠃢𠄡𠤪𠦃𠦌𠦜𠫪𠫽𠬙𢎐𢦘𣬛𦉭廾';

const whole = (letters: string): RegExp => new RegExp(`^[${letters}]+$`, 'u');

/** Methods such as isalpha(), by their name without "is": the class of all letters of the text. */
export const CLASSES: Readonly<Record<string, RegExp>> = {
  alpha: whole('\\p{L}'),
  alnum: whole(`\\p{L}\\p{N}${NUMERALS}`),
  decimal: whole('\\p{Nd}'),
  digit: whole(`\\p{Nd}${DIGITS}`),
  numeric: whole(`\\p{N}${NUMERALS}`),
  space: whole(SPACES),
  identifier: /^[\p{XID_Start}_]\p{XID_Continue}*$/u,
};

export const PRINTABLE = /^(?:[^\p{C}\p{Z}]| )*$/u;
const UPPER = /\p{Uppercase}/u;
const LOWER = /\p{Lowercase}/u;
const TITLE = /\p{Lt}/u;

/** isupper(): some letter has a case, and all of these are upper. */
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

/** Letters that a word begins with in another form than their upper case. */
function titleLetter(letter: string): string {
  const upper = letter.toUpperCase();
  if (letter < '\x80') return upper;
  if (/[Ǆ-ǌǱ-ǳ]/.test(letter)) return `${upper[0]}`.replace(/[ǄǇǊǱ]/, nextCode);
  if (/[ა-ჺჽ-ჿ]/.test(letter)) return letter;
  if (/[ßևﬀ-ﬆﬓ-ﬗ]/.test(letter)) {
    const [first = '', ...rest] = upper;
    return first + rest.join('').toLowerCase();
  }
  const parts = letter.normalize('NFD');
  if (!parts.includes('\u0345') || parts.length === 1) return upper;
  return `${parts.replace('\u0345', '').toUpperCase()}\u0345`.normalize('NFC');
}

const nextCode = (letter: string): string => String.fromCharCode(letter.charCodeAt(0) + 1);

/** capitalize(). */
export function capitalized(text: string): string {
  const [first = ''] = text;
  return titleLetter(first) + lower(text, first.length);
}

/** title(). */
export function titled(text: string): string {
  let inWord = false;
  let [result, start] = ['', 0];
  for (const letter of text) {
    result += inWord ? lower(text, start, start + letter.length) : titleLetter(letter);
    inWord = isCased(letter);
    start += letter.length;
  }
  return result;
}

/** A part of the text in lower case. The text before a sigma decides whether it ends a word. */
function lower(text: string, start: number, end = text.length): string {
  const part = text.slice(start, end);
  if (!part.includes('Σ')) return part.toLowerCase();
  const before = text.slice(0, start).toLowerCase().length;
  const after = text.slice(end).length;
  const all = text.toLowerCase();
  return all.slice(before, all.length - after);
}

/** swapcase(). */
export function swapped(text: string): string {
  let start = 0;
  const letters = Array.from(text, (letter) => {
    const at = start;
    start += letter.length;
    if (UPPER.test(letter)) return lower(text, at, start);
    return LOWER.test(letter) ? letter.toUpperCase() : letter;
  });
  return letters.join('');
}

/** casefold(). */
export function folded(text: string): string {
  if (!/[\x80-\uffff]/.test(text)) return text.toLowerCase();
  return Array.from(text, (letter) => {
    if (letter === 'ı') return letter;
    if (/[Ꭰ-Ᏽᏸ-ᏽꭰ-ꮿ]/.test(letter)) return letter.toUpperCase();
    return letter === 'ẞ' ? 'ss' : letter.toUpperCase().toLowerCase();
  }).join('');
}
