// The methods of Python's str.

import { defined, required } from '../../runtime/required.js';
import { escapeHtml } from './escape.js';
import { requireBounded, requireText, spend, spendText, typeError, valueError } from './fault.js';
import { isNumber, requireIndex } from './numbers.js';
import { type Argument, type Body, type BoundFunction, bindFunction } from './signature.js';
import {
  CLASSES,
  capitalize,
  foldCase,
  isLower,
  isTitle,
  isUpper,
  letterIndex,
  PRINTABLE,
  SPACES,
  splitLines,
  splitWords,
  stripText,
  subtext,
  swapCase,
  textLength,
  toTitle,
  unitIndex,
} from './unicode.js';
import {
  Dict,
  DONE,
  isList,
  iterate,
  type Keywords,
  Markup,
  MISSING,
  Tuple,
  toBoolean,
  toIntegerOrNull,
  toTextOrNull,
  typeName,
  type Value,
} from './values.js';

/** A text argument. Throws TypeError. */
function requireTextArgument(method: string, value: Argument): string {
  const text = value === undefined ? null : toTextOrNull(value);
  if (text !== null) return text;
  throw typeError(`${method} argument must be str, not ${typeName(value ?? null)}`);
}

/** An optional text argument; None counts as missing. Throws TypeError. */
const requireOptionalText = (method: string, value: Argument): string | null =>
  value === undefined || value === null ? null : requireTextArgument(method, value);

/** Returns the bounds of find() and similar methods, as code points within the text. */
function clampBounds(length: number, start: Argument, end: Argument): [number, number] {
  const clamp = (bound: Argument, otherwise: number): number => {
    if (bound === undefined || bound === null) return otherwise;
    const index = requireIndex(bound);
    return Math.min(length, Math.max(0, index < 0 ? index + length : index));
  };
  const first = start === undefined || start === null ? 0 : requireIndex(start);
  return [first > length ? first : clamp(start, 0), clamp(end, length)];
}

interface SearchMethod {
  method: string;
  isLast: boolean;
  throws: boolean;
}

function defineSearch({ method, isLast, throws }: SearchMethod): Body {
  return (text: string, part: Value, start: Argument, end: Argument) => {
    const needle = requireTextArgument(`${method}()`, part);
    const [first, last] = clampBounds(textLength(text), start, end);
    const [from, to] = [unitIndex(text, first), unitIndex(text, last)];
    const within = text.slice(0, to);
    const isInside = first <= last && needle.length <= to - from;
    const index = isLast
      ? within.lastIndexOf(needle, to - needle.length)
      : within.indexOf(needle, from);
    const at = isInside && index >= from ? letterIndex(text, index) : -1;
    if (at < 0 && throws) throw valueError('substring not found');
    return at;
  };
}

/** Defines startswith() or endswith(), for a text or a tuple of texts. */
function defineFixCheck(method: string, isEnd: boolean): Body {
  return (text: string, fixes: Value, start: Argument, end: Argument) => {
    const [first, last] = clampBounds(textLength(text), start, end);
    const part = first === 0 && end === undefined ? text : subtext(text, first, last);
    const isInside = first <= last;
    const has = (fix: Value): boolean => {
      const affix = toTextOrNull(fix);
      if (affix === null) {
        throw typeError(`${method} first arg must be str or a tuple of str, not ${typeName(fix)}`);
      }
      return isInside && (isEnd ? part.endsWith(affix) : part.startsWith(affix));
    };
    return fixes instanceof Tuple ? fixes.items.some(has) : has(fixes);
  };
}

function split(text: string, separator: Argument, max: Argument): string[] {
  const by = requireOptionalText('split()', separator);
  const limit = max === undefined ? -1 : requireIndex(max);
  if (by === '') throw valueError('empty separator');
  if (by === null) return splitBlank(text, limit);
  if (limit < 0) return text.split(by);
  const parts: string[] = [];
  let start = 0;
  for (let at = text.indexOf(by); at >= 0 && parts.length < limit; at = text.indexOf(by, start)) {
    parts.push(text.slice(start, at));
    start = at + by.length;
  }
  return [...parts, text.slice(start)];
}

const BLANK = new RegExp(`[${SPACES}]`);

