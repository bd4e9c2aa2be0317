// Python's str() and repr(), and digits of floats.
import { defined, required } from '../../runtime/required.js';
import { requireBounded, runDeeper, spend, valueError } from './fault.js';
import {
  type Callable,
  Dict,
  Float,
  Generator,
  Markup,
  Namespace,
  type Opaque,
  PySet,
  Range,
  Tuple,
  Undefined,
  type Value,
  View,
} from './values.js';

/** str(). */
export function str(value: Value): string {
  if (typeof value === 'string') return value;
  if (value instanceof Undefined) return '';
  return value instanceof Markup ? value.text : repr(value);
}

/** repr(). */
export function repr(value: Value): string {
  switch (typeof value) {
    case 'string':
      return quoteText(value);
    case 'boolean':
      return value ? 'True' : 'False';
    case 'number':
      return String(value);
    case 'bigint':
      return integerDigits(value);
  }
  if (value === null) return 'None';
  if (value instanceof Float) return formatFloat(value.value);
  if (value instanceof Undefined) return 'Undefined';
  if (value instanceof Markup) return `Markup(${quoteText(value.text)})`;
  return runDeeper(() => printNested(value));
}

/** Steps that printing one item costs. */
const STEPS_PER_ITEM = 8;

function printNested(value: Exclude<Value, string | number | bigint | boolean | null>): string {
  if (Array.isArray(value)) return printOnce(value, '[...]', () => `[${joinItems(value)}]`);
  if (value instanceof Tuple) {
    return value.items.length === 1
      ? `(${joinItems(value.items)},)`
      : `(${joinItems(value.items)})`;
  }
  if (value instanceof Dict) return printDict(value);
  if (value instanceof Namespace) return `<Namespace ${printDict(value.attributes)}>`;
  if (value instanceof View) return `dict_${value.kind}([${joinItems(value.list())}])`;
  if (value instanceof PySet) {
    return value.length === 0 ? 'set()' : `{${joinItems(value.items.keys())}}`;
  }
  if (value instanceof Range) {
    const step = value.step === 1 ? '' : `, ${value.step}`;
    return `range(${value.start}, ${value.stop}${step})`;
  }
  if (value instanceof Generator) {
    const name = value.name === value.type ? '' : ` ${value.name}`;
    return `<${value.type} object${name} at 0x7f0000000000>`;
  }
  return (value as Callable | Opaque).describe();
}

function joinItems(items: readonly Value[]): string {
  let text = '';
  for (let i = 0; i < items.length; ++i) {
    spend(STEPS_PER_ITEM);
    text += i === 0 ? repr(defined(items[i])) : `, ${repr(defined(items[i]))}`;
    if ((i & 63) === 0) requireBounded(text);
  }
  return requireBounded(text);
}

/** Containers in progress: a namespace may contain itself. */
const open = new Set<object>();

/** Prints a container. If the container is inside itself, prints `again` there. */
function printOnce(value: object, again: string, body: () => string): string {
  if (open.has(value)) return again;
  open.add(value);
  try {
    return body();
  } finally {
    open.delete(value);
  }
}

function printDict(dict: Dict): string {
  return printOnce(dict, '{...}', () => {
    const entries = dict.entries().map(([key, value]) => {
      spend(STEPS_PER_ITEM);
      return `${repr(key)}: ${repr(value)}`;
    });
    return requireBounded(`{${entries.join(', ')}}`);
  });
}

/** Returns the decimal digits of an integer. Throws ValueError as Python does. */
export function integerDigits(value: number | bigint): string {
  const text = String(value);
  if (text.length > 4301 || (text.length === 4301 && value > 0)) {
    throw valueError('Exceeds the limit (4300 digits) for integer string conversion');
  }
  return text;
}

/** repr() of a float: the shortest digits, with an exponent where Python writes one. */
export function formatFloat(value: number): string {
  if (Number.isNaN(value)) return 'nan';
  if (!Number.isFinite(value)) return value > 0 ? 'inf' : '-inf';
  if (Object.is(value, -0)) return '-0.0';
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-4 && size < 1e16)) {
    return Number.isInteger(value) ? `${value}.0` : String(value);
  }
  const [digits, exponent = ''] = value.toExponential().split('e');
  return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, '0')}`;
}

const ESCAPES: Readonly<Record<string, string>> = { '\n': '\\n', '\r': '\\r', '\t': '\\t' };
const PLAIN = /^[ !#-&(-[\]-~]*$/;

/** Quotes a text as Python's repr() does, with escapes for unprintable characters. */
export function quoteText(text: string): string {
  if (PLAIN.test(text)) return `'${text}'`;
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = Array.from(text, (letter) => {
    if (letter === quote || letter === '\\') return `\\${letter}`;
    if (letter === ' ' || !/[\p{C}\p{Z}]/u.test(letter)) return letter;
    return ESCAPES[letter] ?? escapeCode(letter);
  });
  return requireBounded(`${quote}${escaped.join('')}${quote}`);
}

/** Returns \xhh, \uhhhh or \Uhhhhhhhh. */
export function escapeCode(letter: string): string {
  const code = required(letter.codePointAt(0));
  const hex = code.toString(16);
  if (code < 0x100) return `\\x${hex.padStart(2, '0')}`;
  return code < 0x10000 ? `\\u${hex.padStart(4, '0')}` : `\\U${hex.padStart(8, '0')}`;
}
