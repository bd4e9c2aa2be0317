// Resolves $ref and merges the schemas of allOf.
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';

/** A JSON schema: an object of keywords, true or false. */
export type Schema = boolean | { readonly [keyword: string]: unknown };
type Keywords = { [keyword: string]: unknown };

/** Keywords without effect on validation. */
const ANNOTATIONS = new Set([
  'title',
  'description',
  'default',
  'examples',
  'example',
  '$comment',
  '$schema',
  '$id',
  'id',
  '$defs',
  'definitions',
  'deprecated',
  'readOnly',
  'writeOnly',
  '$anchor',
  'nullable',
  'contentEncoding',
  'contentMediaType',
  'discriminator',
  'externalDocs',
  'xml',
]);
const MAX_BRANCHES = 64;
const MAX_DEPTH = 64;
const MAX_VISITS = 200_000;

export const isAnnotation = (keyword: string): boolean =>
  (ANNOTATIONS.has(keyword) && keyword !== 'nullable' && keyword !== 'discriminator') ||
  keyword.startsWith('x-');

/** A grammar cannot express the keyword here. */
export function inexpressibleError(path: string, keyword: string, reason: string): Error {
  const expected = `a schema without "${keyword}" here: ${reason}`;
  return argumentError(`format schema ${path}`, expected, `"${keyword}"`);
}

/** Resolves references into one schema document. */
export class SchemaRoot {
  private visits = 0;

  constructor(private readonly root: Schema) {}

  /** Throws DS_ARGUMENT for a reference outside the document. */
  resolve(reference: unknown, path: string): Schema {
    const op = `format schema ${path}/$ref`;
    if (typeof reference !== 'string' || !/^#(\/|$)/.test(reference)) {
      throw argumentError(op, 'a reference "#/..." into the schema', formatValue(reference));
    }
    let target: unknown = this.root;
    for (const part of reference.split('/').slice(1)) {
      const name = decodePart(part).replaceAll('~1', '/').replaceAll('~0', '~');
      const isInside = (isObject(target) || Array.isArray(target)) && Object.hasOwn(target, name);
      if (!isInside) throw argumentError(op, 'a reference to a schema in the document', reference);
      target = (target as Record<string, unknown>)[name];
    }
    return requireSchema(target, path);
  }

  /**
   * Returns the alternatives of a schema. They contain no $ref, allOf, anyOf or oneOf. The
   * additional keyword `patterns` is a list. Throws DS_ARGUMENT for a cycle or too many
   * alternatives.
   */
  alternatives(schema: Schema, path: string, depth = 0): Schema[] {
    if (depth > MAX_DEPTH || ++this.visits > MAX_VISITS) {
      throw argumentError(
        `format schema ${path}`,
        'references and alternatives without a cycle',
        'a cycle',
      );
    }
    if (typeof schema === 'boolean') return [schema];
    const { $ref, allOf, anyOf, oneOf, ...keywords } = schema;
    const lists: Schema[][] = [[keywords]];
    const inner = (value: unknown, at: string): Schema[] =>
      this.alternatives(requireSchema(value, at), at, depth + 1);
    if ($ref !== undefined) lists.push(inner(this.resolve($ref, path), path));
    for (const [i, value] of requireList(allOf, path, 'allOf').entries()) {
      lists.push(inner(value, `${path}/allOf/${i}`));
    }
    for (const [keyword, given] of Object.entries({ anyOf, oneOf })) {
      if (given === undefined) continue;
      const branches = requireList(given, path, keyword);
      const resolved = branches.map((branch, i) => inner(branch, `${path}/${keyword}/${i}`));
      if (keyword === 'oneOf') this.requireDisjoint(resolved, path);
      lists.push(resolved.flat());
    }
    let out: Schema[] = [{}];
    for (const list of lists) {
      out = out.flatMap((schema) => list.map((other) => mergeSchema(schema, other, path)));
      if (out.length > MAX_BRANCHES * 16)
        throw inexpressibleError(path, 'anyOf', 'too many branches');
    }
    const possible = out.filter((schema) => schema !== false);
    return possible.length > 0 ? possible : [false];
  }

  private requireDisjoint(branches: readonly (readonly Schema[])[], path: string): void {
    for (const [i, a] of branches.entries()) {
      for (const b of branches.slice(i + 1)) {
        if (a.every((x) => b.every((y) => this.areDisjoint(x, y, path)))) continue;
        throw inexpressibleError(path, 'oneOf', 'its branches may overlap; use anyOf');
      }
    }
  }

