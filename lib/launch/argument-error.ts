// Errors of the launcher before it starts a process.
import { DsError } from '../errors.js';

/** Throws DS_ARGUMENT. `location` is an option, a file with its line, or a variable. */
export function refuse(location: string, expected: string, got: string, hint = ''): never {
  throw new DsError({ code: 'DS_ARGUMENT', op: location, expected, got, hint });
}
