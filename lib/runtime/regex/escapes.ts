// Escapes and classes of a pattern.
import { required } from '../required.js';
import {
  type CharSet,
  DIGIT,
  foldCase,
  HEX,
  intersection,
  not,
  POSIX,
  property,
  range,
  SPACE,
  single,
  union,
  WORD,
} from './char-set.js';
import type { Reader } from './reader.js';

/**
 * The syntax of a pattern: Oniguruma's, as in the Rust crate tokenizers, or that of Python's re, as
 * in PEFT.
 */
export type Dialect = 'oniguruma' | 'python';

/** Settings in force where a set stands. */
interface SetContext {
  readonly dialect: Dialect;
  readonly ignoresCase: boolean;
}

const CONTROLS: ReadonlyMap<string, number> = new Map([
  ...([
    ['n', 10],
    ['t', 9],
    ['r', 13],
    ['f', 12],
    ['v', 11],
    ['a', 7],
    ['e', 27],
  ] as const),
]);

const SHORTHANDS: ReadonlyMap<string, CharSet> = new Map([
  ...([
    ['d', DIGIT],
    ['D', not(DIGIT)],
    ['s', SPACE],
    ['S', not(SPACE)],
  ] as const),
  ...([
    ['w', WORD],
    ['W', not(WORD)],
    ['h', HEX],
    ['H', not(HEX)],
  ] as const),
]);

const LARGEST = 0x10ffff;

/**
 * Returns the set or code point of an escape after its backslash. Returns null if it is neither,
 * such as \b; the reader then stays before the letter.
 */
export function readEscape(reader: Reader, { dialect }: SetContext): CharSet | number | null {
  const letter = reader.peek();
  if (letter === 'p' || letter === 'P') return readProperty(reader);
  const isHex = letter === 'h' || letter === 'H';
  const shorthand = isHex && dialect === 'python' ? undefined : SHORTHANDS.get(letter);
  const control = CONTROLS.get(letter);
  if (shorthand !== undefined || control !== undefined) {
    reader.next();
    return shorthand ?? required(control);
  }
  const code =
    reader.take(/x\{([0-9A-Fa-f]{1,8})\}/y) ??
    reader.take(/x([0-9A-Fa-f]{1,2})/y) ??
    reader.take(/u([0-9A-Fa-f]{4})/y) ??
    reader.take(/U([0-9A-Fa-f]{8})/y);
  if (code !== null) return codePoint(reader, Number.parseInt(required(code[1]), 16));
  const octal = reader.take(/0[0-7]{0,2}/y);
  if (octal !== null) return Number.parseInt(octal[0], 8);
  if (/^[A-Za-z0-9]$/.test(letter) || letter === '') return null;
  return required(reader.next().codePointAt(0));
}

function codePoint(reader: Reader, code: number): number {
  if (code <= LARGEST) return code;
  throw reader.fault('expected a code point of Unicode');
}

function readProperty(reader: Reader): CharSet {
  const start = reader.at;
  const isNegative = reader.next() === 'P';
  const match = reader.take(/\{(\^?)([^{}]*)\}/y) ?? reader.take(/()([A-Z])/y);
  if (match === null) throw reader.fault('expected a property such as \\p{L}', start);
  const name = required(match[2]).replace(/[\s-]/g, '');
  const plain = name.toLowerCase().replaceAll('_', '');
  // [:punct:] includes symbols, \p{Punct} does not.
  const ownSet = (plain === 'punct' ? property('P') : POSIX.get(plain)) ?? property(name);
  if (ownSet === null) throw reader.fault(`the property \\p{${name}} is unknown`, start);
  return isNegative === (match[1] === '^') ? ownSet : not(ownSet);
}

/** Returns the set between "[" and "]"; the reader is after "[". */
export function readClass(reader: Reader, context: SetContext, depth = 0): CharSet {
  if (depth > 50) throw reader.fault('classes nest too deeply');
  const start = reader.at - 1;
  const isNegative = reader.skip('^');
  const operands: CharSet[] = [];
  let items: CharSet[] = [];
  if (reader.skip(']')) items.push(single(0x5d));
  for (;;) {
    if (reader.isAtEnd) throw reader.fault('expected "]" for the "["', start);
    if (reader.skip(']')) break;
    if (context.dialect === 'oniguruma' && reader.skip('&&')) {
      operands.push(union(items));
      items = [];
    } else items.push(readItem(reader, context, depth));
  }
  operands.push(union(items));
  const members = intersection(operands);
  const cased = context.ignoresCase && depth === 0 ? foldCase(members) : members;
  return isNegative ? not(cased) : cased;
}

function readItem(reader: Reader, context: SetContext, depth: number): CharSet {
  const first = readMember(reader, context, depth);
  const isRange = /^-[^\]]/su.test(reader.text.slice(reader.at, reader.at + 2));
  if (typeof first !== 'number') return first;
  if (!isRange || reader.text.startsWith('-&&', reader.at)) return single(first);
  const before = reader.at;
  reader.next();
  const last = readMember(reader, context, depth);
  if (typeof last !== 'number') {
    // Before a class, "-" is a character.
    reader.at = before;
    return single(first);
  }
  if (last < first) throw reader.fault('expected a range in ascending order', before);
  return range(first, last);
}

function readMember(reader: Reader, context: SetContext, depth: number): CharSet | number {
  if (context.dialect === 'oniguruma' && reader.peek() === '[') {
    const posix = reader.take(/\[:(\^?)([a-z]+):\]/y);
    const ownSet = posix && POSIX.get(required(posix[2]));
    if (ownSet) return posix[1] === '^' ? not(ownSet) : ownSet;
    if (posix) throw reader.fault(`the class [:${posix[2]}:] is unknown`);
    reader.next();
    return readClass(reader, context, depth + 1);
  }
  if (!reader.skip('\\')) return required(reader.next().codePointAt(0));
  if (reader.peek() === 'b') {
    reader.next();
    return 8;
  }
  const parsed = readEscape(reader, context);
  if (parsed !== null) return parsed;
  const letter = reader.peek();
  if (letter === '' || context.dialect === 'python') {
    throw reader.fault(`the escape \\${letter} is not supported`);
  }
  return required(reader.next().codePointAt(0));
}
