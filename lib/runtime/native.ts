// Calls into the addon, except ops (call.ts). Failures become DsErrors with the stack of the call.
import { DsError } from '../errors.js';
import { withOwners } from './shortage.js';

/** Returns the result of `body`. Throws native errors as DsErrors. */
export function native<T>(body: () => T): T {
  try {
    return body();
  } catch (error) {
    throw failure(error);
  }
}

/** Returns an error of the addon as a DsError; returns other errors unchanged. */
export function failure(error: unknown): unknown {
  return withOwners(DsError.fromNative(error));
}

/** Awaits `start()`. Converts native errors to DsErrors. */
export async function awaitNative<T>(start: () => Promise<T>): Promise<T> {
  try {
    return await start();
  } catch (error) {
    throw DsError.fromNative(error);
  }
}