  /** Returns true if types and constants show that no value matches both. */
  private areDisjoint(a: Schema, b: Schema, path: string, depth = 0): boolean {
    if (a === false || b === false) return true;
    if (a === true || b === true || depth > 3) return false;
    const [types, others] = [typesOf(a), typesOf(b)];
    if (types && others && !types.some((type) => others.some((two) => typesOverlap(type, two)))) {
      return true;
    }
    const [values, otherValues] = [constantsOf(a), constantsOf(b)];
    if (values && otherValues) {
      const otherKeys = new Set(otherValues.map(keyOf));
      return !values.some((value) => otherKeys.has(keyOf(value)));
    }
    if (!isOnly(types, 'object') || !isOnly(others, 'object')) return false;
    return requiredNames(a).some((name) => {
      if (!requiredNames(b).includes(name)) return false;
      const [x, y] = [propertyOf(a, name), propertyOf(b, name)];
      const lefts = this.alternatives(x, path, 1);
      const rights = this.alternatives(y, path, 1);
      return lefts.every((p) => rights.every((q) => this.areDisjoint(p, q, path, depth + 1)));
    });
  }
}

const keyOf = (value: unknown): string =>
  typeof value === 'number' ? `${value}` : JSON.stringify(value);
const isOnly = (types: readonly string[] | null, type: string): boolean =>
  types?.length === 1 && types[0] === type;
const typesOverlap = (a: string, b: string): boolean =>
  a === b || [a, b].sort().join() === 'integer,number';
const requiredNames = ({ required }: Keywords): unknown[] =>
  Array.isArray(required) ? required : [];

function propertyOf({ properties }: Keywords, name: unknown): Schema {
  const property = isObject(properties) && typeof name === 'string' ? properties[name] : undefined;
  return property === undefined ? true : (property as Schema);
}

function constantsOf(schema: Keywords): unknown[] | null {
  if (schema.const !== undefined) return [schema.const];
  return Array.isArray(schema.enum) ? schema.enum : null;
}

function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function requireSchema(value: unknown, path: string): Schema {
  if (typeof value === 'boolean' || isObject(value)) return value as Schema;
  throw argumentError(
    `format schema ${path}`,
    'a schema: an object, true or false',
    formatValue(value),
  );
}

function requireList(value: unknown, path: string, keyword: string): unknown[] {
  if (value === undefined) return [];
  if (Array.isArray(value) && value.length > 0) return value;
  throw argumentError(`format schema ${path}/${keyword}`, 'a list of schemas', formatValue(value));
}

/** Returns the names in `type`; null without this keyword. */
export function typesOf({ type }: Keywords): string[] | null {
  if (type === undefined) return null;
  return Array.isArray(type) ? type.map(String) : [String(type)];
}

/** Returns a schema that matches the values that match both. */
function mergeSchema(a: Schema, b: Schema, path: string): Schema {
  if (a === false || b === false) return false;
  if (a === true) return b;
  if (b === true) return a;
  const out: Keywords = { ...a };
  for (const [keyword, theirs] of Object.entries(b)) {
    const ours = out[keyword];
    if (isAnnotation(keyword)) continue;
    if (ours === undefined || JSON.stringify(ours) === JSON.stringify(theirs)) {
      out[keyword] = theirs;
    } else {
      const joined = mergeKeyword(keyword, ours, theirs, path);
      if (joined === false) return false;
      out[keyword] = joined;
    }
  }
  requireMergeable(a, b, path);
  mergeObjects(a, b, out);
  mergeArrays(a, b, out);
  return out;
}

const LARGER = ['minimum', 'exclusiveMinimum', 'minLength', 'minItems', 'minProperties'];
const SMALLER = ['maximum', 'exclusiveMaximum', 'maxLength', 'maxItems', 'maxProperties'];
/** Merged by mergeObjects() and mergeArrays(). */
const STRUCTURE = ['properties', 'additionalProperties', 'items', 'prefixItems'];