function splitBlank(text: string, limit: number): string[] {
  if (limit < 0) return splitWords(text);
  const words: string[] = [];
  let rest = stripText(text, null, true, false);
  while (rest !== '' && words.length < limit) {
    const at = rest.search(BLANK);
    if (at < 0) break;
    words.push(rest.slice(0, at));
    rest = stripText(rest.slice(at), null, true, false);
  }
  return rest === '' ? words : [...words, rest];
}

function splitRight(text: string, separator: Argument, max: Argument): string[] {
  const by = requireOptionalText('rsplit()', separator);
  const limit = max === undefined ? -1 : requireIndex(max);
  if (limit < 0 || by === '') return split(text, separator, max);
  const parts: string[] = [];
  if (by === null) {
    let rest = stripText(text, null, false, true);
    while (rest !== '' && parts.length < limit) {
      const word = lastWord(rest);
      if (word.length === rest.length) break;
      parts.unshift(word);
      rest = stripText(rest.slice(0, rest.length - word.length), null, false, true);
    }
    return rest === '' ? parts : [rest, ...parts];
  }
  let end = text.length;
  while (parts.length < limit) {
    const at = end < by.length ? -1 : text.lastIndexOf(by, end - by.length);
    if (at < 0) break;
    parts.unshift(text.slice(at + by.length, end));
    end = at;
  }
  return [text.slice(0, end), ...parts];
}

function lastWord(text: string): string {
  let start = text.length;
  while (start > 0 && !BLANK.test(required(text[start - 1]))) start--;
  return text.slice(start);
}

function definePartition(method: string, isLast: boolean): Body {
  return (text: string, separator: Value) => {
    const by = requireTextArgument(`${method}()`, separator);
    if (by === '') throw valueError('empty separator');
    const at = isLast ? text.lastIndexOf(by) : text.indexOf(by);
    if (at < 0) return new Tuple(isLast ? ['', '', text] : [text, '', '']);
    return new Tuple([text.slice(0, at), by, text.slice(at + by.length)]);
  };
}

function replace(text: string, old: Value, by: Value, count: Argument): string {
  const [from, to] = [requireTextArgument('replace()', old), requireTextArgument('replace()', by)];
  const limit = count === undefined ? -1 : requireIndex(count);
  if (from === '') return interleave(text, to, limit);
  const pieces = limit < 0 ? text.split(from) : split(text, from, limit);
  spend(pieces.length);
  requireText(text.length + (to.length - from.length) * (pieces.length - 1));
  return pieces.join(to);
}

/** replace() of an empty text: inserts `by` before each letter and at the end. */
function interleave(text: string, by: string, limit: number): string {
  const letters = Array.from(text);
  const max = limit < 0 ? letters.length + 1 : Math.min(limit, letters.length + 1);
  spend(letters.length);
  requireText(text.length + by.length * max);
  const body = letters.map((letter, i) => (i < max ? by + letter : letter)).join('');
  return max > letters.length ? body + by : body;
}

/** Defines a method that fills a text to a width. `leftOf` returns the fill on the left. */
function defineJustify(method: string, leftOf: (room: number, width: number) => number): Body {
  return (text: string, width: Value, fill: Argument) => {
    const fillText = fill === undefined ? ' ' : requireTextArgument(method, fill);
    if (textLength(fillText) !== 1) {
      throw typeError('The fill character must be exactly one character long');
    }
    return justifyText(text, requireIndex(width), fillText, leftOf);
  };
}

function justifyText(
  text: string,
  width: number,
  fill: string,
  leftOf: (room: number, width: number) => number,
): string {
  const room = Math.max(0, width - textLength(text));
  requireText(room * fill.length);
  spendText(room);
  const left = leftOf(room, width);
  return fill.repeat(left) + text + fill.repeat(room - left);
}

/** center(): an extra blank goes to the left if the width is odd. */
export const centerText = (text: string, width: number, fill = ' '): string =>
  justifyText(text, width, fill, leftOfCenter);

const leftOfCenter = (room: number, width: number): number =>
  Math.floor(room / 2) + (room & width & 1);

function fillWithZeros(text: string, width: Value): string {
  const [, sign = '', digits = ''] = /^([+-]?)([\s\S]*)$/.exec(text) ?? [];
  const room = Math.max(0, requireIndex(width) - textLength(text));
  requireText(room);
  return sign + '0'.repeat(room) + digits;
}

