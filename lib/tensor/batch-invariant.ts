// The batch-invariant mode of the forward: the bits of a row do not depend on the other rows.
import { argumentError } from '../runtime/input-errors.js';

let isOn = false;

/**
 * @internal Runs `body`, whose linear layers and attention use batch-invariant kernels where `on`
 * is true. So a token has the same bits in a prompt, in a decode step and in a training batch.
 * Operations without such kernels throw DS_ARGUMENT. Backwards use the usual kernels.
 */
export function runBatchInvariant<T>(body: () => T, on = true): T {
  const outer = isOn;
  isOn = on;
  try {
    return body();
  } finally {
    isOn = outer;
  }
}

/** @internal Returns whether the body of a runBatchInvariant() is running. */
export const isBatchInvariant = (): boolean => isOn;

/**
 * @internal Throws DS_ARGUMENT in batch-invariant mode, for an operation that is not
 * batch-invariant.
 */
export function refuseBatchInvariant(op: string, expected: string, got: string): void {
  if (!isOn) return;
  const hint = 'Omit batch_invariant, batchInvariant and exactRollouts for this model.';
  throw argumentError(`${op} in batch-invariant mode`, expected, got, hint);
}
