// Determines the types of raw values between tags from their schemas.
import { isObject } from '../../runtime/is-object.js';

/** Returns whether a raw value is the text of a string. */
export function isStringValue(schema: unknown): boolean {
  const types = permittedTypes(schema);
  return types.size === 0 || types.has('string');
}

/** Returns the types that a schema permits by `type`, `enum`, `anyOf` and `oneOf`. */
export function permittedTypes(schema: unknown, levels = 4): Set<string> {
  if (!isObject(schema) || levels === 0) return new Set();
  const { type, enum: values, anyOf, oneOf } = schema;
  const typeNames = Array.isArray(type) ? type : type === undefined ? [] : [type];
  const enumTypes = Array.isArray(values) ? values.map((value) => typeof value) : [];
  const nested = [anyOf, oneOf].flatMap((list) => (Array.isArray(list) ? list : []));
  const all = typeNames.length > 0 ? typeNames.map(String) : enumTypes;
  return new Set([...all, ...nested.flatMap((item) => [...permittedTypes(item, levels - 1)])]);
}
