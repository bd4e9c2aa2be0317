// Promises of the addon, with its failures as DsErrors.
import { DsError } from '../errors.js';

/** Native failures, thrown or rejected, as DsErrors. */
export async function settled<T>(start: () => Promise<T>): Promise<T> {
  try {
    return await start();
  } catch (error) {
    throw DsError.fromNative(error);
  }
}
