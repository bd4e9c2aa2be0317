// Python's str.format() and its format specifications.
import { required } from '../../runtime/required.js';
import { formatGeneral } from './digits.js';
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
import { requireIndex, toFloatOrNull } from './numbers.js';
import { integerDigits, quoteText, repr, str } from './print.js';
import { textLength } from './unicode.js';
import {
  type Dict,
  Float,
  type Keywords,
  MISSING,
  toIntegerOrNull,
  toTextOrNull,
  typeName,
  type Value,
} from './values.js';

/** Reads attributes and items of str.format()'s arguments. */
export interface FieldAccess {
  attribute(object: Value, name: string): Value;
  item(object: Value, key: Value): Value;
}

/** text.format(*args, **keywords). */
export function braceFormat(
  text: string,
  args: readonly Value[],
  keywords: Keywords | Dict,
  access: FieldAccess,
): string {
  return new BraceFormat(args, keywords, access).format(text, 2);
}

class BraceFormat {
  private next = 0;
  private numbering: 'automatic' | 'manual' | null = null;

  constructor(
    private readonly args: readonly Value[],
    private readonly keywords: Keywords | Dict,
    private readonly access: FieldAccess,
  ) {}

  /** Formats a text. `depth` is the permitted nesting of fields in specifications. */
  format(text: string, depth: number): string {
    if (depth < 0) throw valueError('Max string recursion exceeded');
    let result = '';
    let at = 0;
    while (at < text.length) {
      const brace = text.slice(at).search(/[{}]/);
      if (brace < 0) return requireBounded(result + text.slice(at));
      result += text.slice(at, at + brace);
      at += brace;
      const letter = required(text[at]);
      if (text[at + 1] === letter) {
        result += letter;
        at += 2;
        continue;
      }
      if (letter === '}') throw valueError("Single '}' encountered in format string");
      const end = findClosingBrace(text, at);
      result += this.formatField(text.slice(at + 1, end), depth);
      at = end + 1;
      spend();
      requireText(result.length);
    }
    return result;
  }

  private formatField(field: string, depth: number): string {
    const { name, conversion, spec } = splitField(field);
    const value = this.convert(this.readField(name), conversion);
    return formatValue(value, this.format(spec, depth - 1));
  }

  private convert(value: Value, conversion: string | null): Value {
    if (conversion === null) return value;
    if (conversion === 's') return str(value);
    if (conversion === 'r') return repr(value);
    if (conversion === 'a') return escapeNonAscii(repr(value));
    throw valueError(`Unknown conversion specifier ${conversion}`);
  }

