// Builds nodes for objects of JSON schemas: properties in order, then names by pattern, then other
// names.
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import { required } from '../../runtime/required.js';
import type { GrammarBuilder, Node } from './description.js';
import type { JsonLayout } from './schema-layout.js';
import { inexpressibleError, requireSchema, type Schema } from './schema-merge.js';
import type { StringNodes } from './schema-text.js';

type Keywords = { readonly [keyword: string]: unknown };

interface ObjectParts {
  readonly to: GrammarBuilder;
  readonly texts: StringNodes;
  readonly layout: JsonLayout;
  /** Returns a node that matches the values of a schema. */
  readonly value: (schema: Schema, path: string) => Node;
}

interface PropertyNode {
  readonly pair: Node;
  readonly isRequired: boolean;
}

const MAX_PATTERNS = 4;
/** Maximum number of states of an object with minProperties or maxProperties. */
const MAX_STATES = 20_000;

export class ObjectRules {
  constructor(private readonly parts: ObjectParts) {}

  /**
   * Returns a node that matches the objects of a schema, with braces. Throws DS_ARGUMENT with a
   * keyword and its path.
   */
  object(schema: Keywords, path: string): Node {
    const patterns = this.readPatterns(schema, path);
    const properties = this.readProperties(schema, path, patterns);
    const names = properties.map(([name]) => name);
    const others = this.otherPairs(schema, path, { names, patterns });
    const [min, max] = [
      requireBound(schema.minProperties, `${path}/minProperties`) ?? 0,
      requireBound(schema.maxProperties, `${path}/maxProperties`) ?? Number.POSITIVE_INFINITY,
    ];
    const isOpen = others !== this.parts.to.empty;
    if (min > properties.length + (isOpen ? 1 : 0)) {
      const reason = 'other names may repeat, so they count as one property';
      throw inexpressibleError(`${path}/minProperties`, 'minProperties', reason);
    }
    const requiredCount = properties.filter(([, { isRequired }]) => isRequired).length;
    if (requiredCount > max) {
      const expected = `at least the ${requiredCount} required properties`;
      throw argumentError(`format schema ${path}/maxProperties`, expected, `${max}`);
    }
    const list = properties.map(([, property]) => property);
    const isCounted = min > requiredCount || max < Number.POSITIVE_INFINITY;
    const members = isCounted
      ? this.boundedMembers(list, others, { min: min, max: max, path })
      : this.orderedMembers(list, others);
    return this.parts.layout.object(members);
  }

  private readPatterns(schema: Keywords, path: string): [pattern: string, schema: Schema][] {
    const { patternProperties = {} } = schema;
    const op = `format schema ${path}/patternProperties`;
    if (!isObject(patternProperties)) {
      throw argumentError(op, 'an object of schemas', formatValue(patternProperties));
    }
    const entries = Object.entries(patternProperties);
    if (entries.length > MAX_PATTERNS) {
      const reason = `at most ${MAX_PATTERNS} patterns are expressible`;
      throw inexpressibleError(`${path}/patternProperties`, 'patternProperties', reason);
    }
    return entries.map(([pattern, value]) => [
      pattern,
      requireSchema(value, `${path}/patternProperties/${pattern}`),
    ]);
  }

  private readProperties(
    schema: Keywords,
    path: string,
    patterns: readonly (readonly [string, Schema])[],
  ): [name: string, property: PropertyNode][] {
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
      const declared = isDeclared ? [requireSchema(properties[name], at)] : [];
      const matched = patterns.filter(([pattern]) => matches(pattern, name, path));
      const schemas = [...declared, ...matched.map(([, schema]) => schema)];
      const usual = requireSchema(additionalProperties ?? true, `${path}/additionalProperties`);
      const [only = usual] = schemas;
      const joined: Schema = schemas.length > 1 ? { allOf: schemas } : only;
      const pair = to.seq(texts.key(texts.name(name)), layout.colon, value(joined, at));
      return [name, { pair, isRequired: isRequired.has(name) }];
    });
  }

  /** Returns a node that matches one pair with an unlisted name. */
  private otherPairs(
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
    // Each subset of the patterns is a case: names that match exactly these patterns.
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

  /**
   * Returns a node that matches members in order. Each position has two rules: with and without an
   * earlier member.
   */
  private orderedMembers(list: readonly PropertyNode[], others: Node): Node {
    const { to, layout } = this.parts;
    const more = to.star(to.seq(layout.comma, others));
    let [after, first] = [more, to.optional(to.seq(others, more))];
    for (const { pair, isRequired } of [...list].reverse()) {
      const [next, start] = [this.shareAsRule(after), this.shareAsRule(first)];
      const pairThenNext = to.seq(pair, next);
      after = isRequired
        ? to.seq(layout.comma, pairThenNext)
        : to.any(to.seq(layout.comma, pairThenNext), next);
      first = isRequired ? pairThenNext : to.any(pairThenNext, start);
    }
    return first;
  }

  /**
   * Returns a node that matches members with bounds of their number: a rule per position and number
   * of earlier members.
   */
  private boundedMembers(
    list: readonly PropertyNode[],
    others: Node,
    { min, max, path }: { min: number; max: number; path: string },
  ): Node {
    const { to, layout } = this.parts;
    const top = Math.min(list.length, max);
    if (list.length * (top + 1) > MAX_STATES) {
      throw inexpressibleError(`${path}/maxProperties`, 'maxProperties', 'too many properties');
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
        const afterPair = next[count + 1] ?? to.empty;
        const pairThenNext = count < max ? to.seq(comma, pair, afterPair) : to.empty;
        return isRequired ? pairThenNext : to.any(pairThenNext, required(next[count]));
      });
    }
    return required(row[0]);
  }

  /** Moves a node to a rule in the same frame, so that long lists of alternatives stay small. */
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

function requireBound(value: unknown, path: string): number | null {
  if (value === undefined) return null;
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0) return value;
  throw argumentError(`format schema ${path}`, 'an integer of 0 or more', formatValue(value));
}
