// Checks the names of the methods that divide layers into pipeline stages.

import { Regex } from '../runtime/regex/regex.js';
import { errorMessage } from '../runtime/system-error.js';

const KNOWN = /^(parameters|uniform|flops|type:.+)$/i;

/**
 * Returns the expected values for an error, or null if `method` is valid. Ignores case.
 */
export function expectedMethod(method: unknown): string | null {
  const word = String(method);
  if (!KNOWN.test(word)) return '"parameters", "uniform", "flops" or "type:REGEX"';
  try {
    parsePattern(word);
    return null;
  } catch (error) {
    return `a regular expression after "type:" (${errorMessage(error)})`;
  }
}

/**
 * Returns the pattern of "type:REGEX", which matches class names of layers and ignores case.
 * Returns null for other methods.
 */
export function parsePattern(method: string): Regex | null {
  if (!/^type:/i.test(method)) return null;
  return new Regex(method.slice('type:'.length), { ignoresCase: true });
}
