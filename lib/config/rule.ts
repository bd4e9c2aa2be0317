// What a rule across keys is, and what it finds.
import type { ResolvedValues } from '../../types/config.js';

/** A disagreement: where it is, in the words of a DsError. */
export interface Violation {
  path: readonly string[];
  expected: string;
  got: string;
  hint: string;
}

/** Types and ranges are right and defaults are filled in when a rule runs. */
export type Rule = (config: ResolvedValues) => Violation | null;

/** What is allowed and probably not meant: a sentence whose subject is the key. */
export interface Advice {
  path: readonly string[];
  text: string;
  /** The key that makes it so. */
  because?: string;
}
