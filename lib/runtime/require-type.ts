// Checks that what comes from options is a text, a flag or a function.
import { DsError } from '../errors.js';
import { phrase } from './phrase.js';

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
  throw new DsError({ code: 'DS_ARGUMENT', op, expected: words[type], got: phrase(value) });
}
