// Checks the types of option values: a string, a boolean, a function, or one of several values.
import { refusedValue } from './refused.js';

interface Types {
  string: string;
  boolean: boolean;
  function: unknown;
}

const words: Readonly<Record<keyof Types, string>> = {
  string: 'a string',
  boolean: 'true or false',
  function: 'a function',
};

/** Returns `value` if it has this type. Throws DS_ARGUMENT with `op`. */
export function requireType<Type extends keyof Types>(
  op: string,
  value: unknown,
  type: Type,
): Types[Type] {
  if (typeof value === type) return value as Types[Type];
  throw refusedValue(op, words[type], value);
}

/** Returns `value` if it is in `known`. Throws DS_ARGUMENT with `op` and the known values. */
export function requireOneOf<Known>(op: string, value: unknown, known: readonly Known[]): Known {
  if ((known as readonly unknown[]).includes(value)) return value as Known;
  throw refusedValue(op, known.map((one) => JSON.stringify(one)).join(', '), value);
}