/** Returns the merged value of a keyword, or false if no value matches both. */
function mergeKeyword(keyword: string, a: unknown, b: unknown, path: string): unknown {
  if (STRUCTURE.includes(keyword)) return a;
  if (LARGER.includes(keyword)) return Math.max(Number(a), Number(b));
  if (SMALLER.includes(keyword)) return Math.min(Number(a), Number(b));
  switch (keyword) {
    case 'type': {
      const both = [a, b].map((value) =>
        Array.isArray(value) ? value.map(String) : [String(value)],
      );
      const [aTypes = [], bTypes = []] = both;
      const kept = aTypes.flatMap((text) => bTypes.flatMap((two) => commonType(text, two)));
      return kept.length > 0 ? [...new Set(kept)] : false;
    }
    case 'enum': {
      const known = new Set((b as unknown[]).map(keyOf));
      const kept = (a as unknown[]).filter((value) => known.has(keyOf(value)));
      return kept.length > 0 ? kept : false;
    }
    case 'const':
      return false;
    case 'required':
      return [...new Set([...(a as unknown[]), ...(b as unknown[])])];
    case 'pattern':
      return [a, b].flat();
    case 'format':
      return [a, b].flat();
    case 'multipleOf':
      return leastCommonMultiple(Number(a), Number(b), path);
    case 'uniqueItems':
      return a === true || b === true;
    case 'patternProperties': {
      const [ours, theirs] = [a as Keywords, b as Keywords];
      const names = new Set([...Object.keys(ours), ...Object.keys(theirs)]);
      return Object.fromEntries(
        [...names].map((name) => [name, allOfBoth(ours[name], theirs[name])]),
      );
    }
    default:
      throw inexpressibleError(path, keyword, 'two schemas of allOf have it');
  }
}

function commonType(a: string, b: string): string[] {
  if (a === b) return [a];
  return typesOverlap(a, b) ? ['integer'] : [];
}

function allOfBoth(a: unknown, b: unknown): unknown {
  if (a === undefined) return b;
  return b === undefined ? a : { allOf: [a, b] };
}

function leastCommonMultiple(a: number, b: number, path: string): number {
  if (!Number.isSafeInteger(a) || !Number.isSafeInteger(b) || a <= 0 || b <= 0) {
    throw inexpressibleError(path, 'multipleOf', 'only integers are expressible');
  }
  let [x, y] = [a, b];
  while (y > 0) [x, y] = [y, x % y];
  return (a / x) * b;
}

/**
 * Throws if merging would be wrong: names that match a pattern of one side would bypass
 * additionalProperties of the other.
 */
function requireMergeable(a: Keywords, b: Keywords, path: string): void {
  const isOpen = (item: Keywords): boolean =>
    item.additionalProperties === undefined || item.additionalProperties === true;
  const escapes = (one: Keywords, other: Keywords): boolean =>
    one.patternProperties !== undefined && !isOpen(other);
  if (!escapes(a, b) && !escapes(b, a)) return;
  throw inexpressibleError(path, 'patternProperties', 'another schema of allOf closes the object');
}

function mergeObjects(a: Keywords, b: Keywords, out: Keywords): void {
  const isObjectRule = (item: Keywords): boolean =>
    item.properties !== undefined || item.additionalProperties !== undefined;
  if (!isObjectRule(a) || !isObjectRule(b)) return;
  const names = new Set([a, b].flatMap(({ properties }) => Object.keys(properties ?? {})));
  const partOf = (item: Keywords, name: string): unknown => {
    const properties = (item.properties ?? {}) as Keywords;
    if (Object.hasOwn(properties, name)) return properties[name];
    const matched = Object.entries((item.patternProperties ?? {}) as Keywords).filter(([pattern]) =>
      new RegExp(pattern, 'u').test(name),
    );
    if (matched.length > 0) return { allOf: matched.map(([, schema]) => schema) };
    return item.additionalProperties;
  };
  if (names.size > 0) {
    out.properties = Object.fromEntries(
      [...names].map((name) => [name, allOfBoth(partOf(a, name), partOf(b, name)) ?? true]),
    );
  }
  const others = allOfBoth(a.additionalProperties, b.additionalProperties);
  if (others !== undefined) out.additionalProperties = others;
}

function mergeArrays(a: Keywords, b: Keywords, out: Keywords): void {
  const isArrayRule = (item: Keywords): boolean =>
    item.items !== undefined || item.prefixItems !== undefined;
  if (!isArrayRule(a) || !isArrayRule(b)) return;
  const lists = [a, b].map(({ prefixItems }) => (Array.isArray(prefixItems) ? prefixItems : []));
  const [ours = [], theirs = []] = lists;
  const length = Math.max(ours.length, theirs.length);
  if (length > 0) {
    out.prefixItems = Array.from(
      { length },
      (_, i) => allOfBoth(ours[i] ?? a.items, theirs[i] ?? b.items) ?? true,
    );
  }
  const items = allOfBoth(a.items, b.items);
  if (items !== undefined) out.items = items;
}
