// Checks of arguments: types of options, surplus arguments, and synchronous bodies.

import { types } from 'node:util';
import { DsError } from '../errors.js';
import { formatValue } from './format-value.js';
import { argumentError, valueError } from './input-errors.js';

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
  throw valueError(op, words[type], value);
}

/** Returns `value` if it is in `known`. Throws DS_ARGUMENT with `op` and the known values. */
export function requireOneOf<Known>(op: string, value: unknown, known: readonly Known[]): Known {
  if ((known as readonly unknown[]).includes(value)) return value as Known;
  throw valueError(op, known.map((known) => JSON.stringify(known)).join(', '), value);
}

/** Throws DS_ARGUMENT unless every value of `surplus`, the rest arguments of `op`, is undefined. */
export function requireNoSurplus(op: string, surplus: readonly unknown[], hint = ''): void {
  const [first] = surplus.filter((value) => value !== undefined);
  if (first === undefined) return;
  throw argumentError(op, 'no further argument', formatValue(first), hint);
}

/**
 * Returns `result`, the result of a body. Throws DS_ARGUMENT for `op` if it is a promise;
 * `consequence` describes the effect.
 */
export function requireEnded<Result>(
  op: string,
  result: Result,
  { consequence, hint }: { consequence: string; hint: string },
): Result {
  if (!types.isPromise(result)) return result;
  result.catch(() => {}); // This error already informs the caller, so later rejections are ignored.
  throw new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'a synchronous body',
    got: `a promise: ${consequence}`,
    hint,
  });
}
