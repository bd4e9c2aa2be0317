// Whether a value has others by name, as an object of JSON has.

/** Whether it is an object, neither null nor a list; `Named` says what is known of its values. */
export function isObject<Named extends object = Record<string, unknown>>(
  value: unknown,
): value is Named {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
