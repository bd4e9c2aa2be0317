// json.dumps() for template values.

import { leading } from '../../runtime/required.js';
import { sortValues } from './arithmetic.js';
import { requireBounded, runDeeper, spend, typeError } from './fault.js';
import { formatFloat, integerDigits, str } from './print.js';
import {
  Dict,
  Float,
  isList,
  Tuple,
  toIntegerOrNull,
  toTextOrNull,
  typeName,
  type Value,
} from './values.js';

interface JsonOptions {
  ensureAscii: boolean;
  /** Indentation of one level; null for one line. */
  indent: string | null;
  itemSeparator: string;
  keySeparator: string;
  sortKeys: boolean;
}

/** Returns the JSON of a value. Throws TypeError for a value without a JSON form. */
export function dumps(value: Value, options: JsonOptions): string {
  return requireBounded(stringify(value, options, '\n'));
}

/** Returns the JSON of a nested value. `line` is a line break with the current indentation. */
function stringify(value: Value, options: JsonOptions, line: string): string {
  spend(8);
  const text = toTextOrNull(value);
  if (text !== null) return quoteJson(text, options.ensureAscii);
  if (value === null) return 'null';
  if (typeof value === 'boolean') return String(value);
  const integer = toIntegerOrNull(value);
  if (integer !== null) return integerDigits(integer);
  if (value instanceof Float) return stringifyFloat(value.value);
  if (isList(value)) return runDeeper(() => stringifyList(value, options, line));
  if (value instanceof Tuple) return runDeeper(() => stringifyList(value.items, options, line));
  if (value instanceof Dict) return runDeeper(() => stringifyDict(value, options, line));
  throw typeError(`Object of type ${typeName(value)} is not JSON serializable`);
}

function stringifyList(items: readonly Value[], options: JsonOptions, line: string): string {
  const inner = options.indent === null ? line : line + options.indent;
  return enclose(
    '[]',
    items.map((item) => stringify(item, options, inner)),
    options,
    line,
  );
}

function stringifyDict(value: Dict, options: JsonOptions, line: string): string {
  const inner = options.indent === null ? line : line + options.indent;
  const entries = options.sortKeys
    ? sortValues(
        value.entries().map((entry) => new Tuple(entry)),
        (entry) => entry,
        false,
      ).map((entry) => leading((entry as Tuple).items, 2))
    : value.entries();
  const parts = entries.map(([key, item]) => {
    const name = quoteJson(stringifyKey(key), options.ensureAscii);
    return `${name}${options.keySeparator}${stringify(item, options, inner)}`;
  });
  return enclose('{}', parts, options, line);
}

function enclose(
  brackets: string,
  parts: readonly string[],
  { indent, itemSeparator }: JsonOptions,
  line: string,
): string {
  const [open, close] = brackets;
  if (parts.length === 0) return brackets;
  if (indent === null) return requireBounded(`${open}${parts.join(itemSeparator)}${close}`);
  const inner = line + indent;
  return requireBounded(`${open}${inner}${parts.join(itemSeparator + inner)}${line}${close}`);
}

function stringifyKey(key: Value): string {
  const text = toTextOrNull(key);
  if (text !== null) return text;
  if (key === null) return 'null';
  if (typeof key === 'boolean') return String(key);
  if (key instanceof Float) return stringifyFloat(key.value);
  if (toIntegerOrNull(key) !== null) return str(key);
  throw typeError(`keys must be str, int, float, bool or None, not ${typeName(key)}`);
}

function stringifyFloat(value: number): string {
  if (Number.isNaN(value)) return 'NaN';
  if (!Number.isFinite(value)) return value > 0 ? 'Infinity' : '-Infinity';
  return formatFloat(value);
}

function quoteJson(text: string, isAscii: boolean): string {
  const quoted = JSON.stringify(text);
  if (isAscii) return quoted.replace(/[\x7f-\uffff]/g, escapeUnit);
  // Python keeps half of a surrogate pair, JavaScript escapes it.
  if (!/[\ud800-\udfff]/.test(text)) return quoted;
  return quoted.replace(/\\(?:u(d[89a-f][0-9a-f]{2})|[\s\S])/g, (whole, hex: string | undefined) =>
    hex === undefined ? whole : String.fromCharCode(Number.parseInt(hex, 16)),
  );
}

const escapeUnit = (unit: string): string =>
  unit === '\x7f' ? unit : `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
