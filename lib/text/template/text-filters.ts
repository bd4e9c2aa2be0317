// Jinja2's filters that read or write one value: texts, numbers, JSON.

import { defined, required } from '../../runtime/required.js';
import { divide, multiply, power } from './arithmetic.js';
import { readAttributeOnly } from './attributes.js';
import { formatFixed, roundFloat } from './digits.js';
import { escapeValue } from './escape.js';
import {
  requireBounded,
  requireText,
  spend,
  TemplateFault,
  typeError,
  valueError,
} from './fault.js';
import { dumps } from './json.js';
import { requireIndex, toFloatOrNull, truncateFloat } from './numbers.js';
import { percentFormat, percentMarkup } from './percent-format.js';
import { repr, str } from './print.js';
import { readFloat, readInteger } from './read-number.js';
import { requireLength, slice } from './sequences.js';
import { type Argument, type Body, orDefault } from './signature.js';
import { callString, centerText } from './string-methods.js';
import { SPACES, splitLines, splitWords, stripText } from './unicode.js';
import { quoteUrl } from './urls.js';
import {
  Dict,
  Float,
  type Keywords,
  Markup,
  NO_KEYWORDS,
  normalizeInteger,
  startIteration,
  Tuple,
  toBoolean,
  toIntegerOrNull,
  toList,
  toTextOrNull,
  typeName,
  Undefined,
  type Value,
} from './values.js';
import { wrapText } from './wrap.js';

/** An error that only filters raise. */
export const filterError = (message: string): TemplateFault =>
  new TemplateFault('FilterArgumentError', message);

/** Returns a text unchanged, marked or not; other values as str() prints them. */
const toText = (value: Value): string | Markup => (value instanceof Markup ? value : str(value));

const method =
  (name: string): Body =>
  (value: Value, ...args: readonly Argument[]) =>
    callString(
      toText(value),
      name,
      args.filter((arg) => arg !== undefined),
      NO_KEYWORDS,
    );

const WORD_STARTS = new RegExp(`([-${SPACES}({\\[<]+)`, 'u');

function title(value: Value): Value {
  const text = toText(value);
  const parts = str(text).split(WORD_STARTS);
  return parts
    .map((part) => {
      const [first = ''] = part;
      return first.toUpperCase() + part.slice(first.length).toLowerCase();
    })
    .join('');
}

function replaceText(value: Value, old: Value, by: Value, count: Argument): Value {
  const max = count === undefined || count === null ? -1 : count;
  return callString(str(value), 'replace', [str(old), str(by), max], NO_KEYWORDS);
}

function indent(value: Value, width: Argument, first: Argument, blank: Argument): Value {
  const text = toTextOrNull(value);
  if (value instanceof Undefined) throw value.fault();
  if (text === null)
    throw typeError(`unsupported operand type(s) for +=: '${typeName(value)}' and 'str'`);
  const size = orDefault(width, 4);
  const blanks = toTextOrNull(size) ?? ' '.repeat(requireSize(size));
  const lines = splitLines(`${text}\n`);
  requireText(text.length + blanks.length * lines.length);
  spend(lines.length);
  const isBlank = toBoolean(blank ?? false);
  const body = lines.map((line, i) => (i > 0 && (isBlank || line !== '') ? blanks + line : line));
  const whole = (toBoolean(first ?? false) ? blanks : '') + body.join('\n');
  return value instanceof Markup ? new Markup(whole) : whole;
}

function requireSize(value: Value): number {
  if (toIntegerOrNull(value) === null) {
    throw typeError(`can't multiply sequence by non-int of type '${typeName(value)}'`);
  }
  const size = Math.max(0, requireIndex(value));
  requireText(size);
  return size;
}

function truncate(
  value: Value,
  length: Argument,
  isCut: Argument,
  end: Argument,
  leeway: Argument,
): Value {
  const max = orDefault(length, 255);
  const close = orDefault(end, '...');
  const room = leeway === undefined || leeway === null ? 5 : leeway;
  if (requireIndex(max) < requireLength(close) || requireIndex(room) < 0) {
    const message = `expected length >= ${requireLength(close)}, got ${str(max)}`;
    throw new TemplateFault('AssertionError', message);
  }
  if (requireLength(value) <= requireIndex(max) + requireIndex(room)) return value;
  const kept = slice(value, [null, requireIndex(max) - requireLength(close), null]);
  const text = toTextOrNull(kept);
  if (text === null)
    throw typeError(`can only concatenate ${typeName(value)} (not "str") to ${typeName(value)}`);
  const at = text.lastIndexOf(' ');
  const whole = toBoolean(isCut ?? false) || at < 0 ? text : text.slice(0, at);
  return value instanceof Markup
    ? new Markup(whole + escapeValue(close))
    : whole + requireString(close);
}

