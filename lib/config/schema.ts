// Typed access to schema.json: finds the schema of a key, with references and alternatives
// resolved.
import { required } from '../runtime/required.js';
import schemaJson from './schema.json';

/** The part of JSON Schema that schema.json uses. */
export interface Schema {
  type?: string | readonly string[];
  enum?: readonly unknown[];
  const?: unknown;
  default?: unknown;
  minimum?: number;
  exclusiveMinimum?: number;
  maximum?: number;
  exclusiveMaximum?: number;
  minItems?: number;
  maxItems?: number;
  items?: Schema;
  title?: string;
  description?: string;
  deprecated?: boolean;
  properties?: Record<string, Schema>;
  additionalProperties?: boolean | Schema;
  required?: readonly string[];
  oneOf?: readonly Schema[];
  anyOf?: readonly Schema[];
  discriminator?: { propertyName: string };
  $ref?: string;
  $defs?: Record<string, Schema>;
  /** The reason why this key is accepted although it changes nothing. */
  dsNoEffect?: string;
  /** The reason why this key, or this whole section, changes nothing on one rank. */
  dsNoEffectAlone?: string;
  /** The reason why this key changes nothing unless the optimizer is offloaded. */
  dsNoEffectResident?: string;
  /** The reason why this key has no effect without state or weights on a disk. */
  dsNoEffectOffDisk?: string;
  /** The ZeRO stages at which this key has an effect. */
  dsStages?: readonly number[];
  /** The reason why this key, or this whole section, is refused unless it is disabled. */
  dsUnsupported?: string;
  /** The reasons why these values of the key are refused. */
  dsUnsupportedValues?: Record<string, string>;
  /** The dotted path of the key that replaces this deprecated key. */
  dsReplacedBy?: string;
  /** Other spellings of this key. */
  dsAlias?: readonly string[];
  /** Whether Hugging Face fills "auto" of this key. */
  dsAuto?: boolean;
  /** Whether strings among the values of this key may have any case. */
  dsAnyCase?: boolean;
  /** The values of this key by their alternative spellings. */
  dsSpellings?: Record<string, string>;
  /** The key of this section that gets the value if true or false replaces the section. */
  dsSwitch?: string;
  /** Name of the resolved type. */
  dsResolvedTitle?: string;
}

/** The keywords of Schema that JSON Schema does not have, with the types of their values. */
export const annotations = {
  dsNoEffect: 'string',
  dsNoEffectAlone: 'string',
  dsNoEffectResident: 'string',
  dsNoEffectOffDisk: 'string',
  dsStages: 'array',
  dsUnsupported: 'string',
  dsUnsupportedValues: 'object',
  dsReplacedBy: 'string',
  dsAlias: 'array',
  dsAuto: 'boolean',
  dsAnyCase: 'boolean',
  dsSpellings: 'object',
  dsSwitch: 'string',
  dsResolvedTitle: 'string',
} as const;

export const configSchema = schemaJson as Schema;

export type Section = Record<string, unknown>;

export function isSection(value: unknown): value is Section {
  if (typeof value !== 'object' || value === null) return false;
  return !Array.isArray(value) && !ArrayBuffer.isView(value);
}

/**
 * Returns the declared schema of a key; undefined if the section has no such key. In a section
 * whose keys are names that the user chooses, all keys have one schema.
 */
export function propertyOf(schema: Schema, key: string): Schema | undefined {
  const { properties = {}, additionalProperties: others } = schema;
  if (Object.hasOwn(properties, key)) return properties[key];
  return typeof others === 'object' ? others : undefined;
}

/**
 * Returns the schema that applies to `value`. Follows a $ref into $defs; keywords next to the $ref
 * override its keywords. Picks the alternative with the value's discriminator (`type`). Returns
 * `schema` itself without a $ref or alternatives.
 */
export function resolveSchema(schema: Schema, value: unknown): Schema {
  if (schema.$ref) {
    const { $ref, ...siblings } = schema;
    const target = required(configSchema.$defs?.[$ref.slice('#/$defs/'.length)]);
    return resolveSchema({ ...target, ...siblings }, value);
  }
  const key = schema.discriminator?.propertyName;
  if (!key || !isSection(value)) return schema;
  return schema.oneOf?.find((option) => option.properties?.[key]?.const === value[key]) ?? schema;
}

/** Returns the types that `schema` and its alternatives accept. */
export function typesOf(schema: Schema): readonly string[] {
  const alternatives = [...(schema.oneOf ?? []), ...(schema.anyOf ?? [])];
  const types = alternatives.flatMap((option) => typesOf(resolveSchema(option, undefined)));
  const listed = [...(schema.enum ?? []), ...('const' in schema ? [schema.const] : [])];
  return [...new Set([schema.type ?? [], types, listed.map(typeOf)].flat())];
}

/** Returns whether a constant or an enum of `schema` is `value`. */
export function lists(schema: Schema, value: unknown): boolean {
  if (schema.const === value || schema.enum?.includes(value)) return true;
  const alternatives = [...(schema.oneOf ?? []), ...(schema.anyOf ?? [])];
  return alternatives.some((option) => lists(resolveSchema(option, undefined), value));
}

/**
 * Returns the values of `key`: its enum, or the discriminators of the section's alternatives.
 */
export function choices(schema: Schema, key: string): readonly unknown[] {
  const named = (schema.oneOf ?? []).map((option) => resolveSchema(option, undefined));
  const constants = named.map((option) => option.properties?.[key]?.const);
  return schema.oneOf ? constants : (schema.properties?.[key]?.enum ?? []);
}

function typeOf(value: unknown): string {
  if (value === null) return 'null';
  if (Number.isInteger(value)) return 'integer';
  return Array.isArray(value) ? 'array' : typeof value;
}
