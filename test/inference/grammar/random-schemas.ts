// Random JSON schemas of the keywords that grammars express. Each seed gives one schema.
import type { Seeded } from './walk.js';

type Schema = Record<string, unknown> | boolean;

const NAMES = ['id', 'name', 'a/b', 'quo"te', 'é', 'tags', 'x', 'new\nline', 'back\\slash'];
const WORDS = ['red', 'tools/call', '', 'a"b', 'ünïcode', '\u0007', '😀', 'null'];
const PATTERNS = ['^[a-z]{2,5}$', '\\d+', '^(foo|ba[rz])+$', '^[^"]*$', '[A-Z]x?$', '^\\w+@\\w+$'];
const KEY_PATTERNS = ['^x_', '_id$', '^[a-c]+$'];
const FORMATS = ['date', 'time', 'date-time', 'email', 'uuid', 'ipv4', 'hostname', 'uri'];

export function randomSchema(random: Seeded): Schema {
  const defs: Record<string, Schema> = {};
  const schema = new Maker(random, defs).schema(3);
  if (typeof schema === 'boolean') return {};
  // A list that refers to itself, and a tree.
  defs.list = {
    type: 'object',
    properties: {
      value: { type: 'integer' },
      next: { anyOf: [{ $ref: '#/$defs/list' }, { type: 'null' }] },
    },
    required: ['value', 'next'],
    additionalProperties: false,
  };
  defs.tree = { type: 'array', items: { $ref: '#/$defs/tree' }, maxItems: 2 };
  return { ...schema, $defs: defs };
}

class Maker {
  constructor(
    private readonly random: Seeded,
    readonly defs: Record<string, Schema>,
  ) {}

  schema(depth: number): Schema {
    const { random } = this;
    const kinds = ['string', 'string', 'integer', 'number', 'enum', 'const', 'boolean', 'null'];
    if (depth > 0)
      kinds.push(
        'object',
        'object',
        'object',
        'array',
        'array',
        'anyOf',
        'allOf',
        'ref',
        'oneOf',
        'types',
      );
    if (depth > 1) kinds.push('object', 'any');
    switch (random.pick(kinds)) {
      case 'string':
        return this.string();
      case 'integer':
        return this.number('integer');
      case 'number':
        return this.number('number');
      case 'enum':
        return { enum: Array.from({ length: random.integer(1, 5) }, () => this.value(1)) };
      case 'const':
        return { const: this.value(2) };
      case 'boolean':
        return { type: 'boolean' };
      case 'null':
        return { type: 'null' };
      case 'object':
        return this.object(depth - 1);
      case 'array':
        return this.array(depth - 1);
      case 'anyOf':
        return {
          anyOf: Array.from({ length: random.integer(1, 4) }, () => this.schema(depth - 1)),
        };
      case 'oneOf':
        return { oneOf: [this.string(), this.number('integer'), { type: 'null' }] };
      case 'allOf':
        return { allOf: [this.object(depth - 1), { type: 'object', minProperties: 0 }] };
      case 'types':
        return { ...this.string(), type: ['string', 'null', 'boolean'] };
      case 'ref':
        return { $ref: random.pick(['#/$defs/list', '#/$defs/tree']) };
      default:
        return random.chance(0.5) ? true : { description: 'anything' };
    }
  }

  private string(): Record<string, unknown> {
    const { random } = this;
    const out: Record<string, unknown> = { type: 'string' };
    const kind = random.integer(0, 6);
    if (kind === 0) out.minLength = random.integer(0, 6);
    if (kind <= 1) out.maxLength = random.integer(6, 40);
    if (kind === 2 || kind === 3) out.pattern = random.pick(PATTERNS);
    if (kind === 3) out.maxLength = random.integer(8, 20);
    if (kind === 4) out.format = random.pick(FORMATS);
    return out;
  }

  private number(type: string): Record<string, unknown> {
    const { random } = this;
    const out: Record<string, unknown> = { type };
    const kind = random.integer(0, 6);
    const at = random.pick([0, 1, 7, -3, 100, 0.5, -2.25, 1e6, -1e-3, 123456.789]);
    if (kind === 1 || kind === 2) out.minimum = at;
    if (kind === 2) out.maximum = at + random.pick([1, 5, 20.5, 1000]);
    if (kind === 3) out.exclusiveMaximum = at;
    if (kind === 4)
      Object.assign(out, {
        exclusiveMinimum: at,
        exclusiveMaximum: at + random.pick([2, 7.5, 1e4]),
      });
    if (kind === 5) out.multipleOf = random.pick([1, 2, 3, 5, 7, 10, 16, 100, 10_000]);
    return out;
  }

  private object(depth: number): Record<string, unknown> {
    const { random } = this;
    const names = NAMES.filter(() => random.chance(0.4));
    const properties = Object.fromEntries(names.map((name) => [name, this.schema(depth)]));
    const out: Record<string, unknown> = { type: 'object', properties };
    const needed = names.filter(() => random.chance(0.6));
    if (random.chance(0.8)) out.required = needed;
    const others = random.integer(0, 5);
    if (others === 0) out.additionalProperties = false;
    if (others === 1) out.additionalProperties = true;
    if (others === 2) out.additionalProperties = this.schema(0);
    if (others === 3) out.patternProperties = { [random.pick(KEY_PATTERNS)]: this.schema(0) };
    if (random.chance(0.2)) out.maxProperties = needed.length + random.integer(0, 3);
    if (random.chance(0.2) && needed.length > 0) out.minProperties = needed.length;
    return out;
  }

  private array(depth: number): Record<string, unknown> {
    const { random } = this;
    const out: Record<string, unknown> = { type: 'array' };
    if (random.chance(0.7)) out.items = this.schema(depth);
    if (random.chance(0.3)) out.prefixItems = [this.schema(depth), this.schema(0)];
    if (random.chance(0.4)) out.minItems = random.integer(0, 3);
    if (random.chance(0.6)) out.maxItems = random.integer(3, 6);
    return out;
  }

  private value(depth: number): unknown {
    const { random } = this;
    const plain = [random.pick(WORDS), 0, -1.5, 1e21, 0.1, true, null, 42];
    const kind = random.integer(0, depth > 0 ? 12 : 8);
    if (kind < 8) return plain[kind];
    if (kind < 10) return [this.value(depth - 1), this.value(0)];
    return { [random.pick(NAMES)]: this.value(depth - 1) };
  }
}
