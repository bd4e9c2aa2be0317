// Python's operator % on texts, as in "%d tokens" % 5.
import { defined, required } from '../../runtime/required.js';
import { escapeHtml, escapeValue } from './escape.js';
import {
  requireBounded,
  requireText,
  spend,
  TemplateFault,
  typeError,
  valueError,
} from './fault.js';
import {
  escapeNonAscii,
  formatFloatDigits,
  formatSign,
  isNegativeNumber,
  requireSize,
  toCharacter,
} from './number-text.js';
import { toFloatOrNull, truncateFloat } from './numbers.js';
import { integerDigits, quoteText, repr, str } from './print.js';
import { textLength } from './unicode.js';
import {
  Dict,
  Float,
  isList,
  Markup,
  MISSING,
  Range,
  Tuple,
  toIntegerOrNull,
  toTextOrNull,
  typeName,
  Undefined,
  type Value,
} from './values.js';

interface FormatConversion {
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

/** text % values for a Markup text, which escapes the values. */
export function percentMarkup(text: string, values: Value): Value {
  return new Markup(formatText(text, values, escapeValue, (value) => escapeHtml(repr(value))));
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
  const readAmount = (given: string | undefined, name: string): number | null => {
    if (given === undefined) return null;
    if (given !== '*') return Number(given || 0);
    const number = take();
    if (toIntegerOrNull(number) === null) throw typeError('* wants int');
    return requireSize(Number(toIntegerOrNull(number)), name);
  };
  let size = 0;
  const replace = (...[, name, flags, width, precision, type]: string[]): string => {
    spend();
    if (type === '') throw valueError('incomplete format');
    if (name !== undefined) usesNames = true;
    const namedItem = name === undefined ? MISSING : findNamedValue(values, name);
    if (name !== undefined) at = list.length;
    let room = readAmount(width, 'width') ?? 0;
    const isLeft = room < 0 || required(flags).includes('-');
    room = Math.abs(room);
    const conversion: FormatConversion = {
      flags: isLeft ? `${flags}-` : required(flags),
      width: requireSize(room, 'width'),
      precision: readAmount(precision, 'precision'),
      type: required(type),
    };
    if (type === '%') return '%';
    const part = convertText(
      namedItem === MISSING ? take() : namedItem,
      conversion,
      shown,
      represented,
    );
    size += part.length;
    requireText(size);
    return part;
  };
  const result = text.replace(CONVERSION, replace as never);
  if (at < list.length && !usesNames && !isMapping(values)) {
    throw typeError('not all arguments converted during string formatting');
  }
  return requireBounded(result);
}

/**
 * Returns whether CPython accepts the values as a mapping: a type with subscripts, except texts and
 * tuples.
 */
function isMapping(values: Value): boolean {
  if (values instanceof Tuple || toTextOrNull(values) !== null) return false;
  return (
    values instanceof Dict ||
    isList(values) ||
    values instanceof Undefined ||
    values instanceof Range
  );
}

function findNamedValue(values: Value, name: string): Value {
  if (values instanceof Undefined) throw values.fault();
  if (!isMapping(values)) throw typeError('format requires a mapping');
  if (!(values instanceof Dict)) {
    throw typeError(`${typeName(values)} indices must be integers or slices, not str`);
  }
  const value = values.get(name);
  if (value === MISSING) throw new TemplateFault('KeyError', quoteText(name));
  return value;
}

function convertText(
  value: Value,
  conversion: FormatConversion,
  shown: (value: Value) => string,
  represented: (value: Value) => string,
): string {
  const { flags, precision, type } = conversion;
  if (type === 's' || type === 'r' || type === 'a') {
    const text = type === 's' ? shown(value) : represented(value);
    const formatted = type === 'a' ? escapeNonAscii(text) : text;
    const cut = precision === null ? formatted : Array.from(formatted).slice(0, precision).join('');
    return pad('', cut, { ...conversion, flags: flags.replace('0', '') });
  }
  if (type === 'c')
    return pad('', toCharacter(value), { ...conversion, flags: flags.replace('0', '') });
  if ('diuxXo'.includes(type)) return convertInteger(value, conversion);
  if ('eEfFgG'.includes(type)) return convertFloat(value, conversion);
  const code = required(type.codePointAt(0)).toString(16);
  throw valueError(`unsupported format character '${type}' (0x${code})`);
}

function convertInteger(value: Value, conversion: FormatConversion): string {
  const { flags, precision, type } = conversion;
  let integer = toIntegerOrNull(value);
  if (integer === null) {
    const isFloat = value instanceof Float && 'diu'.includes(type);
    if (value instanceof Undefined) throw value.fault();
    if (!isFloat) {
      const kind = 'diu'.includes(type) ? 'a real number' : 'an integer';
      throw typeError(`%${type} format: ${kind} is required, not ${typeName(value)}`);
    }
    integer = required(toIntegerOrNull(truncateFloat(value.value)));
  }
  const base = type === 'o' ? 8 : type === 'x' || type === 'X' ? 16 : 10;
  const size = integer < 0 ? -integer : integer;
  const digits = (base === 10 ? integerDigits(size) : size.toString(base)).padStart(
    precision === null ? 0 : requireSize(precision, 'precision'),
    '0',
  );
  const mark = flags.includes('#') && base !== 10 ? (base === 8 ? '0o' : '0x') : '';
  const text = `${mark}${digits}`;
  return pad(
    formatSign(integer < 0, flags),
    type === 'X' ? text.toUpperCase() : text,
    conversion,
    mark.length,
  );
}

function convertFloat(value: Value, conversion: FormatConversion): string {
  const { flags, precision, type } = conversion;
  if (value instanceof Undefined) throw value.fault();
  const float = toFloatOrNull(value);
  if (float === null) throw typeError(`must be real number, not ${typeName(value)}`);
  const text = formatFloatDigits(float, type, precision ?? 6, flags.includes('#'));
  const isUnbounded = !Number.isFinite(float);
  const applied = isUnbounded ? { ...conversion, flags: flags.replace('0', '') } : conversion;
  return pad(formatSign(isNegativeNumber(float), flags), text, applied);
}

/** Pads a number. Zeros go after the sign and the first `mark` characters. */
function pad(sign: string, text: string, { flags, width }: FormatConversion, mark = 0): string {
  const room = Math.max(0, width - sign.length - textLength(text));
  if (flags.includes('-')) return `${sign}${text}${' '.repeat(room)}`;
  if (!flags.includes('0')) return `${' '.repeat(room)}${sign}${text}`;
  return `${sign}${text.slice(0, mark)}${'0'.repeat(room)}${text.slice(mark)}`;
}