function requireString(value: Value): string {
  const text = toTextOrNull(value);
  if (text === null) throw typeError(`can only concatenate str (not "${typeName(value)}") to str`);
  return text;
}

function wordWrap(
  value: Value,
  width: Argument,
  breaksWords: Argument,
  separator: Argument,
  breaksHyphens: Argument,
): Value {
  const text = toTextOrNull(value);
  if (value instanceof Undefined) throw value.fault();
  if (text === null) {
    throw new TemplateFault(
      'AttributeError',
      `'${typeName(value)}' object has no attribute 'splitlines'`,
    );
  }
  const by = separator === undefined || separator === null ? '\n' : requireString(separator);
  const options = {
    width: requireIndex(orDefault(width, 79)),
    breaksWords: toBoolean(orDefault(breaksWords, true)),
    breaksHyphens: toBoolean(orDefault(breaksHyphens, true)),
  };
  return requireBounded(
    splitLines(text)
      .map((line) => wrapText(line, options).join(by))
      .join(by),
  );
}

/** Converts, or returns the default if the conversion raises one of `kinds`. */
function convertOrDefault(
  convert: () => Value,
  otherwise: () => Value,
  kinds: readonly string[],
): Value {
  try {
    return convert();
  } catch (error) {
    if (error instanceof TemplateFault && kinds.includes(error.kind)) return otherwise();
    throw error;
  }
}

const NUMBER_FAULTS = ['TypeError', 'ValueError'];

function toInteger(value: Value, otherwise: Argument, base: Argument): Value {
  const text = toTextOrNull(value);
  const direct = (): Value => {
    if (text !== null) return readInteger(text, requireIndex(orDefault(base, 10)));
    if (value instanceof Float) return truncateFloat(value.value);
    const integer = toIntegerOrNull(value);
    if (integer !== null) return integer;
    if (value instanceof Undefined) throw value.fault();
    throw typeError(`int() argument must be a string or a real number, not '${typeName(value)}'`);
  };
  const byFloat = (): Value => truncateFloat(floatFrom(value));
  const kinds = [...NUMBER_FAULTS, 'OverflowError'];
  return convertOrDefault(
    direct,
    () => convertOrDefault(byFloat, () => orDefault(otherwise, 0), kinds),
    NUMBER_FAULTS,
  );
}

/** float(). Throws TypeError and ValueError. */
function floatFrom(value: Value): number {
  const text = toTextOrNull(value);
  if (text !== null) return readFloat(text);
  if (value instanceof Undefined) throw value.fault();
  const float = toFloatOrNull(value);
  if (float !== null) return float;
  throw typeError(`float() argument must be a string or a real number, not '${typeName(value)}'`);
}

function toFloat(value: Value, otherwise: Argument): Value {
  const convert = (): Value => new Float(floatFrom(value));
  return convertOrDefault(convert, () => orDefault(otherwise, new Float(0)), NUMBER_FAULTS);
}

function absoluteValue(value: Value): Value {
  if (value instanceof Float) return new Float(Math.abs(value.value));
  const integer = toIntegerOrNull(value);
  if (integer !== null) return integer < 0 ? normalizeInteger(-BigInt(integer)) : integer;
  throw typeError(`bad operand type for abs(): '${typeName(value)}'`);
}

