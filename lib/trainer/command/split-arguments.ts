// Splits a command line into arguments and their values.
import { DsError } from '../../errors.js';

/** An argument of the command line or of a --config file. */
export interface CommandArgument {
  /** Where and how it was written: "--learning-rate", or "run.yaml:3:1: learning_rate". */
  readonly location: string;
  /** Its name in snake_case, without dashes. */
  readonly name: string;
  /** Words of the command line, or the one value of a file. */
  readonly values: readonly unknown[];
}

/**
 * Splits words such as "--a 1 2 --b" into a with two values and b without values. A value may be a
 * negative number. Throws DS_ARGUMENT if a value comes before the first argument.
 */
export function splitWords(words: readonly string[]): CommandArgument[] {
  const split: { location: string; name: string; values: unknown[] }[] = [];
  for (const word of words) {
    const last = split.at(-1);
    if (/^--[a-z]/i.test(word)) {
      const equals = word.indexOf('=');
      const location = equals < 0 ? word : word.slice(0, equals);
      const values = equals < 0 ? [] : [word.slice(equals + 1)];
      split.push({ location, name: toUnderscores(location.slice(2)), values });
    } else if (last && !/^-[a-z]/i.test(word)) {
      last.values.push(word);
    } else {
      const expected = 'arguments such as --model DIR';
      throw new DsError({
        code: 'DS_ARGUMENT',
        op: 'ds train',
        expected,
        got: JSON.stringify(word),
      });
    }
  }
  return split;
}

/** Converts a name such as "learning-rate" to snake_case, as transformers writes it. */
export const toUnderscores = (name: string): string => name.replaceAll('-', '_');
