// The filters of jinja2 that read or write one value: texts, numbers, JSON.

import { defined, required } from '../../runtime/required.js';
import { divide, multiply, power } from './arithmetic.js';
import { attributeAlone } from './attributes.js';
import { fixed, rounded } from './digits.js';
import { escapedText } from './escape.js';
import { bounded, requireText, spend, TemplateFault, typeError, valueError } from './fault.js';
import { dumps } from './json.js';
import { floatOf, indexOf, truncated } from './numbers.js';
import { percentFormat, percentMarkup } from './percent-format.js';
import { repr, str } from './print.js';
import { readFloat, readInteger } from './read-number.js';
import { lengthOf, slice } from './sequences.js';
import { type Argument, type Body, given } from './signature.js';
import { callString, centered } from './string-methods.js';
import { linesOf, SPACES, stripped, wordsOf } from './unicode.js';
import { urlQuoted } from './urls.js';
import {
  Dict,
  Float,
  integerOf,
  isTrue,
  iterationOf,
  type Keywords,
  listOf,
  Markup,
  NO_KEYWORDS,
  normalized,
  Tuple,
  textOf,
  typeName,
  Undefined,
  type Value,
} from './values.js';
import { wrapped } from './wrap.js';

/** A fault of a filter's own. */
export const filterError = (message: string): TemplateFault =>
  new TemplateFault('FilterArgumentError', message);

/** A text as it is, marked or not, and other values as str() prints them. */
const softText = (value: Value): string | Markup => (value instanceof Markup ? value : str(value));

const method =
  (name: string): Body =>
  (value: Value, ...args: readonly Argument[]) =>
    callString(
      softText(value),
      name,
      args.filter((arg) => arg !== undefined),
      NO_KEYWORDS,
    );

const WORD_STARTS = new RegExp(`([-${SPACES}({\\[<]+)`, 'u');

function title(value: Value): Value {
  const own = softText(value);
  const parts = str(own).split(WORD_STARTS);
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
  const text = textOf(value);
  if (value instanceof Undefined) throw value.fault();
  if (text === null)
    throw typeError(`unsupported operand type(s) for +=: '${typeName(value)}' and 'str'`);
  const size = given(width, 4);
  const blanks = textOf(size) ?? ' '.repeat(sizeOf(size));
  const lines = linesOf(`${text}\n`);
  requireText(text.length + blanks.length * lines.length);
  spend(lines.length);
  const isBlank = isTrue(blank ?? false);
  const body = lines.map((line, i) => (i > 0 && (isBlank || line !== '') ? blanks + line : line));
  const whole = (isTrue(first ?? false) ? blanks : '') + body.join('\n');
  return value instanceof Markup ? new Markup(whole) : whole;
}

function sizeOf(value: Value): number {
  if (integerOf(value) === null) {
    throw typeError(`can't multiply sequence by non-int of type '${typeName(value)}'`);
  }
  const size = Math.max(0, indexOf(value));
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
  const max = given(length, 255);
  const close = given(end, '...');
  const room = leeway === undefined || leeway === null ? 5 : leeway;
  if (indexOf(max) < lengthOf(close) || indexOf(room) < 0) {
    const message = `expected length >= ${lengthOf(close)}, got ${str(max)}`;
    throw new TemplateFault('AssertionError', message);
  }
  if (lengthOf(value) <= indexOf(max) + indexOf(room)) return value;
  const kept = slice(value, [null, indexOf(max) - lengthOf(close), null]);
  const text = textOf(kept);
  if (text === null)
    throw typeError(`can only concatenate ${typeName(value)} (not "str") to ${typeName(value)}`);
  const at = text.lastIndexOf(' ');
  const whole = isTrue(isCut ?? false) || at < 0 ? text : text.slice(0, at);
  return value instanceof Markup
    ? new Markup(whole + escapedText(close))
    : whole + requireString(close);
}

function requireString(value: Value): string {
  const text = textOf(value);
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
  const text = textOf(value);
  if (value instanceof Undefined) throw value.fault();
  if (text === null) {
    throw new TemplateFault(
      'AttributeError',
      `'${typeName(value)}' object has no attribute 'splitlines'`,
    );
  }
  const by = separator === undefined || separator === null ? '\n' : requireString(separator);
  const options = {
    width: indexOf(given(width, 79)),
    breaksWords: isTrue(given(breaksWords, true)),
    breaksHyphens: isTrue(given(breaksHyphens, true)),
  };
  return bounded(
    linesOf(text)
      .map((line) => wrapped(line, options).join(by))
      .join(by),
  );
}

