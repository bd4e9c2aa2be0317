// Random configuration documents: siblings of a document with hostile values, documents drawn from
// the schema, and texts with damaged places.
import { configSchema, resolveSchema, type Schema } from '../../lib/config/schema.js';
import type { JsonObject, JsonValue } from '../../types/json.js';
import { below } from '../support/random.js';

export const VALUES: readonly JsonValue[] = [
  ...[{ toString: 1 }, { valueOf: 1 }, { length: 1e9 }, { constructor: null }, { get: 1 }],
  ...[1e15, 1e300, -1, 2 ** 53, 2 ** 31, 2 ** 32, 0, 0.5, 1e-300, 1e9, 5e8],
  ...[null, true, [], {}, '', '\0', 'x'.repeat(1e5), 'NaN'],
  ...[[[]], [null], [1e15], [{ toString: 1 }]],
  ...['__proto__', 'constructor', 'toString', 'auto', 'AUTO', '1e3', ' 1 '],
];

const DEEP = `${'['.repeat(20_000)}${']'.repeat(20_000)}`;
const RAW = ['1e999', '-1e999', '1e-999', '123456789012345678901234567890', DEEP];

const pick = <T>(values: readonly T[]): T => values[below(values.length)] as T;

const isHolder = (value: unknown): value is Record<string, JsonValue> =>
  typeof value === 'object' && value !== null && Object.keys(value).length > 0;

/** A JSON text: `base` with one or two values replaced. */
export function siblingKey(base: JsonObject): string {
  const copy = structuredClone(base);
  let raw: string | null = null;
  for (let i = 0; i <= below(2); ++i) {
    let holder = copy as Record<string, JsonValue>;
    let key = pick(Object.keys(holder));
    for (let inner = holder[key]; below(3) && isHolder(inner); inner = holder[key]) {
      holder = inner;
      key = pick(Object.keys(inner));
    }
    if (below(8) === 0) raw = pick(RAW);
    holder[key] = raw === null ? structuredClone(pick(VALUES)) : '@raw@';
  }
  return JSON.stringify(copy).replaceAll('"@raw@"', raw ?? '0');
}

const TOKENS = [
  ...['{', '}', '[', ']', ':', ',', '"', "'", "'''", '\\', '\n', '\r\n', '\t', '#', '//', '/*'],
  ...['*/', '-', '- ', '? ', '&a ', '*a', '<<: ', '!!', '|\n', '>\n', '%', '\0', '\uFEFF'],
  ...['\\u', '\\uD800', '\uD800', '\u2028', '1e999', '-0', '0x1', '.5', '1.', 'NaN', 'null'],
];

/** `text` with one to three places cut out, repeated, moved or filled with a token. */
export function damage(text: string): string {
  let result = text;
  for (let i = 0; i <= below(3); ++i) {
    const at = below(result.length + 1);
    const end = Math.min(result.length, at + 1 + below(12));
    const cut = result.slice(at, end);
    const fill = pick(['', cut + cut, pick(TOKENS), cut + pick(TOKENS), cut.toUpperCase()]);
    result = result.slice(0, at) + fill + result.slice(end);
  }
  return result;
}

/** A value that `schema` allows, or a hostile one. */
function drawValue(schema: Schema, depth: number): JsonValue {
  if (below(60) === 0) return structuredClone(pick(VALUES));
  const resolved = resolveSchema(schema, undefined);
  const options = resolved.oneOf ?? resolved.anyOf;
  if (options) return drawValue(pick(options), depth);
  if ('const' in resolved) return resolved.const as JsonValue;
  if (resolved.enum) return pick(resolved.enum) as JsonValue;
  const type = pick([resolved.type ?? 'object'].flat());
  if (type === 'null') return null;
  if (type === 'boolean') return below(2) === 0;
  if (type === 'string') return pick(['a', 'cpu', 'auto', 'b/c', '', 'bf16']);
  if (type === 'array') {
    const { items = {} } = resolved;
    return Array.from({ length: below(4) }, () => drawValue(items, depth + 1));
  }
  if (type === 'object') return section(resolved, depth + 1);
  const least = resolved.minimum ?? resolved.exclusiveMinimum ?? 0;
  const number = pick([least, least + 1, least + 7, resolved.maximum ?? 64, 2, 16, 0.5, 1e-3]);
  return type === 'integer' ? Math.round(number) : number;
}

function section(schema: Schema, depth: number): JsonObject {
  const { properties = {}, additionalProperties: others } = schema;
  const named = typeof others === 'object' ? [['own', others] as const] : [];
  const keys = [...Object.entries(properties), ...named];
  const maxKeys = depth === 0 ? 8 : 5;
  const taken = Array.from({ length: below(maxKeys) }, () => pick(keys)).filter((key) => key);
  // A section with a discriminator needs it.
  const fixed = keys.filter(([, value]) => 'const' in resolveSchema(value, undefined));
  const entries = [...fixed, ...taken].map(([key, value]) => [key, drawValue(value, depth)]);
  return Object.fromEntries(entries);
}

/** A JSON text with some keys of DeepSpeed's configuration and values that they allow. */
export function drawnConfig(): string {
  return JSON.stringify(section(configSchema, 0), null, below(3));
}
