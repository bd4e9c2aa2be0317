// Objects of JSON schemas: properties in their order, then names by patterns and other names.
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import { required } from '../../runtime/required.js';
import type { Description, Node } from './description.js';
import type { Layout } from './schema-layout.js';
import { inexpressible, requireSchema, type Schema } from './schema-merge.js';
import type { Texts } from './schema-text.js';

type Keywords = { readonly [keyword: string]: unknown };

interface Parts {
  readonly to: Description;
  readonly texts: Texts;
  readonly layout: Layout;
  /** The values of a schema. */
  readonly value: (schema: Schema, path: string) => Node;
}

interface Property {
  readonly pair: Node;
  readonly isRequired: boolean;
}

const MAX_PATTERNS = 4;
/** Maximum number of states of an object with counted properties. */
const MAX_STATES = 20_000;

export class ObjectRules {
  constructor(private readonly parts: Parts) {}

  /** Objects of a schema with braces. Throws DS_ARGUMENT with a keyword and its path. */
  object(schema: Keywords, path: string): Node {
    const patterns = this.patterns(schema, path);
    const properties = this.properties(schema, path, patterns);
    const names = properties.map(([name]) => name);
    const others = this.others(schema, path, { names, patterns });
    const [min, max] = [
      bound(schema.minProperties, `${path}/minProperties`) ?? 0,
      bound(schema.maxProperties, `${path}/maxProperties`) ?? Number.POSITIVE_INFINITY,
    ];
    const isOpen = others !== this.parts.to.empty;
    if (min > properties.length + (isOpen ? 1 : 0)) {
      const reason = 'other names may repeat, so they count as one property';
      throw inexpressible(`${path}/minProperties`, 'minProperties', reason);
    }
    const needed = properties.filter(([, { isRequired }]) => isRequired).length;
    if (needed > max) {
      const expected = `at least the ${needed} required properties`;
      throw argumentError(`format schema ${path}/maxProperties`, expected, `${max}`);
    }
    const list = properties.map(([, property]) => property);
    const isCounted = min > needed || max < Number.POSITIVE_INFINITY;
    const members = isCounted
      ? this.boundedMembers(list, others, { min: min, max: max, path })
      : this.chain(list, others);
    return this.parts.layout.object(members);
  }

  private patterns(schema: Keywords, path: string): [pattern: string, schema: Schema][] {
    const { patternProperties = {} } = schema;
    const op = `format schema ${path}/patternProperties`;
    if (!isObject(patternProperties)) {
      throw argumentError(op, 'an object of schemas', formatValue(patternProperties));
    }
    const found = Object.entries(patternProperties);
    if (found.length > MAX_PATTERNS) {
      const reason = `at most ${MAX_PATTERNS} patterns are expressible`;
      throw inexpressible(`${path}/patternProperties`, 'patternProperties', reason);
    }
    return found.map(([pattern, value]) => [
      pattern,
      requireSchema(value, `${path}/patternProperties/${pattern}`),
    ]);
  }

  private properties(
    schema: Keywords,
    path: string,
    patterns: readonly (readonly [string, Schema])[],
  ): [name: string, property: Property][] {
    const { to, texts, layout, value } = this.parts;
    const { properties = {}, required: needed = [], additionalProperties } = schema;
    if (!isObject(properties)) {
      const op = `format schema ${path}/properties`;
      throw argumentError(op, 'an object of schemas', formatValue(properties));
    }
    if (!Array.isArray(needed) || needed.some((name) => typeof name !== 'string')) {
      throw argumentError(`format schema ${path}/required`, 'a list of names', formatValue(needed));
    }
    const isRequired = new Set<string>(needed);
    const names = new Set([...Object.keys(properties), ...isRequired]);
    return [...names].map((name) => {
      const at = `${path}/properties/${name}`;
      const isDeclared = Object.hasOwn(properties, name);
      const ownSchemas = isDeclared ? [requireSchema(properties[name], at)] : [];
      const matched = patterns.filter(([pattern]) => matches(pattern, name, path));
      const schemas = [...ownSchemas, ...matched.map(([, schema]) => schema)];
      const usual = requireSchema(additionalProperties ?? true, `${path}/additionalProperties`);
      const [only = usual] = schemas;
      const joined: Schema = schemas.length > 1 ? { allOf: schemas } : only;
      const pair = to.seq(texts.key(texts.name(name)), layout.colon, value(joined, at));
      return [name, { pair, isRequired: isRequired.has(name) }];
    });
  }

