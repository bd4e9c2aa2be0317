// Errors of the launcher before it starts a process.
import { DsError } from '../errors.js';

/** Always throws DS_ARGUMENT. `place` is an option, a file with its line, or a variable. */
export function refuse(place: string, expected: string, got: string, hint = ''): never {
  throw new DsError({ code: 'DS_ARGUMENT', op: place, expected, got, hint });
}
