// Types of rules across keys and of their results.
import type { ResolvedValues } from '../../types/config.js';

/** A violation of a rule, with the fields of a DsError. */
export interface Violation {
  path: readonly string[];
  expected: string;
  got: string;
  hint: string;
}

/** A rule across keys. It receives values with valid types and ranges, and with defaults. */
export type Rule = (config: ResolvedValues) => Violation | null;

/** Advice about a legal value that is probably a mistake: a sentence with the key as subject. */
export interface Advice {
  path: readonly string[];
  text: string;
  /** The dotted path of the key that causes the advice. */
  because?: string;
}