/** Converts, or returns the default if the value is not a number. */
function orElse(convert: () => Value, otherwise: () => Value, kinds: readonly string[]): Value {
  try {
    return convert();
  } catch (error) {
    if (error instanceof TemplateFault && kinds.includes(error.kind)) return otherwise();
    throw error;
  }
}

const NUMBER_FAULTS = ['TypeError', 'ValueError'];

function toInteger(value: Value, otherwise: Argument, base: Argument): Value {
  const text = textOf(value);
  const direct = (): Value => {
    if (text !== null) return readInteger(text, indexOf(given(base, 10)));
    if (value instanceof Float) return truncated(value.value);
    const integer = integerOf(value);
    if (integer !== null) return integer;
    if (value instanceof Undefined) throw value.fault();
    throw typeError(`int() argument must be a string or a real number, not '${typeName(value)}'`);
  };
  const byFloat = (): Value => truncated(floatFrom(value));
  const kinds = [...NUMBER_FAULTS, 'OverflowError'];
  return orElse(direct, () => orElse(byFloat, () => given(otherwise, 0), kinds), NUMBER_FAULTS);
}

/** float(). Throws TypeError and ValueError. */
function floatFrom(value: Value): number {
  const text = textOf(value);
  if (text !== null) return readFloat(text);
  if (value instanceof Undefined) throw value.fault();
  const float = floatOf(value);
  if (float !== null) return float;
  throw typeError(`float() argument must be a string or a real number, not '${typeName(value)}'`);
}

function toFloat(value: Value, otherwise: Argument): Value {
  const convert = (): Value => new Float(floatFrom(value));
  return orElse(convert, () => given(otherwise, new Float(0)), NUMBER_FAULTS);
}

function absolute(value: Value): Value {
  if (value instanceof Float) return new Float(Math.abs(value.value));
  const integer = integerOf(value);
  if (integer !== null) return integer < 0 ? normalized(-BigInt(integer)) : integer;
  throw typeError(`bad operand type for abs(): '${typeName(value)}'`);
}

function round(value: Value, precision: Argument, how: Argument): Value {
  const method = given(how, 'common');
  if (method !== 'common' && method !== 'ceil' && method !== 'floor') {
    throw filterError('method must be common, ceil or floor');
  }
  const places = given(precision, 0);
  if (method !== 'common') {
    const scaled = multiply(value, power(10, places));
    const float = floatOf(scaled);
    if (float === null) throw typeError(`must be real number, not ${typeName(scaled)}`);
    const whole = scaled instanceof Float ? truncated(Math[method](float)) : scaled;
    return divide(whole, power(10, places));
  }
  if (value instanceof Float) {
    if (places === null) return truncated(rounded(value.value, 0));
    return new Float(rounded(value.value, indexOf(places)));
  }
  const integer = integerOf(value);
  if (integer === null) {
    throw typeError(`type ${typeName(value)} doesn't define __round__ method`);
  }
  if (places === null || indexOf(places) >= 0) return integer;
  return roundedInteger(BigInt(integer), -indexOf(places));
}

/** Rounds to a multiple of 10^decimals, halves to even. */
function roundedInteger(value: bigint, decimals: number): Value {
  if (decimals > 5000) return 0;
  const unit = 10n ** BigInt(decimals);
  const size = value < 0n ? -value : value;
  const [whole, twice] = [size / unit, (size % unit) * 2n];
  const up = twice > unit || (twice === unit && whole % 2n === 1n);
  const result = (up ? whole + 1n : whole) * unit;
  return normalized(value < 0n ? -result : result);
}

const UNITS = ['K', 'M', 'G', 'T', 'P', 'E', 'Z', 'Y'];

function fileSize(value: Value, isBinary: Argument): Value {
  const bytes = floatFrom(value);
  const base = isTrue(isBinary ?? false) ? 1024 : 1000;
  if (bytes === 1) return '1 Byte';
  if (bytes < base) return `${str(truncated(bytes))} Bytes`;
  if (Number.isNaN(bytes)) return base === 1024 ? 'nan YiB' : 'nan YB';
  const named = (i: number): string => {
    const unit = required(UNITS[i]);
    return base === 1024 ? `${unit}iB` : unit === 'K' ? 'kB' : `${unit}B`;
  };
  const at = UNITS.findIndex((_, i) => bytes < base ** (i + 2));
  const last = at < 0 ? UNITS.length - 1 : at;
  return `${fixed((base * bytes) / base ** (last + 2), 1)} ${named(last)}`;
}

