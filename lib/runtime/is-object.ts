// Tests whether a value is an object with named values, and whether it is a plain object.

/**
 * Returns whether `value` is an object, neither null nor a list. `Named` is the type that it gets.
 */
export function isObject<Named extends object = Record<string, unknown>>(
  value: unknown,
): value is Named {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Returns whether `value` is a plain object, as { ... } creates. */
export function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (!isObject(value)) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}