/** expandtabs(): inserts blanks up to the next multiple of the tab size. */
function expand(text: string, tabSize: Argument): string {
  const size = tabSize === undefined ? 8 : requireIndex(tabSize);
  let column = 0;
  let result = '';
  for (const letter of text) {
    if (letter === '\t') {
      const blanks = size > 0 ? size - (column % size) : 0;
      requireText(result.length + blanks);
      result += ' '.repeat(blanks);
      column += blanks;
    } else {
      result += letter;
      column = letter === '\n' || letter === '\r' ? 0 : column + 1;
    }
  }
  return result;
}

/** text.join(). Throws TypeError for items that are not texts. */
function join(text: string, items: Value): string {
  const next = iterate(items);
  let result = '';
  let count = 0;
  for (let item = next(); item !== DONE; item = next()) {
    spend();
    const itemText = toTextOrNull(item);
    if (itemText === null) {
      throw typeError(`sequence item ${count}: expected str instance, ${typeName(item)} found`);
    }
    result += count++ === 0 ? itemText : text + itemText;
    requireText(result.length);
  }
  return result;
}

/** maketrans(): creates a table of code points for translate(). */
function makeTable(from: Value, to: Argument, removed: Argument): Value {
  const table = new Dict();
  if (to === undefined) {
    if (!(from instanceof Dict)) {
      throw typeError('if you give only one argument to maketrans it must be a dict');
    }
    for (const [key, value] of from.entries()) {
      const text = toTextOrNull(key);
      if (text !== null && textLength(text) !== 1) {
        throw valueError('string keys in translate table must be of length 1');
      }
      if (text === null && toIntegerOrNull(key) === null) {
        throw typeError('keys in translate table must be strings or integers');
      }
      table.set(text === null ? key : required(text.codePointAt(0)), value);
    }
    return table;
  }
  const [source, target] = [
    Array.from(requireTextArgument('maketrans()', from)),
    Array.from(requireTextArgument('maketrans()', to)),
  ];
  if (source.length !== target.length) {
    throw valueError('the first two maketrans arguments must have equal length');
  }
  const code = (letter: string): number => required(letter.codePointAt(0));
  for (const [i, letter] of source.entries()) table.set(code(letter), code(required(target[i])));
  for (const letter of requireOptionalText('maketrans()', removed) ?? '')
    table.set(code(letter), null);
  return table;
}

function translate(text: string, table: Value): string {
  if (!(table instanceof Dict) && !isList(table)) {
    throw typeError(`'${typeName(table)}' object is not subscriptable`);
  }
  const letters = Array.from(text, (letter) => {
    spend();
    const code = required(letter.codePointAt(0));
    const found =
      table instanceof Dict
        ? table.get(code)
        : code < table.length
          ? defined(table[code])
          : MISSING;
    if (found === MISSING) return letter;
    if (found === null) return '';
    if (isNumber(found)) return String.fromCodePoint(requireIndex(found));
    return requireTextArgument('character mapping', found);
  });
  return requireBounded(letters.join(''));
}

const removePrefix = (text: string, prefix: Value): string => {
  const prefixText = requireTextArgument('removeprefix()', prefix);
  return text.startsWith(prefixText) ? text.slice(prefixText.length) : text;
};

const removeSuffix = (text: string, suffix: Value): string => {
  const suffixText = requireTextArgument('removesuffix()', suffix);
  return suffixText !== '' && text.endsWith(suffixText) ? text.slice(0, -suffixText.length) : text;
};

function count(text: string, part: Value, start: Argument, end: Argument): number {
  const needle = requireTextArgument('count()', part);
  const [first, last] = clampBounds(textLength(text), start, end);
  if (first > last) return 0;
  const searched = subtext(text, first, last);
  return needle === '' ? textLength(searched) + 1 : searched.split(needle).length - 1;
}

const strip =
  (isLeft: boolean, isRight: boolean): Body =>
  (text: string, characters: Argument) =>
    stripText(text, requireOptionalText('strip', characters), isLeft, isRight);

