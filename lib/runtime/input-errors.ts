// Errors for arguments, configurations and data that differ from the expectation.
import { DsError } from '../errors.js';
import { formatValue } from './format-value.js';

/** Returns a DS_ARGUMENT error of `op`; `got` describes the value in words. */
export function argumentError(op: string, expected: string, got: string, hint = ''): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint });
}

/** Returns a DS_ARGUMENT error that shows `value` as formatValue() writes it. */
export function valueError(op: string, expected: string, value: unknown, hint = ''): DsError {
  return argumentError(op, expected, formatValue(value), hint);
}

/** Returns a DS_CONFIG error; `op` is the key of the configuration. */
export function configError(op: string, expected: string, got: string, hint = ''): DsError {
  return new DsError({ code: 'DS_CONFIG', op, expected, got, hint });
}

/** Returns a DS_DATA error; `op` names the location in the data. */
export function dataError(op: string, expected: string, got: string, hint = ''): DsError {
  return new DsError({ code: 'DS_DATA', op, expected, got, hint });
}
