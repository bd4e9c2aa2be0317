// Errors for arguments, configurations and data that differ from the expectation.
import { DsError } from '../errors.js';
import { formatValue } from './format-value.js';

/** DS_ARGUMENT; `got` in words. */
export function refused(op: string, expected: string, got: string, hint = ''): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint });
}

/** Returns the same error for `value`, which the message shows as formatValue() does. */
export function refusedValue(op: string, expected: string, value: unknown, hint = ''): DsError {
  return refused(op, expected, formatValue(value), hint);
}

/** DS_CONFIG; `op` is the key. */
export function configError(op: string, expected: string, got: string, hint = ''): DsError {
  return new DsError({ code: 'DS_CONFIG', op, expected, got, hint });
}

/** DS_DATA; `op` names the location in the data. */
export function dataError(op: string, expected: string, got: string, hint = ''): DsError {
  return new DsError({ code: 'DS_DATA', op, expected, got, hint });
}
