// Python's operator % on texts.
import { defined, required } from '../../runtime/required.js';
import { escaped, escapedText } from './escape.js';
import { bounded, requireText, spend, TemplateFault, typeError, valueError } from './fault.js';
import { asciiOf, characterOf, floatDigits, isBelow, requireSize, signOf } from './number-text.js';
import { floatOf, truncated } from './numbers.js';
import { digitsOf, quoted, repr, str } from './print.js';
import { textLength } from './unicode.js';
import {
  Dict,
  Float,
  integerOf,
  isList,
  Markup,
  MISSING,
  Range,
  Tuple,
  textOf,
  typeName,
  Undefined,
  type Value,
} from './values.js';

interface Conversion {
  flags: string;
  width: number;
  precision: number | null;
  type: string;
}

const CONVERSION =
  /%(?:\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\))?([-+ #0]*)(\*|\d*)(?:\.(\*|\d*))?[hlL]?([\s\S]?)/g;

/** text % values. */
export function percentFormat(text: string, values: Value): Value {
  return formatText(text, values, str, repr);
}

/** text % values for a Markup text: values are escaped. */
export function percentMarkup(text: string, values: Value): Value {
  return new Markup(formatText(text, values, escapedText, (value) => escaped(repr(value))));
}

function formatText(
  text: string,
  values: Value,
  shown: (value: Value) => string,
  represented: (value: Value) => string,
): string {
  const list = values instanceof Tuple ? values.items : [values];
  let at = 0;
  let usesNames = false;
  const take = (): Value => {
    if (at >= list.length) throw typeError('not enough arguments for format string');
    return defined(list[at++]);
  };
  const amount = (given: string | undefined, name: string): number | null => {
    if (given === undefined) return null;
    if (given !== '*') return Number(given || 0);
    const number = take();
    if (integerOf(number) === null) throw typeError('* wants int');
    return requireSize(Number(integerOf(number)), name);
  };
  let size = 0;
  const replace = (...[, name, flags, width, precision, type]: string[]): string => {
    spend();
    if (type === '') throw valueError('incomplete format');
    if (name !== undefined) usesNames = true;
    const named = name === undefined ? MISSING : namedValue(values, name);
    if (name !== undefined) at = list.length;
    let room = amount(width, 'width') ?? 0;
    const isLeft = room < 0 || required(flags).includes('-');
    room = Math.abs(room);
    const conversion: Conversion = {
      flags: isLeft ? `${flags}-` : required(flags),
      width: requireSize(room, 'width'),
      precision: amount(precision, 'precision'),
      type: required(type),
    };
    if (type === '%') return '%';
    const part = convertText(named === MISSING ? take() : named, conversion, shown, represented);
    size += part.length;
    requireText(size);
    return part;
  };
  const result = text.replace(CONVERSION, replace as never);
  if (at < list.length && !usesNames && !isMapping(values)) {
    throw typeError('not all arguments converted during string formatting');
  }
  return bounded(result);
}

/**
 * Returns whether CPython accepts the values as a mapping: a type with subscripts, except texts and
 * tuples.
 */
function isMapping(values: Value): boolean {
  if (values instanceof Tuple || textOf(values) !== null) return false;
  return (
    values instanceof Dict ||
    isList(values) ||
    values instanceof Undefined ||
    values instanceof Range
  );
}

function namedValue(values: Value, name: string): Value {
  if (values instanceof Undefined) throw values.fault();
  if (!isMapping(values)) throw typeError('format requires a mapping');
  if (!(values instanceof Dict)) {
    throw typeError(`${typeName(values)} indices must be integers or slices, not str`);
  }
  const value = values.get(name);
  if (value === MISSING) throw new TemplateFault('KeyError', quoted(name));
  return value;
}

function convertText(
  value: Value,
  conversion: Conversion,
  shown: (value: Value) => string,
  represented: (value: Value) => string,
): string {
  const { flags, precision, type } = conversion;
  if (type === 's' || type === 'r' || type === 'a') {
    const text = type === 's' ? shown(value) : represented(value);
    const formatted = type === 'a' ? asciiOf(text) : text;
    const cut = precision === null ? formatted : Array.from(formatted).slice(0, precision).join('');
    return pad('', cut, { ...conversion, flags: flags.replace('0', '') });
  }
  if (type === 'c')
    return pad('', characterOf(value), { ...conversion, flags: flags.replace('0', '') });
  if ('diuxXo'.includes(type)) return integerConversion(value, conversion);
  if ('eEfFgG'.includes(type)) return floatConversion(value, conversion);
  const code = required(type.codePointAt(0)).toString(16);
  throw valueError(`unsupported format character '${type}' (0x${code})`);
}

function integerConversion(value: Value, conversion: Conversion): string {
  const { flags, precision, type } = conversion;
  let integer = integerOf(value);
  if (integer === null) {
    const isFloat = value instanceof Float && 'diu'.includes(type);
    if (value instanceof Undefined) throw value.fault();
    if (!isFloat) {
      const kind = 'diu'.includes(type) ? 'a real number' : 'an integer';
      throw typeError(`%${type} format: ${kind} is required, not ${typeName(value)}`);
    }
    integer = required(integerOf(truncated(value.value)));
  }
  const base = type === 'o' ? 8 : type === 'x' || type === 'X' ? 16 : 10;
  const size = integer < 0 ? -integer : integer;
  const digits = (base === 10 ? digitsOf(size) : size.toString(base)).padStart(
    precision === null ? 0 : requireSize(precision, 'precision'),
    '0',
  );
  const mark = flags.includes('#') && base !== 10 ? (base === 8 ? '0o' : '0x') : '';
  const text = `${mark}${digits}`;
  return pad(
    signOf(integer < 0, flags),
    type === 'X' ? text.toUpperCase() : text,
    conversion,
    mark.length,
  );
}

function floatConversion(value: Value, conversion: Conversion): string {
  const { flags, precision, type } = conversion;
  if (value instanceof Undefined) throw value.fault();
  const float = floatOf(value);
  if (float === null) throw typeError(`must be real number, not ${typeName(value)}`);
  const text = floatDigits(float, type, precision ?? 6, flags.includes('#'));
  const isUnbounded = !Number.isFinite(float);
  const ownConversion = isUnbounded ? { ...conversion, flags: flags.replace('0', '') } : conversion;
  return pad(signOf(isBelow(float), flags), text, ownConversion);
}

/** `mark` is the length of a prefix that zeros follow. */
function pad(sign: string, text: string, { flags, width }: Conversion, mark = 0): string {
  const room = Math.max(0, width - sign.length - textLength(text));
  if (flags.includes('-')) return `${sign}${text}${' '.repeat(room)}`;
  if (!flags.includes('0')) return `${' '.repeat(room)}${sign}${text}`;
  return `${sign}${text.slice(0, mark)}${'0'.repeat(room)}${text.slice(mark)}`;
}