function round(value: Value, precision: Argument, how: Argument): Value {
  const method = orDefault(how, 'common');
  if (method !== 'common' && method !== 'ceil' && method !== 'floor') {
    throw filterError('method must be common, ceil or floor');
  }
  const places = orDefault(precision, 0);
  if (method !== 'common') {
    const scaled = multiply(value, power(10, places));
    const float = toFloatOrNull(scaled);
    if (float === null) throw typeError(`must be real number, not ${typeName(scaled)}`);
    const whole = scaled instanceof Float ? truncateFloat(Math[method](float)) : scaled;
    return divide(whole, power(10, places));
  }
  if (value instanceof Float) {
    if (places === null) return truncateFloat(roundFloat(value.value, 0));
    return new Float(roundFloat(value.value, requireIndex(places)));
  }
  const integer = toIntegerOrNull(value);
  if (integer === null) {
    throw typeError(`type ${typeName(value)} doesn't define __round__ method`);
  }
  if (places === null || requireIndex(places) >= 0) return integer;
  return roundInteger(BigInt(integer), -requireIndex(places));
}

/** Rounds to a multiple of 10^decimals, halves to even. */
function roundInteger(value: bigint, decimals: number): Value {
  if (decimals > 5000) return 0;
  const unit = 10n ** BigInt(decimals);
  const size = value < 0n ? -value : value;
  const [whole, twice] = [size / unit, (size % unit) * 2n];
  const up = twice > unit || (twice === unit && whole % 2n === 1n);
  const result = (up ? whole + 1n : whole) * unit;
  return normalizeInteger(value < 0n ? -result : result);
}

const UNITS = ['K', 'M', 'G', 'T', 'P', 'E', 'Z', 'Y'];

function formatFileSize(value: Value, isBinary: Argument): Value {
  const bytes = floatFrom(value);
  const base = toBoolean(isBinary ?? false) ? 1024 : 1000;
  if (bytes === 1) return '1 Byte';
  if (bytes < base) return `${str(truncateFloat(bytes))} Bytes`;
  if (Number.isNaN(bytes)) return base === 1024 ? 'nan YiB' : 'nan YB';
  const formatUnit = (i: number): string => {
    const unit = required(UNITS[i]);
    return base === 1024 ? `${unit}iB` : unit === 'K' ? 'kB' : `${unit}B`;
  };
  const at = UNITS.findIndex((_, i) => bytes < base ** (i + 2));
  const last = at < 0 ? UNITS.length - 1 : at;
  return `${formatFixed((base * bytes) / base ** (last + 2), 1)} ${formatUnit(last)}`;
}

function format(value: Value, args: readonly Value[], keywords: Keywords): Value {
  if (args.length > 0 && keywords.size > 0) {
    throw filterError("can't handle positional and keyword arguments at the same time");
  }
  const values = keywords.size > 0 ? Dict.of(keywords) : new Tuple(args);
  const text = toText(value);
  return typeof text === 'string' ? percentFormat(text, values) : percentMarkup(text.text, values);
}

/** tojson: json.dumps() with the options that transformers sets. */
function toJson(
  value: Value,
  ensureAscii: Argument,
  indentation: Argument,
  separators: Argument,
  sortKeys: Argument,
): Value {
  const level = indentation ?? null;
  const text = toTextOrNull(level);
  const [items, keys] = readSeparators(separators ?? null, level !== null);
  return dumps(value, {
    ensureAscii: toBoolean(ensureAscii ?? false),
    indent: level === null ? null : (text ?? ' '.repeat(requireSize(level))),
    itemSeparator: items,
    keySeparator: keys,
    sortKeys: toBoolean(sortKeys ?? false),
  });
}

function readSeparators(separators: Value, isIndented: boolean): [string, string] {
  if (separators === null) return [isIndented ? ',' : ', ', ': '];
  const pair = toList(separators);
  if (pair.length !== 2) {
    const few = pair.length < 2;
    throw valueError(
      few ? 'not enough values to unpack (expected 2)' : 'too many values to unpack (expected 2)',
    );
  }
  return [requireString(defined(pair[0])), requireString(defined(pair[1]))];
}

const ENTITIES: Readonly<Record<string, string>> = {
  lt: '<',
  gt: '>',
  amp: '&',
  quot: '"',
  apos: "'",
  nbsp: '\xa0',
};

function stripTags(value: Value): Value {
  const bare = str(value)
    .replace(/<!--[\s\S]*?-->/g, '')
    .replace(/<[\s\S]*?>/g, '');
  return splitWords(bare)
    .join(' ')
    .replace(/&(?:#(\d+)|#[xX]([0-9a-fA-F]+)|(\w+));/g, (whole, code, hex, name) => {
      if (name !== undefined) return ENTITIES[name] ?? whole;
      const point = code === undefined ? Number.parseInt(hex, 16) : Number(code);
      return point > 0x10ffff ? '\ufffd' : String.fromCodePoint(point);
    });
}

