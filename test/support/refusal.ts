// The error that a call is expected to end with: now, or once its promise has settled.
import { DsError } from '../../lib/errors.js';

/** What `body` throws; another error than one of ours is thrown on. */
export function thrownBy(body: () => unknown): DsError {
  try {
    body();
  } catch (error) {
    if (error instanceof DsError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}

/** What `body` throws, or its promise rejects with; another error than one of ours is thrown on. */
export async function refusal(body: () => unknown): Promise<DsError> {
  try {
    await body();
  } catch (error) {
    if (error instanceof DsError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}
