// Rules across keys: each a named function that says which keys disagree and what to set.
import type { ResolvedValues } from '../../types/config.js';
import type { Draft } from './draft.js';
import { precisionRules } from './precision-rules.js';
import { zeroRules } from './zero-rules.js';

/** A disagreement: where it is, in the words of a DsError. */
export interface Violation {
  path: readonly string[];
  expected: string;
  got: string;
  hint: string;
}

/** Types and ranges are right and defaults are filled in when a rule runs. */
export type Rule = (config: ResolvedValues) => Violation | null;

/** "AdamW" is decoupled by name. */
const adamWIsDecoupled: Rule = ({ optimizer }) =>
  optimizer?.type === 'AdamW' && !optimizer.params.adam_w_mode
    ? {
        path: ['optimizer', 'params', 'adam_w_mode'],
        expected: 'true with "AdamW"',
        got: 'false',
        hint: 'For weight decay inside the gradient set optimizer.type to "Adam".',
      }
    : null;

/** A schedule that decays needs steps left after its warm-up. */
const warmupEndsBeforeTotal: Rule = ({ scheduler }) =>
  (scheduler?.type === 'WarmupDecayLR' || scheduler?.type === 'WarmupCosineLR') &&
  scheduler.params.total_num_steps < scheduler.params.warmup_num_steps
    ? {
        path: ['scheduler', 'params', 'warmup_num_steps'],
        expected: `at most total_num_steps = ${scheduler.params.total_num_steps}`,
        got: String(scheduler.params.warmup_num_steps),
        hint: 'Lower warmup_num_steps (default 1000) or raise total_num_steps.',
      }
    : null;

const rules: readonly Rule[] = [
  ...precisionRules,
  ...zeroRules,
  adamWIsDecoupled,
  warmupEndsBeforeTotal,
];

/** What the rules find in `config`. */
export function violations(config: ResolvedValues): Violation[] {
  return rules.map((rule) => rule(config)).filter((violation) => violation !== null);
}

/** Refuses in `draft` what the rules find in `config`, its values with all defaults. */
export function applyRules(draft: Draft, config: ResolvedValues): void {
  for (const { path, ...refusal } of violations(config)) draft.refuse(path, refusal);
}