function xmlAttributes(value: Value, autospace: Argument): Value {
  if (!(value instanceof Dict)) {
    if (value instanceof Undefined) throw value.fault();
    throw new TemplateFault(
      'AttributeError',
      `'${typeName(value)}' object has no attribute 'items'`,
    );
  }
  const parts: string[] = [];
  for (const [key, item] of value.entries()) {
    if (item === null || item instanceof Undefined) continue;
    if (/[\s/>=]/.test(requireString(key))) {
      throw valueError(`Invalid character in attribute name: ${repr(key)}`);
    }
    parts.push(`${escapeValue(key)}="${escapeValue(item)}"`);
  }
  return (parts.length > 0 && toBoolean(orDefault(autospace, true)) ? ' ' : '') + parts.join(' ');
}

function urlEncode(value: Value): Value {
  const text = toTextOrNull(value);
  if (text !== null || startIteration(value) === null) return quoteUrl(text ?? str(value), false);
  const pairs = value instanceof Dict ? value.entries() : toList(value).map((pair) => toList(pair));
  return pairs
    .map((pair) => {
      if (pair.length !== 2) throw valueError('not enough values to unpack (expected 2)');
      return `${quoteUrl(str(defined(pair[0])), true)}=${quoteUrl(str(defined(pair[1])), true)}`;
    })
    .join('&');
}

const WORDS = /[\p{L}\p{N}_]+/gu;

/** Filters by name: parameters and body. */
export const TEXT_FILTERS: Readonly<Record<string, readonly [string, Body]>> = {
  abs: ['value /', absoluteValue],
  attr: [
    'value name',
    (value: Value, name: Value) => readAttributeOnly(value, requireString(name)),
  ],
  capitalize: ['s', method('capitalize')],
  center: [
    'value width?',
    (value: Value, width: Argument) => {
      const own = toText(value);
      if (typeof own === 'string') return centerText(own, requireIndex(orDefault(width, 80)));
      return new Markup(centerText(own.text, requireIndex(orDefault(width, 80))));
    },
  ],
  default: ['value default_value? boolean?', applyDefault],
  d: ['value default_value? boolean?', applyDefault],
  e: ['value /', (value: Value) => new Markup(escapeValue(value))],
  escape: ['value /', (value: Value) => new Markup(escapeValue(value))],
  filesizeformat: ['value binary?', formatFileSize],
  float: ['value default?', toFloat],
  forceescape: ['value', (value: Value) => new Markup(escapeValue(str(value)))],
  format: ['value *args **keywords', format],
  indent: ['s width? first? blank?', indent],
  int: ['value default? base?', toInteger],
  lower: ['s', method('lower')],
  pprint: ['value', (value: Value) => repr(value)],
  replace: ['s old new count?', replaceText],
  round: ['value precision? method?', round],
  safe: ['value', (value: Value) => new Markup(str(value))],
  string: ['object', toText],
  striptags: ['value', stripTags],
  title: ['s', title],
  tojson: ['x ensure_ascii? indent? separators? sort_keys?', toJson],
  trim: ['value chars?', trim],
  truncate: ['s length? killwords? end? leeway?', truncate],
  upper: ['s', method('upper')],
  urlencode: ['value', urlEncode],
  wordcount: ['s', (value: Value) => str(toText(value)).match(WORDS)?.length ?? 0],
  wordwrap: ['s width? break_long_words? wrapstring? break_on_hyphens?', wordWrap],
  xmlattr: ['d autospace?', xmlAttributes],
};

function trim(value: Value, characters: Argument): Value {
  if (characters === undefined || characters === null) {
    const text = toText(value);
    if (typeof text === 'string') return stripText(text, null, true, true);
  }
  return method('strip')(value, characters ?? null);
}

function applyDefault(value: Value, otherwise: Argument, isForFalse: Argument): Value {
  const isGone =
    value instanceof Undefined || (toBoolean(isForFalse ?? false) && !toBoolean(value));
  return isGone ? orDefault(otherwise, '') : value;
}
