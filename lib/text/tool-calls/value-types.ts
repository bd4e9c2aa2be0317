// The types of raw values between tags, by their schemas.
import { isObject } from '../../runtime/is-object.js';

/** Returns whether a raw value is the text of a string. */
export function isTextual(schema: unknown): boolean {
  const types = typesIn(schema);
  return types.size === 0 || types.has('string');
}

/** The types that a schema permits, by `type`, `enum`, `anyOf` and `oneOf`. */
export function typesIn(schema: unknown, levels = 4): Set<string> {
  if (!isObject(schema) || levels === 0) return new Set();
  const { type, enum: values, anyOf, oneOf } = schema;
  const named = Array.isArray(type) ? type : type === undefined ? [] : [type];
  const listed = Array.isArray(values) ? values.map((value) => typeof value) : [];
  const nested = [anyOf, oneOf].flatMap((list) => (Array.isArray(list) ? list : []));
  const all = named.length > 0 ? named.map(String) : listed;
  return new Set([...all, ...nested.flatMap((item) => [...typesIn(item, levels - 1)])]);
}
