// Compiles a JSON schema to rules. A keyword that the rules cannot express is an error with its
// path.
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import { matchesRest } from './constants.js';
import type { Description, Node } from './description.js';
import { anyNumber, decimals, integer, isDivisor, MAX_DIVISOR } from './numbers.js';
import { Layout } from './schema-layout.js';
import {
  inexpressible,
  isAnnotation,
  requireSchema,
  type Schema,
  SchemaRoot,
  typesOf,
} from './schema-merge.js';
import { ObjectRules } from './schema-objects.js';
import { Texts } from './schema-text.js';

type Keywords = { readonly [keyword: string]: unknown };

const TYPES = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null'] as const;
/** Keywords of each type. */
const OWN: Readonly<Record<string, readonly string[]>> = {
  object: [
    'properties',
    'required',
    'additionalProperties',
    'patternProperties',
    'minProperties',
    'maxProperties',
  ],
  array: ['items', 'prefixItems', 'minItems', 'maxItems', 'uniqueItems', 'additionalItems'],
  string: ['minLength', 'maxLength', 'pattern', 'format'],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
};
const OF_ANY = ['type', 'enum', 'const'];
const KNOWN = new Set([...OF_ANY, ...Object.values(OWN).flat()]);
const MAX_NESTING = 200;

/** Compiles the schemas of one document. */
export class SchemaCompiler {
  private readonly root: SchemaRoot;
  private readonly texts: Texts;
  private readonly layout: Layout;
  private readonly objects: ObjectRules;
  private readonly rules = new Map<string, number>();
  private any: Node | null = null;
  private nesting = 0;

  constructor(
    private readonly to: Description,
    private readonly document: Schema,
    /** Around raw texts, in objects with bare names; null: JSON. */
    private readonly marker: string | null = null,
  ) {
    this.root = new SchemaRoot(document);
    this.texts = new Texts(to, marker);
    this.layout = new Layout(to, this.texts);
    const value = (schema: Schema, path: string): Node => this.value(schema, path);
    this.objects = new ObjectRules({ to, texts: this.texts, layout: this.layout, value });
  }

  /** The values of the document. Throws DS_ARGUMENT with a keyword and its path. */
  compile(): Node {
    return this.value(this.document, '#');
  }

  /** Any JSON object. */
  anyObject(): Node {
    return this.objects.object({}, '#');
  }

  /** The values of a schema. Equal schemas share a rule, so recursive ones end. */
  private value(schema: Schema, path: string): Node {
    if (schema === true || isFree(schema)) return this.anyValue();
    if (schema === false) return this.to.empty;
    const key = JSON.stringify(schema);
    const known = this.rules.get(key);
    if (known !== undefined) return this.to.call(known);
    const rule = this.to.rule();
    this.rules.set(key, rule);
    if (++this.nesting > MAX_NESTING) {
      throw argumentError(`format schema ${path}`, `at most ${MAX_NESTING} nested schemas`, 'more');
    }
    const parts = this.root
      .alternatives(schema, path)
      .map((alternative) => this.single(alternative, path));
    this.nesting--;
    this.to.define(rule, this.to.any(...parts));
    return this.to.call(rule);
  }

  private anyValue(): Node {
    if (this.any !== null) return this.any;
    const rule = this.to.rule();
    this.any = this.to.call(rule);
    const types = TYPES.filter((type) => type !== 'integer');
    this.to.define(rule, this.to.any(...types.map((type) => this.ofType(type, {}, '#'))));
    return this.any;
  }

