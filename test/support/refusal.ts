// Returns the expected error of a call, synchronous or from its promise.
import { DsError } from '../../lib/errors.js';

/** The DsError that `body` throws; other errors propagate. */
export function thrownBy(body: () => unknown): DsError {
  try {
    body();
  } catch (error) {
    if (error instanceof DsError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}

/** The DsError that `body` throws, or that its promise rejects with; other errors propagate. */
export async function refusal(body: () => unknown): Promise<DsError> {
  try {
    await body();
  } catch (error) {
    if (error instanceof DsError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}
