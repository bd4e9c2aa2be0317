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

/** `value` when it is of this type. Throws DS_ARGUMENT, naming `op`. */
export function requireType<Type extends keyof Types>(
  op: string,
  value: unknown,
  type: Type,
): Types[Type] {
  if (typeof value === type) return value as Types[Type];
  throw refusedValue(op, words[type], value);
}

/** `value` when it is among `known`. Throws DS_ARGUMENT, naming `op` and all of these. */
export function requireOneOf<Known>(op: string, value: unknown, known: readonly Known[]): Known {
  if ((known as readonly unknown[]).includes(value)) return value as Known;
  throw refusedValue(op, known.map((one) => JSON.stringify(one)).join(', '), value);
}