  /** A schema without $ref, allOf, anyOf and oneOf. */
  private single(schema: Schema, path: string): Node {
    if (typeof schema === 'boolean') return schema ? this.anyValue() : this.to.empty;
    for (const keyword of Object.keys(schema)) {
      const value = schema[keyword];
      if (KNOWN.has(keyword) || isAnnotation(keyword) || value === undefined) continue;
      if ((keyword === 'nullable' || keyword === 'uniqueItems') && value === false) continue;
      throw inexpressible(`${path}/${keyword}`, keyword, 'it is not supported');
    }
    if (schema.enum !== undefined || schema.const !== undefined)
      return this.constants(schema, path);
    const types = requireTypes(typesOf(schema), path) ?? inferredTypes(schema);
    const kept = types.includes('number') ? types.filter((type) => type !== 'integer') : types;
    return this.to.any(...kept.map((type) => this.ofType(type, schema, path)));
  }

  private constants(schema: Keywords, path: string): Node {
    const { enum: listed, const: only } = schema;
    if (listed !== undefined && (!Array.isArray(listed) || listed.length === 0)) {
      throw argumentError(`format schema ${path}/enum`, 'a list of values', formatValue(listed));
    }
    const values: unknown[] = only === undefined ? (listed as unknown[]) : [only];
    const matches = matchesRest(schema, this.document, path);
    const kept = values.filter(matches);
    if (kept.length === 0) {
      const keyword = only === undefined ? 'enum' : 'const';
      const expected = 'a value that matches the other keywords';
      throw argumentError(`format schema ${path}/${keyword}`, expected, formatValue(values));
    }
    const isShared = (value: unknown): boolean =>
      this.marker === null && (typeof value !== 'object' || value === null);
    const shared = kept.filter(isShared).map((value) => JSON.stringify(value));
    const single = kept.filter((value) => !isShared(value));
    return this.to.any(
      this.to.texts(shared),
      ...single.map((value) => this.layout.constant(value)),
    );
  }

  private ofType(type: (typeof TYPES)[number], schema: Keywords, path: string): Node {
    const { to } = this;
    switch (type) {
      case 'null':
        return to.text('null');
      case 'boolean':
        return to.texts(['true', 'false']);
      case 'string':
        return this.string(schema, path);
      case 'number':
      case 'integer':
        return to.callNewRule(this.number(schema, path, type === 'integer'));
      case 'array':
        return to.callNewRule(this.array(schema, path));
      case 'object':
        return to.callNewRule(this.objects.object(schema, path));
    }
  }

  private string(schema: Keywords, path: string): Node {
    const patterns = listOf(schema.pattern).map((source) => {
      if (typeof source === 'string') return { source, path: `format schema ${path}/pattern` };
      throw argumentError(`format schema ${path}/pattern`, 'a pattern', formatValue(source));
    });
    const formats = listOf(schema.format).map((name) => ({
      name,
      path: `format schema ${path}/format`,
    }));
    const [min, max] = this.counts(schema, path, ['minLength', 'maxLength']);
    return this.texts.string({ min: min, max: max, patterns, formats });
  }

  private counts(
    schema: Keywords,
    path: string,
    [low, high]: readonly [string, string],
  ): [number, number] {
    const min = count(schema[low], `${path}/${low}`) ?? 0;
    const max = count(schema[high], `${path}/${high}`) ?? Number.POSITIVE_INFINITY;
    if (min <= max) return [min, max];
    throw argumentError(`format schema ${path}/${high}`, `at least ${low}, ${min}`, `${max}`);
  }

  private number(schema: Keywords, path: string, isInteger: boolean): Node {
    const { multipleOf } = schema;
    const of = (name: string): number | null => numberOf(schema[name], `${path}/${name}`);
    const [minimum, maximum] = [of('minimum'), of('maximum')];
    const [above, below] = [of('exclusiveMinimum'), of('exclusiveMaximum')];
    const isAboveMin = above !== null && (minimum === null || above >= minimum);
    const isBelowMax = below !== null && (maximum === null || below <= maximum);
    const min = isAboveMin ? above : minimum;
    const max = isBelowMax ? below : maximum;
    const bounds = { min, max, isAboveMin, isBelowMax };
    const isFree = min === null && max === null;
    if (multipleOf === undefined) {
      if (isInteger) return integer(this.to, bounds, null);
      return isFree ? anyNumber(this.to) : decimals(this.to, bounds);
    }
    const divisor = numberOf(multipleOf, `${path}/multipleOf`);
    if (divisor === null || !isDivisor(divisor)) {
      const reason = `only integers up to ${MAX_DIVISOR}, times powers of ten, are expressible`;
      throw inexpressible(`${path}/multipleOf`, 'multipleOf', reason);
    }
    return integer(this.to, bounds, divisor);
  }

