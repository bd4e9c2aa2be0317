// Errors of models that sequence parallelism does not support.
import type { DsError } from '../errors.js';
import { argumentError } from '../runtime/input-errors.js';

/** A recurrence needs the state after the tokens of the ranks before. */
export function noTokenPartsError(model: string): DsError {
  const expected = 'no recurrent layers, which need all tokens on each rank';
  const hint = 'Use tensor_parallel or pipeline stages for this model.';
  return argumentError('sequence_parallel_size', expected, model, hint);
}

/** Routing statistics of one rank's tokens cannot reach the loss of all ranks. */
export function partsError(model: string, got: number): DsError {
  const op = `${model} routerAuxLossCoef`;
  const hint =
    'Read the model with { routerAuxLossCoef: 0 }, or train without sequence_parallel_size.';
  return argumentError(op, '0 with sequence parallelism', String(got), hint);
}