  /** One pair with a name that is not listed. */
  private others(
    schema: Keywords,
    path: string,
    { names, patterns }: { names: readonly string[]; patterns: readonly [string, Schema][] },
  ): Node {
    const { to, texts, layout, value } = this.parts;
    const isListed = schema.properties !== undefined || patterns.length > 0;
    const { additionalProperties = !isListed } = schema;
    const nodes = patterns.map(([pattern]) =>
      texts.pattern(pattern, `format schema ${path}/patternProperties`),
    );
    const pairs: Node[] = [];
    // Each subset of the patterns is a case: names that match these patterns and no others.
    for (let subset = 0; subset < 1 << patterns.length; ++subset) {
      const isIn = (i: number): boolean => ((subset >> i) & 1) === 1;
      const schemas = patterns.filter((_, i) => isIn(i)).map(([, schema]) => schema);
      const at = `${path}/${subset === 0 ? 'additionalProperties' : 'patternProperties'}`;
      const [only = requireSchema(additionalProperties, at)] = schemas;
      const joined: Schema = schemas.length > 1 ? { allOf: schemas } : only;
      if (joined === false) continue;
      const inside = nodes.filter((_, i) => isIn(i));
      const outside = nodes.filter((_, i) => !isIn(i));
      const name = texts.key(texts.otherNames(names, inside, outside));
      pairs.push(to.seq(to.callNewRule(name), layout.colon, value(joined, at)));
    }
    return to.any(...pairs);
  }

  /** Members in order. Two rules for each place: with and without a member before it. */
  private chain(list: readonly Property[], others: Node): Node {
    const { to, layout } = this.parts;
    const more = to.star(to.seq(layout.comma, others));
    let [after, first] = [more, to.optional(to.seq(others, more))];
    for (const { pair, isRequired } of [...list].reverse()) {
      const [next, start] = [this.shareAsRule(after), this.shareAsRule(first)];
      const ownNode = to.seq(pair, next);
      after = isRequired
        ? to.seq(layout.comma, ownNode)
        : to.any(to.seq(layout.comma, ownNode), next);
      first = isRequired ? ownNode : to.any(ownNode, start);
    }
    return first;
  }

  /** Members with bounds of their number: a rule for each place and number before it. */
  private boundedMembers(
    list: readonly Property[],
    others: Node,
    { min, max, path }: { min: number; max: number; path: string },
  ): Node {
    const { to, layout } = this.parts;
    const top = Math.min(list.length, max);
    if (list.length * (top + 1) > MAX_STATES) {
      throw inexpressible(`${path}/maxProperties`, 'maxProperties', 'too many properties');
    }
    const end = (count: number): Node => {
      const missing = Math.max(0, min - count);
      if (missing > 1) return to.empty;
      const pair = to.seq(layout.comma, others);
      if (count > 0) return to.repeat(pair, missing, max - count);
      const some = max > 0 ? to.seq(others, to.repeat(pair, 0, max - 1)) : to.empty;
      return missing > 0 ? some : to.optional(some);
    };
    let row = Array.from({ length: top + 1 }, (_, count) => end(count));
    for (const [i, { pair, isRequired }] of [...list.entries()].reverse()) {
      const next = row.map((node) => this.shareAsRule(node));
      row = Array.from({ length: Math.min(i, top) + 1 }, (_, count) => {
        const comma = count > 0 ? layout.comma : to.epsilon;
        const rest = next[count + 1] ?? to.empty;
        const ownNode = count < max ? to.seq(comma, pair, rest) : to.empty;
        return isRequired ? ownNode : to.any(ownNode, required(next[count]));
      });
    }
    return required(row[0]);
  }

  /** A rule in the same frame, so that long lists of alternatives stay small. */
  private shareAsRule(node: Node): Node {
    const { to } = this.parts;
    if (node === to.empty || node === to.epsilon) return node;
    const rule = to.rule();
    to.define(rule, node);
    return to.ref(rule);
  }
}

function matches(pattern: string, name: string, path: string): boolean {
  try {
    return new RegExp(pattern, 'u').test(name);
  } catch {
    throw argumentError(`format schema ${path}/patternProperties`, 'a pattern', pattern);
  }
}

function bound(value: unknown, path: string): number | null {
  if (value === undefined) return null;
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0) return value;
  throw argumentError(`format schema ${path}`, 'an integer of 0 or more', formatValue(value));
}
