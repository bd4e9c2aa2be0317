// The words that say how the layers of a pipeline are shared out, and what is wrong with others.
const KNOWN = /^(parameters|uniform|flops|type:.+)$/i;

/** What would be one, in the words of a DsError; null for a word that is one, in any case. */
export function methodExpected(method: unknown): string | null {
  const word = String(method);
  if (!KNOWN.test(word)) return '"parameters", "uniform", "flops" or "type:REGEX"';
  try {
    patternOf(word);
    return null;
  } catch (error) {
    return `a regular expression behind "type:" (${(error as Error).message})`;
  }
}

/** What classes of layers are matched against, in any case; null for methods of other kinds. */
export function patternOf(method: string): RegExp | null {
  return /^type:/i.test(method) ? new RegExp(method.slice('type:'.length), 'i') : null;
}
