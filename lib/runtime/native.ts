// Calls into the addon but those of ops (call.ts): its failures become DsErrors, with the call's
// own stack.
import { DsError } from '../errors.js';
import { withOwners } from './shortage.js';

/** What `body` returns. Throws native errors as DsErrors. */
export function native<T>(body: () => T): T {
  try {
    return body();
  } catch (error) {
    throw failure(error);
  }
}

/** What the addon has thrown, as it reaches the program. */
export function failure(error: unknown): unknown {
  return withOwners(DsError.fromNative(error));
}

/** What the promise of `start` resolves with. Native failures, thrown or rejected, are DsErrors. */
export async function settled<T>(start: () => Promise<T>): Promise<T> {
  try {
    return await start();
  } catch (error) {
    throw DsError.fromNative(error);
  }
}