const METHODS: Readonly<Record<string, readonly [string, Body]>> = {
  capitalize: ['', capitalize],
  casefold: ['', foldCase],
  center: ['width fill? /', defineJustify('center()', leftOfCenter)],
  count: ['part start? end? /', count],
  endswith: ['suffix start? end? /', defineFixCheck('endswith', true)],
  expandtabs: ['tabsize?', expand],
  find: ['part start? end? /', defineSearch({ method: 'find', isLast: false, throws: false })],
  index: ['part start? end? /', defineSearch({ method: 'index', isLast: false, throws: true })],
  isascii: ['', (text: string) => !/[\x80-\uffff]/.test(text)],
  islower: ['', isLower],
  isprintable: ['', (text: string) => PRINTABLE.test(text)],
  istitle: ['', isTitle],
  isupper: ['', isUpper],
  join: ['items /', join],
  ljust: ['width fill? /', defineJustify('ljust()', () => 0)],
  lower: ['', (text: string) => text.toLowerCase()],
  lstrip: ['characters? /', strip(true, false)],
  maketrans: [
    'from to? gone? /',
    (_: string, from: Value, to: Argument, gone: Argument) => makeTable(from, to, gone),
  ],
  partition: ['separator /', definePartition('partition', false)],
  removeprefix: ['prefix /', removePrefix],
  removesuffix: ['suffix /', removeSuffix],
  replace: ['old new count? /', replace],
  rfind: ['part start? end? /', defineSearch({ method: 'rfind', isLast: true, throws: false })],
  rindex: ['part start? end? /', defineSearch({ method: 'rindex', isLast: true, throws: true })],
  rjust: ['width fill? /', defineJustify('rjust()', (room) => room)],
  rpartition: ['separator /', definePartition('rpartition', true)],
  rsplit: ['sep? maxsplit?', splitRight],
  rstrip: ['characters? /', strip(false, true)],
  split: ['sep? maxsplit?', split],
  splitlines: [
    'keepends?',
    (text: string, keeps: Argument) => splitLines(text, toBoolean(keeps ?? false)),
  ],
  startswith: ['prefix start? end? /', defineFixCheck('startswith', false)],
  strip: ['characters? /', strip(true, true)],
  swapcase: ['', swapCase],
  title: ['', toTitle],
  translate: ['table /', translate],
  upper: ['', (text: string) => text.toUpperCase()],
  zfill: ['width /', fillWithZeros],
};

/** Methods as functions whose first argument is the text. */
const BOUND = new Map<string, BoundFunction>();
for (const [name, [parameters, body]] of Object.entries(METHODS)) {
  BOUND.set(name, bindMethod(name, parameters, body));
}
for (const [name, pattern] of Object.entries(CLASSES)) {
  BOUND.set(
    `is${name}`,
    bindMethod(`is${name}`, '', (text: string) => pattern.test(text)),
  );
}

function bindMethod(name: string, parameters: string, body: Body): BoundFunction {
  // The text itself cannot be a keyword.
  const isPositional = parameters.endsWith('/') || parameters === '';
  return bindFunction(
    name,
    isPositional ? `self ${parameters.replace(' /', '')} /` : `self / ${parameters}`,
    body,
  );
}

/** Methods of a marked text that return marked text and do not escape their arguments. */
const PLAIN = new Set([
  'count',
  'endswith',
  'find',
  'index',
  'maketrans',
  'rfind',
  'rindex',
  'startswith',
  'removeprefix',
  'removesuffix',
  'casefold',
]);

export const isStringMethod = (name: string): boolean => BOUND.has(name);

/** Calls a method of a text. */
export function callString(
  text: string | Markup,
  name: string,
  args: readonly Value[],
  keywords: Keywords,
): Value {
  const method = required(BOUND.get(name));
  if (typeof text === 'string') {
    spendText(text.length);
    return method([text, ...args], keywords);
  }
  spendText(text.text.length);
  if (PLAIN.has(name) || name.startsWith('is')) return method([text.text, ...args], keywords);
  const takesTexts = name !== 'split' && name !== 'rsplit' && name !== 'splitlines';
  const escapedArgs = takesTexts ? args.map(escapeArgument) : args;
  return markValue(method([text.text, ...escapedArgs], keywords));
}

function escapeArgument(value: Value): Value {
  if (typeof value === 'string') return escapeHtml(value);
  if (isList(value)) return value.map(escapeArgument);
  return value;
}

function markValue(value: Value): Value {
  if (typeof value === 'string') return new Markup(value);
  if (isList(value)) return value.map(markValue);
  return value instanceof Tuple ? new Tuple(value.items.map(markValue)) : value;
}
