// json.dumps() of values.

import { leading } from '../../runtime/required.js';
import { sorted } from './arithmetic.js';
import { bounded, deeper, spend, typeError } from './fault.js';
import { decimal, digitsOf, str } from './print.js';
import { Dict, Float, integerOf, isList, Tuple, textOf, typeName, type Value } from './values.js';

interface JsonOptions {
  ensureAscii: boolean;
  /** The indent of a level; null for one line. */
  indent: string | null;
  itemSeparator: string;
  keySeparator: string;
  sortKeys: boolean;
}

/** Throws TypeError for a value that JSON has no form of. */
export function dumps(value: Value, options: JsonOptions): string {
  return bounded(stringify(value, options, '\n'));
}

/** `line` is a line break with the indentation of the place. */
function stringify(value: Value, options: JsonOptions, line: string): string {
  spend(8);
  const text = textOf(value);
  if (text !== null) return quotedJson(text, options.ensureAscii);
  if (value === null) return 'null';
  if (typeof value === 'boolean') return String(value);
  const integer = integerOf(value);
  if (integer !== null) return digitsOf(integer);
  if (value instanceof Float) return floatText(value.value);
  if (isList(value)) return deeper(() => list(value, options, line));
  if (value instanceof Tuple) return deeper(() => list(value.items, options, line));
  if (value instanceof Dict) return deeper(() => dict(value, options, line));
  throw typeError(`Object of type ${typeName(value)} is not JSON serializable`);
}

function list(items: readonly Value[], options: JsonOptions, line: string): string {
  const inner = options.indent === null ? line : line + options.indent;
  return enclose(
    '[]',
    items.map((item) => stringify(item, options, inner)),
    options,
    line,
  );
}

function dict(value: Dict, options: JsonOptions, line: string): string {
  const inner = options.indent === null ? line : line + options.indent;
  const entries = options.sortKeys
    ? sorted(
        value.entries().map((entry) => new Tuple(entry)),
        (entry) => entry,
        false,
      ).map((entry) => leading((entry as Tuple).items, 2))
    : value.entries();
  const parts = entries.map(([key, item]) => {
    const name = quotedJson(keyText(key), options.ensureAscii);
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
  if (indent === null) return bounded(`${open}${parts.join(itemSeparator)}${close}`);
  const inner = line + indent;
  return bounded(`${open}${inner}${parts.join(itemSeparator + inner)}${line}${close}`);
}

function keyText(key: Value): string {
  const text = textOf(key);
  if (text !== null) return text;
  if (key === null) return 'null';
  if (typeof key === 'boolean') return String(key);
  if (key instanceof Float) return floatText(key.value);
  if (integerOf(key) !== null) return str(key);
  throw typeError(`keys must be str, int, float, bool or None, not ${typeName(key)}`);
}

function floatText(value: number): string {
  if (Number.isNaN(value)) return 'NaN';
  if (!Number.isFinite(value)) return value > 0 ? 'Infinity' : '-Infinity';
  return decimal(value);
}

function quotedJson(text: string, isAscii: boolean): string {
  const quoted = JSON.stringify(text);
  if (isAscii) return quoted.replace(/[\x7f-\uffff]/g, unitEscape);
  // Python leaves half a pair as it is, which JavaScript escapes.
  if (!/[\ud800-\udfff]/.test(text)) return quoted;
  return quoted.replace(/\\(?:u(d[89a-f][0-9a-f]{2})|[\s\S])/g, (whole, hex: string | undefined) =>
    hex === undefined ? whole : String.fromCharCode(Number.parseInt(hex, 16)),
  );
}

const unitEscape = (unit: string): string =>
  unit === '\x7f' ? unit : `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
