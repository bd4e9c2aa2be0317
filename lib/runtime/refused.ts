// The error of a call that was given something else than it takes.
import { DsError } from '../errors.js';
import { phrase } from './phrase.js';

/** DS_ARGUMENT; `got` in words. */
export function refused(op: string, expected: string, got: string, hint = ''): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint });
}

/** The same of `value`, which the message names as phrase() does. */
export function refusedValue(op: string, expected: string, value: unknown, hint = ''): DsError {
  return refused(op, expected, phrase(value), hint);
}