  private array(schema: Keywords, path: string): Node {
    const { items, prefixItems, additionalItems, uniqueItems } = schema;
    const [min, max] = this.counts(schema, path, ['minItems', 'maxItems']);
    if (uniqueItems === true && max > 1) {
      throw inexpressible(`${path}/uniqueItems`, 'uniqueItems', 'a grammar cannot compare items');
    }
    const isOld = Array.isArray(items);
    const listed = isOld ? items : (prefixItems ?? []);
    if (!Array.isArray(listed)) {
      throw argumentError(
        `format schema ${path}/prefixItems`,
        'a list of schemas',
        formatValue(listed),
      );
    }
    if (additionalItems !== undefined && !isOld) {
      throw inexpressible(`${path}/additionalItems`, 'additionalItems', 'items is not a list');
    }
    const first = listed.map((item, i) => {
      const at = `${path}/${isOld ? 'items' : 'prefixItems'}/${i}`;
      return this.value(requireSchema(item, at), at);
    });
    const rest = isOld ? additionalItems : items;
    // Without a schema for more items, a listed prefix is the whole array unless minItems is
    // larger.
    const isClosed =
      rest === false || (rest === undefined && first.length > 0 && min <= first.length);
    const end = isClosed ? Math.min(max, first.length) : max;
    const more = isClosed
      ? this.to.empty
      : this.value(requireSchema(rest ?? true, `${path}/items`), `${path}/items`);
    if (min > end) {
      throw argumentError(`format schema ${path}/minItems`, `at most ${end} items`, `${min}`);
    }
    return this.layout.array({ first, more, min: min, max: end });
  }
}

const isFree = (schema: Schema): boolean =>
  typeof schema === 'object' && Object.keys(schema).every(isAnnotation);

const listOf = (value: unknown): unknown[] => (value === undefined ? [] : [value].flat());

function inferredTypes(schema: Keywords): (typeof TYPES)[number][] {
  const found = TYPES.filter((type) => OWN[type]?.some((keyword) => schema[keyword] !== undefined));
  return found.length > 0 ? found : TYPES.filter((type) => type !== 'integer');
}

function requireTypes(
  types: readonly string[] | null,
  path: string,
): (typeof TYPES)[number][] | null {
  if (types === null) return null;
  const wrong = types.find((type) => !TYPES.some((known) => known === type));
  if (wrong === undefined && types.length > 0) return types as (typeof TYPES)[number][];
  throw argumentError(`format schema ${path}/type`, TYPES.join(', '), formatValue(wrong ?? types));
}

function count(value: unknown, path: string): number | null {
  if (value === undefined) return null;
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0) {
    if (value < 2 ** 31 - 1) return value;
  }
  throw argumentError(
    `format schema ${path}`,
    'an integer from 0 to 2147483646',
    formatValue(value),
  );
}

function numberOf(value: unknown, path: string): number | null {
  if (value === undefined) return null;
  if (typeof value === 'number' && Number.isFinite(value)) return value;
  throw argumentError(`format schema ${path}`, 'a number', formatValue(value));
}

/** Throws DS_ARGUMENT unless the value is a schema. */
export function schemaOf(value: unknown): Schema {
  if (typeof value === 'boolean' || isObject(value)) return value as Schema;
  throw argumentError('format schema #', 'a JSON schema', formatValue(value));
}