function format(value: Value, args: readonly Value[], keywords: Keywords): Value {
  if (args.length > 0 && keywords.size > 0) {
    throw filterError("can't handle positional and keyword arguments at the same time");
  }
  const values = keywords.size > 0 ? Dict.of(keywords) : new Tuple(args);
  const own = softText(value);
  return typeof own === 'string' ? percentFormat(own, values) : percentMarkup(own.text, values);
}

/** Options of json.dumps() that transformers gives its filter. */
function toJson(
  value: Value,
  ensureAscii: Argument,
  indentation: Argument,
  separators: Argument,
  sortKeys: Argument,
): Value {
  const level = indentation ?? null;
  const text = textOf(level);
  const [items, keys] = separatorsOf(separators ?? null, level !== null);
  return dumps(value, {
    ensureAscii: isTrue(ensureAscii ?? false),
    indent: level === null ? null : (text ?? ' '.repeat(sizeOf(level))),
    itemSeparator: items,
    keySeparator: keys,
    sortKeys: isTrue(sortKeys ?? false),
  });
}

function separatorsOf(separators: Value, isIndented: boolean): [string, string] {
  if (separators === null) return [isIndented ? ',' : ', ', ': '];
  const pair = listOf(separators);
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
  return wordsOf(bare)
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
    parts.push(`${escapedText(key)}="${escapedText(item)}"`);
  }
  return (parts.length > 0 && isTrue(given(autospace, true)) ? ' ' : '') + parts.join(' ');
}

function urlEncode(value: Value): Value {
  const text = textOf(value);
  if (text !== null || iterationOf(value) === null) return urlQuoted(text ?? str(value), false);
  const pairs = value instanceof Dict ? value.entries() : listOf(value).map((pair) => listOf(pair));
  return pairs
    .map((pair) => {
      if (pair.length !== 2) throw valueError('not enough values to unpack (expected 2)');
      return `${urlQuoted(str(defined(pair[0])), true)}=${urlQuoted(str(defined(pair[1])), true)}`;
    })
    .join('&');
}

const WORDS = /[\p{L}\p{N}_]+/gu;

/** Filters by name: parameters and body. */
export const TEXT_FILTERS: Readonly<Record<string, readonly [string, Body]>> = {
  abs: ['value /', absolute],
  attr: ['value name', (value: Value, name: Value) => attributeAlone(value, requireString(name))],
  capitalize: ['s', method('capitalize')],
  center: [
    'value width?',
    (value: Value, width: Argument) => {
      const own = softText(value);
      if (typeof own === 'string') return centered(own, indexOf(given(width, 80)));
      return new Markup(centered(own.text, indexOf(given(width, 80))));
    },
  ],
  default: ['value default_value? boolean?', fallback],
  d: ['value default_value? boolean?', fallback],
  e: ['value /', (value: Value) => new Markup(escapedText(value))],
  escape: ['value /', (value: Value) => new Markup(escapedText(value))],
  filesizeformat: ['value binary?', fileSize],
  float: ['value default?', toFloat],
  forceescape: ['value', (value: Value) => new Markup(escapedText(str(value)))],
  format: ['value *args **keywords', format],
  indent: ['s width? first? blank?', indent],
  int: ['value default? base?', toInteger],
  lower: ['s', method('lower')],
  pprint: ['value', (value: Value) => repr(value)],
  replace: ['s old new count?', replaceText],
  round: ['value precision? method?', round],
  safe: ['value', (value: Value) => new Markup(str(value))],
  string: ['object', softText],
  striptags: ['value', stripTags],
  title: ['s', title],
  tojson: ['x ensure_ascii? indent? separators? sort_keys?', toJson],
  trim: ['value chars?', trim],
  truncate: ['s length? killwords? end? leeway?', truncate],
  upper: ['s', method('upper')],
  urlencode: ['value', urlEncode],
  wordcount: ['s', (value: Value) => str(softText(value)).match(WORDS)?.length ?? 0],
  wordwrap: ['s width? break_long_words? wrapstring? break_on_hyphens?', wordWrap],
  xmlattr: ['d autospace?', xmlAttributes],
};

function trim(value: Value, characters: Argument): Value {
  if (characters === undefined || characters === null) {
    const own = softText(value);
    if (typeof own === 'string') return stripped(own, null, true, true);
  }
  return method('strip')(value, characters ?? null);
}

function fallback(value: Value, otherwise: Argument, isForFalse: Argument): Value {
  const isGone = value instanceof Undefined || (isTrue(isForFalse ?? false) && !isTrue(value));
  return isGone ? given(otherwise, '') : value;
}
