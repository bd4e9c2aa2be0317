// Compiles a JSON schema to grammar rules. Throws an error with the path of an unsupported keyword.
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { restMatcher } from './constants.js';
import type { GrammarBuilder, Node } from './description.js';
import { anyNumberNode, decimalsNode, integerNode, isDivisor, MAX_DIVISOR } from './numbers.js';
import { JsonLayout } from './schema-layout.js';
import {
  inexpressibleError,
  isAnnotation,
  requireSchema,
  type Schema,
  SchemaRoot,
  typesOf,
} from './schema-merge.js';
import { ObjectRules } from './schema-objects.js';
import { StringNodes } from './schema-text.js';

type Keywords = { readonly [keyword: string]: unknown };

const TYPES = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null'] as const;
/** Keywords of each type. */
const TYPE_KEYWORDS: Readonly<Record<string, readonly string[]>> = {
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
const COMMON_KEYWORDS = ['type', 'enum', 'const'];
const SUPPORTED = new Set([...COMMON_KEYWORDS, ...Object.values(TYPE_KEYWORDS).flat()]);
const MAX_NESTING = 200;

/** Compiles the schemas of one document. */
export class SchemaCompiler {
  private readonly root: SchemaRoot;
  private readonly texts: StringNodes;
  private readonly layout: JsonLayout;
  private readonly objects: ObjectRules;
  private readonly rules = new Map<string, number>();
  private any: Node | null = null;
  private nesting = 0;

  constructor(
    private readonly to: GrammarBuilder,
    private readonly document: Schema,
    /** Marker around raw texts, in objects with unquoted names; null: JSON. */
    private readonly marker: string | null = null,
  ) {
    this.root = new SchemaRoot(document);
    this.texts = new StringNodes(to, marker);
    this.layout = new JsonLayout(to, this.texts);
    const value = (schema: Schema, path: string): Node => this.compileValue(schema, path);
    this.objects = new ObjectRules({ to, texts: this.texts, layout: this.layout, value });
  }

  /**
   * Returns a node that matches the values of the document. Throws DS_ARGUMENT with a keyword and
   * its path.
   */
  compile(): Node {
    return this.compileValue(this.document, '#');
  }

  /** Returns a node that matches any JSON object. */
  anyObject(): Node {
    return this.objects.object({}, '#');
  }

  /**
   * Returns a node that matches the values of a schema. Equal schemas share a rule, so recursion
   * ends.
   */
  private compileValue(schema: Schema, path: string): Node {
    if (schema === true || acceptsAll(schema)) return this.compileAny();
    if (schema === false) return this.to.empty;
    const key = JSON.stringify(schema);
    const existing = this.rules.get(key);
    if (existing !== undefined) return this.to.call(existing);
    const rule = this.to.rule();
    this.rules.set(key, rule);
    if (++this.nesting > MAX_NESTING) {
      throw argumentError(`format schema ${path}`, `at most ${MAX_NESTING} nested schemas`, 'more');
    }
    const parts = this.root
      .alternatives(schema, path)
      .map((alternative) => this.compileSingle(alternative, path));
    this.nesting--;
    this.to.define(rule, this.to.any(...parts));
    return this.to.call(rule);
  }

  private compileAny(): Node {
    if (this.any !== null) return this.any;
    const rule = this.to.rule();
    this.any = this.to.call(rule);
    const types = TYPES.filter((type) => type !== 'integer');
    this.to.define(rule, this.to.any(...types.map((type) => this.compileType(type, {}, '#'))));
    return this.any;
  }

  /** Returns a node for a schema without $ref, allOf, anyOf and oneOf. */
  private compileSingle(schema: Schema, path: string): Node {
    if (typeof schema === 'boolean') return schema ? this.compileAny() : this.to.empty;
    for (const keyword of Object.keys(schema)) {
      const value = schema[keyword];
      if (SUPPORTED.has(keyword) || isAnnotation(keyword) || value === undefined) continue;
      if ((keyword === 'nullable' || keyword === 'uniqueItems') && value === false) continue;
      throw inexpressibleError(`${path}/${keyword}`, keyword, 'it is not supported');
    }
    if (schema.enum !== undefined || schema.const !== undefined)
      return this.compileConstants(schema, path);
    const types = requireTypes(typesOf(schema), path) ?? inferTypes(schema);
    const distinctTypes = types.includes('number')
      ? types.filter((type) => type !== 'integer')
      : types;
    return this.to.any(...distinctTypes.map((type) => this.compileType(type, schema, path)));
  }

  private compileConstants(schema: Keywords, path: string): Node {
    const { enum: listed, const: only } = schema;
    if (listed !== undefined && (!Array.isArray(listed) || listed.length === 0)) {
      throw argumentError(`format schema ${path}/enum`, 'a list of values', formatValue(listed));
    }
    const values: unknown[] = only === undefined ? (listed as unknown[]) : [only];
    const matches = restMatcher(schema, this.document, path);
    const matching = values.filter(matches);
    if (matching.length === 0) {
      const keyword = only === undefined ? 'enum' : 'const';
      const expected = 'a value that matches the other keywords';
      throw argumentError(`format schema ${path}/${keyword}`, expected, formatValue(values));
    }
    // Scalars have one spelling, so a trie of texts matches them all. Other values allow
    // whitespace.
    const isShared = (value: unknown): boolean =>
      this.marker === null && (typeof value !== 'object' || value === null);
    const shared = matching.filter(isShared).map((value) => JSON.stringify(value));
    const single = matching.filter((value) => !isShared(value));
    return this.to.any(
      this.to.texts(shared),
      ...single.map((value) => this.layout.constant(value)),
    );
  }

  private compileType(type: (typeof TYPES)[number], schema: Keywords, path: string): Node {
    const { to } = this;
    switch (type) {
      case 'null':
        return to.text('null');
      case 'boolean':
        return to.texts(['true', 'false']);
      case 'string':
        return this.compileString(schema, path);
      case 'number':
      case 'integer':
        return to.callNewRule(this.compileNumber(schema, path, type === 'integer'));
      case 'array':
        return to.callNewRule(this.compileArray(schema, path));
      case 'object':
        return to.callNewRule(this.objects.object(schema, path));
    }
  }

  private compileString(schema: Keywords, path: string): Node {
    const patterns = toList(schema.pattern).map((source) => {
      if (typeof source === 'string') return { source, path: `format schema ${path}/pattern` };
      throw argumentError(`format schema ${path}/pattern`, 'a pattern', formatValue(source));
    });
    const formats = toList(schema.format).map((name) => ({
      name,
      path: `format schema ${path}/format`,
    }));
    const [min, max] = this.readCounts(schema, path, ['minLength', 'maxLength']);
    return this.texts.string({ min: min, max: max, patterns, formats });
  }

  private readCounts(
    schema: Keywords,
    path: string,
    [low, high]: readonly [string, string],
  ): [number, number] {
    const min = requireCount(schema[low], `${path}/${low}`) ?? 0;
    const max = requireCount(schema[high], `${path}/${high}`) ?? Number.POSITIVE_INFINITY;
    if (min <= max) return [min, max];
    throw argumentError(`format schema ${path}/${high}`, `at least ${low}, ${min}`, `${max}`);
  }

  private compileNumber(schema: Keywords, path: string, isInteger: boolean): Node {
    const { multipleOf } = schema;
    const of = (name: string): number | null => requireNumber(schema[name], `${path}/${name}`);
    const [minimum, maximum] = [of('minimum'), of('maximum')];
    const [above, below] = [of('exclusiveMinimum'), of('exclusiveMaximum')];
    const isAboveMin = above !== null && (minimum === null || above >= minimum);
    const isBelowMax = below !== null && (maximum === null || below <= maximum);
    const min = isAboveMin ? above : minimum;
    const max = isBelowMax ? below : maximum;
    const bounds = { min, max, isAboveMin, isBelowMax };
    const isFree = min === null && max === null;
    if (multipleOf === undefined) {
      if (isInteger) return integerNode(this.to, bounds, null);
      return isFree ? anyNumberNode(this.to) : decimalsNode(this.to, bounds);
    }
    const divisor = requireNumber(multipleOf, `${path}/multipleOf`);
    if (divisor === null || !isDivisor(divisor)) {
      const reason = `only integers up to ${MAX_DIVISOR}, times powers of ten, are expressible`;
      throw inexpressibleError(`${path}/multipleOf`, 'multipleOf', reason);
    }
    return integerNode(this.to, bounds, divisor);
  }

  private compileArray(schema: Keywords, path: string): Node {
    const { items, prefixItems, additionalItems, uniqueItems } = schema;
    const [min, max] = this.readCounts(schema, path, ['minItems', 'maxItems']);
    if (uniqueItems === true && max > 1) {
      throw inexpressibleError(
        `${path}/uniqueItems`,
        'uniqueItems',
        'a grammar cannot compare items',
      );
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
      throw inexpressibleError(`${path}/additionalItems`, 'additionalItems', 'items is not a list');
    }
    const first = listed.map((item, i) => {
      const at = `${path}/${isOld ? 'items' : 'prefixItems'}/${i}`;
      return this.compileValue(requireSchema(item, at), at);
    });
    const moreItems = isOld ? additionalItems : items;
    // Without a schema for more items, the array ends after the listed prefix unless minItems is
    // larger.
    const isClosed =
      moreItems === false || (moreItems === undefined && first.length > 0 && min <= first.length);
    const end = isClosed ? Math.min(max, first.length) : max;
    const more = isClosed
      ? this.to.empty
      : this.compileValue(requireSchema(moreItems ?? true, `${path}/items`), `${path}/items`);
    if (min > end) {
      throw argumentError(`format schema ${path}/minItems`, `at most ${end} items`, `${min}`);
    }
    return this.layout.array({ first, more, min: min, max: end });
  }
}

const acceptsAll = (schema: Schema): boolean =>
  typeof schema === 'object' && Object.keys(schema).every(isAnnotation);

const toList = (value: unknown): unknown[] => (value === undefined ? [] : [value].flat());

function inferTypes(schema: Keywords): (typeof TYPES)[number][] {
  const types = TYPES.filter((type) =>
    TYPE_KEYWORDS[type]?.some((keyword) => schema[keyword] !== undefined),
  );
  return types.length > 0 ? types : TYPES.filter((type) => type !== 'integer');
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

function requireCount(value: unknown, path: string): number | null {
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

function requireNumber(value: unknown, path: string): number | null {
  if (value === undefined) return null;
  if (typeof value === 'number' && Number.isFinite(value)) return value;
  throw argumentError(`format schema ${path}`, 'a number', formatValue(value));
}
