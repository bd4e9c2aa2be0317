// Checks for surplus arguments of public functions, which JavaScript ignores.
import { formatValue } from './format-value.js';
import { refused } from './refused.js';

/** Throws DS_ARGUMENT unless every value of `surplus`, the rest arguments of `op`, is undefined. */
export function requireNoSurplus(op: string, surplus: readonly unknown[], hint = ''): void {
  const [first] = surplus.filter((value) => value !== undefined);
  if (first === undefined) return;
  throw refused(op, 'no further argument', formatValue(first), hint);
}
