// Checks that a function body with a scoped effect is synchronous: later work would be outside the
// scope.
import { types } from 'node:util';
import { DsError } from '../errors.js';

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
