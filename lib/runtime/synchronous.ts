// Bodies that run between a beginning and an end: what they compute later would be outside.
import { types } from 'node:util';
import { DsError } from '../errors.js';

/**
 * `result` of a body that is to have ended. Throws DS_ARGUMENT, naming `op`, for a promise: what
 * `consequence` says would become of it.
 */
export function requireEnded<Result>(
  op: string,
  result: Result,
  { consequence, hint }: { consequence: string; hint: string },
): Result {
  if (!types.isPromise(result)) return result;
  result.catch(() => {}); // The caller is told here; what becomes of the rest is no news.
  throw new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'a synchronous body',
    got: `a promise: ${consequence}`,
    hint,
  });
}