  private readField(name: string): Value {
    const first = /^[^.[]*/.exec(name)?.[0] ?? '';
    // string.Formatter numbers only fields without a path, so "{} {0.a}" mixes no numberings.
    let value = this.readFirst(first, first === name);
    let rest = name.slice(first.length);
    while (rest !== '') {
      const part = /^(?:\.([^.[]+)|\[([^\]]+)\])/.exec(rest);
      if (part === null) {
        if (/^(?:\.(?:[.[]|$)|\[\])/.test(rest))
          throw valueError('Empty attribute in format string');
        if (rest.startsWith('[')) throw valueError("Missing ']' in format string");
        throw valueError("Only '.' or '[' may follow ']' in format field specifier");
      }
      const [whole, attribute, item] = part;
      value =
        attribute === undefined
          ? this.access.item(value, parseKey(required(item)))
          : this.access.attribute(value, attribute);
      rest = rest.slice(whole.length);
    }
    return value;
  }

  private readFirst(name: string, isWhole: boolean): Value {
    if ((name === '' && isWhole) || /^\d+$/.test(name)) {
      const mode = name === '' ? 'automatic' : 'manual';
      if (isWhole && this.numbering !== null && this.numbering !== mode) {
        throw valueError(
          'cannot switch between manual field specification and automatic field numbering',
        );
      }
      if (isWhole) this.numbering = mode;
      const index = name === '' ? this.next++ : Number(name);
      const value = this.args[index];
      if (value !== undefined) return value;
      throw new TemplateFault(
        'IndexError',
        `Replacement index ${index} out of range for positional args tuple`,
      );
    }
    const value = this.keywords.get(name);
    if (value === undefined || value === MISSING)
      throw new TemplateFault('KeyError', quoteText(name));
    return value;
  }
}

const parseKey = (item: string): Value => (/^\d+$/.test(item) ? Number(item) : item);

function findClosingBrace(text: string, start: number): number {
  let depth = 0;
  let inItem = false;
  for (let i = start; i < text.length; ++i) {
    const letter = text[i];
    if (letter === '[' && depth === 1) inItem = true;
    else if (letter === ']') inItem = false;
    else if (inItem) continue;
    else if (letter === '{') depth++;
    else if (letter === '}' && --depth === 0) return i;
  }
  if (start === text.length - 1) throw valueError("Single '{' encountered in format string");
  throw valueError("expected '}' before end of string");
}

interface ReplacementField {
  name: string;
  conversion: string | null;
  spec: string;
}

function splitField(field: string): ReplacementField {
  let end = 0;
  let inItem = false;
  for (; end < field.length; ++end) {
    const letter = field[end];
    if (letter === '[') inItem = true;
    else if (letter === ']') inItem = false;
    else if (!inItem && (letter === ':' || letter === '!')) break;
    else if (!inItem && letter === '{') throw valueError("unexpected '{' in field name");
  }
  const name = field.slice(0, end);
  if (field[end] !== '!') return { name, conversion: null, spec: field.slice(end + 1) };
  const conversion = field[end + 1];
  if (conversion === undefined) {
    throw valueError('end of string while looking for conversion specifier');
  }
  if (end + 2 < field.length && field[end + 2] !== ':') {
    throw valueError("expected ':' after conversion specifier");
  }
  return { name, conversion, spec: field.slice(end + 3) };
}

const SPEC = /^(?:([\s\S])?([<>=^]))?([-+ ]?)(z?)(#?)(0?)(\d*)([,_]?)(?:\.(\d+))?([\s\S]?)$/u;

interface FormatSpec {
  fill: string;
  align: string;
  sign: string;
  hasMark: boolean;
  width: number;
  group: string;
  precision: number | null;
  type: string;
}

function readSpec(text: string, of: Value): FormatSpec {
  const parts = SPEC.exec(text);
  if (parts === null) {
    throw valueError(`Invalid format specifier '${text}' for object of type '${typeName(of)}'`);
  }
  const [, fill, align, sign = '', , mark, zero, width = '', group = '', precision, type = ''] =
    parts;
  const isZero = zero !== '';
  return {
    fill: fill ?? (isZero ? '0' : ' '),
    align: align ?? (isZero && toTextOrNull(of) === null ? '=' : ''),
    sign,
    hasMark: mark !== '',
    width: requireSize(Number(width), 'width'),
    group,
    precision: precision === undefined ? null : requireSize(Number(precision), 'precision'),
    type,
  };
}

/** format(value, spec). */
function formatValue(value: Value, spec: string): string {
  const text = toTextOrNull(value);
  if (text !== null) return spec === '' ? text : formatText(text, readSpec(spec, value));
  const isNumeric = value instanceof Float || toIntegerOrNull(value) !== null;
  if (!isNumeric) {
    if (spec === '') return str(value);
    throw typeError(`unsupported format string passed to ${typeName(value)}.__format__`);
  }
  if (spec === '') return str(value);
  const parsedSpec = readSpec(spec, value);
  if (value instanceof Float || 'eEfFgG%'.includes(parsedSpec.type || 'd'))
    return formatFloat(value, parsedSpec);
  return formatInteger(value, parsedSpec);
}

function formatText(text: string, spec: FormatSpec): string {
  const { type, sign, align, group, hasMark, precision } = spec;
  if (type !== '' && type !== 's') throw unknownCodeError(type, 'str');
  if (sign !== '') throw valueError('Sign not allowed in string format specifier');
  if (hasMark) throw valueError('Alternate form (#) not allowed in string format specifier');
  if (group !== '') throw valueError(`Cannot specify '${group}' with 's'.`);
  if (align === '=') throw valueError("'=' alignment not allowed in string format specifier");
  const cut = precision === null ? text : Array.from(text).slice(0, precision).join('');
  return alignNumber('', cut, { ...spec, align: align || '<' });
}

const unknownCodeError = (code: string, type: string): Error =>
  valueError(`Unknown format code '${code}' for object of type '${type}'`);

const BASES: Readonly<Record<string, number>> = { b: 2, o: 8, x: 16, X: 16 };

function formatInteger(value: Value, spec: FormatSpec): string {
  const { type, precision, hasMark, group } = spec;
  const integer = required(toIntegerOrNull(value));
  if (precision !== null) throw valueError('Precision not allowed in integer format specifier');
  if (type === 'c') {
    if (spec.sign !== '') throw valueError("Sign not allowed with integer format specifier 'c'");
    return alignNumber('', toCharacter(requireIndex(value)), { ...spec, align: spec.align || '<' });
  }
  const base = BASES[type] ?? 10;
  if (type !== '' && type !== 'd' && type !== 'n' && base === 10)
    throw unknownCodeError(type, typeName(value));
  if (group === ',' && base !== 10) throw valueError(`Cannot specify ',' with '${type}'.`);
  const size = integer < 0 ? -integer : integer;
  const digits = base === 10 ? integerDigits(size) : size.toString(base);
  const mark = hasMark && base !== 10 ? `0${type}` : '';
  const cased = type === 'X' ? digits.toUpperCase() : digits;
  const sign = formatSign(integer < 0, spec.sign);
  return alignNumber(
    `${sign}${mark}`,
    groupText(cased, spec, base === 10 ? 3 : 4, `${sign}${mark}`.length),
    spec,
  );
}

function formatFloat(value: Value, spec: FormatSpec): string {
  const { type, precision, hasMark } = spec;
  const float = required(toFloatOrNull(value));
  if (type !== '' && !'eEfFgGn%'.includes(type)) throw unknownCodeError(type, typeName(value));
  const sign = formatSign(isNegativeNumber(float), spec.sign);
  let text: string;
  if (type === '%') text = `${formatFloatDigits(float * 100, 'f', precision ?? 6, hasMark)}%`;
  else if (type === '' && Number.isFinite(float)) text = formatPlainFloat(float, precision);
  else
    text = formatFloatDigits(
      float,
      type === '' || type === 'n' ? 'g' : type,
      precision ?? 6,
      hasMark,
    );
  return alignNumber(sign, groupText(text, spec, 3, sign.length), spec);
}

/** Formats a float without a type: its shortest digits, or `precision` digits, with a point. */
function formatPlainFloat(float: number, precision: number | null): string {
  if (precision === null) return str(new Float(Math.abs(float)));
  return formatGeneral(float, precision, false, true);
}

/** Inserts separators between groups of digits, including zeros that fill the width. */
function groupText(text: string, spec: FormatSpec, size: number, before: number): string {
  if (spec.group === '') return text;
  const whole = /^[0-9a-fA-F]+/.exec(text)?.[0] ?? '';
  if (whole === '') return text;
  const rest = text.slice(whole.length);
  let digits = whole;
  const separate = (): string =>
    digits.replace(new RegExp(`\\B(?=(?:[0-9a-fA-F]{${size}})+$)`, 'g'), spec.group);
  if (spec.fill === '0' && spec.align === '=') {
    while (separate().length + rest.length + before < spec.width) digits = `0${digits}`;
  }
  return separate() + rest;
}

function alignNumber(sign: string, text: string, { fill, align, width }: FormatSpec): string {
  const room = Math.max(0, width - sign.length - textLength(text));
  const side = align || '>';
  if (side === '<') return `${sign}${text}${fill.repeat(room)}`;
  if (side === '=') return `${sign}${fill.repeat(room)}${text}`;
  if (side === '>') return `${fill.repeat(room)}${sign}${text}`;
  const left = Math.floor(room / 2);
  return `${fill.repeat(left)}${sign}${text}${fill.repeat(room - left)}`;
}
