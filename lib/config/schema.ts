// Typed access to schema.json: the subschema behind a key, with references and alternatives
// resolved.
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
  description?: string;
  properties?: Record<string, Schema>;
  additionalProperties?: boolean;
  required?: readonly string[];
  oneOf?: readonly Schema[];
  discriminator?: { propertyName: string };
  $ref?: string;
  $defs?: Record<string, Schema>;
  /** Why this key is accepted although it changes nothing; not a JSON Schema keyword. */
  dsNoEffect?: string;
}

export const configSchema = schemaJson as Schema;

export type Section = Record<string, unknown>;

export function isSection(value: unknown): value is Section {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/**
 * The schema that applies to `value`: follows a $ref into $defs, and picks the alternative whose
 * constant equals the value's discriminator (`type`). Returns `schema` itself where there is
 * nothing to resolve.
 */
export function resolveSchema(schema: Schema, value: unknown): Schema {
  if (schema.$ref) {
    const name = schema.$ref.slice('#/$defs/'.length);
    return configSchema.$defs?.[name] as Schema;
  }
  const key = schema.discriminator?.propertyName;
  if (!key || !isSection(value)) return schema;
  return schema.oneOf?.find((option) => option.properties?.[key]?.const === value[key]) ?? schema;
}
