// Checks the beam-search options of a request.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import type { Options } from '../runtime/option.js';
import type { BEAMS } from './beams.js';

/** Beam-search options of a request. */
export interface BeamRequest extends Options<typeof BEAMS> {}

function refusedError(what: string, expected: string, got: unknown, hint: string): DsError {
  const op = `InferenceEngine request ${what}`;
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(got), hint });
}

/**
 * Returns the options of the search, or null for one beam, which needs no search. Throws
 * DS_ARGUMENT for options that a beam search does not support.
 */
export function readBeams(
  given: BeamRequest,
  stop: readonly string[],
  hasFormat: boolean,
): BeamRequest | null {
  if ((given.numBeams ?? 1) > 1) {
    if (hasFormat) {
      const hint = 'Omit numBeams, or check the text after the search.';
      throw refusedError('format', 'no format with beams', 'a format', hint);
    }
    if (stop.length === 0) return given;
    const hint = 'Use stopTokens to end the sequences of a beam search.';
    throw refusedError('stop', 'no stop strings with beams', stop, hint);
  }
  for (const name of ['lengthPenalty', 'earlyStopping'] as const) {
    if (given[name] === undefined) continue;
    throw refusedError(
      name,
      'numBeams above 1 for this option',
      given[name],
      'Raise numBeams, or omit this option.',
    );
  }
  return null;
}
