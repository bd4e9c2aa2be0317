// Rules across keys: each a named function that says which keys disagree and what to set.
import type { ResolvedValues } from '../../types/config.js';
import type { Draft } from './draft.js';

/** A disagreement: where it is, in the words of a DsError. */
export interface Violation {
  path: readonly string[];
  expected: string;
  got: string;
  hint: string;
}

/** Types and ranges are right and defaults are filled in when a rule runs. */
export type Rule = (config: ResolvedValues) => Violation | null;

/** Weights have one 16-bit format. */
const onePrecision: Rule = ({ fp16, bf16 }) =>
  fp16.enabled && bf16.enabled
    ? {
        path: ['fp16', 'enabled'],
        expected: 'fp16 or bf16, not both',
        got: 'both enabled',
        hint: 'Set one of fp16.enabled and bf16.enabled to false.',
      }
    : null;

/** Offloading is an option of a sharded optimizer, as in DeepSpeed. */
const offloadNeedsStage: Rule = ({ zero_optimization: zero }) =>
  zero.offload_optimizer.device !== 'none' && zero.stage === 0
    ? {
        path: ['zero_optimization', 'stage'],
        expected: 'stage 1, 2 or 3 with offload_optimizer',
        got: '0',
        hint: 'Set zero_optimization.stage to 2, or offload_optimizer.device to "none".',
      }
    : null;

/** The loss scale starts where it may be. */
const initialScaleAboveMinimum: Rule = ({ fp16 }) =>
  fp16.enabled && fp16.loss_scale === 0 && 2 ** fp16.initial_scale_power < fp16.min_loss_scale
    ? {
        path: ['fp16', 'initial_scale_power'],
        expected: `a first scale of at least min_loss_scale = ${fp16.min_loss_scale}`,
        got: `2^${fp16.initial_scale_power}`,
        hint: 'Raise initial_scale_power or lower min_loss_scale.',
      }
    : null;

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

/** Weights are offloaded at stage 3, which is not there yet; below it the section has no effect. */
const weightsStayOnDevice: Rule = ({ zero_optimization: { stage, offload_param } }) =>
  stage === 3 && offload_param.device !== 'none'
    ? {
        path: ['zero_optimization', 'offload_param', 'device'],
        expected: '"none"',
        got: JSON.stringify(offload_param.device),
        hint: 'Offloading weights is not supported yet: set it to "none" or leave the section out.',
      }
    : null;

export const rules: readonly Rule[] = [
  onePrecision,
  offloadNeedsStage,
  initialScaleAboveMinimum,
  adamWIsDecoupled,
  warmupEndsBeforeTotal,
  weightsStayOnDevice,
];

/** Refuses in `draft` what the rules find in `config`, its values with all defaults. */
export function applyRules(draft: Draft, config: ResolvedValues): void {
  for (const rule of rules) {
    const violation = rule(config);
    if (!violation) continue;
    const { path, ...refusal } = violation;
    draft.refuse(path, refusal);
  }
}
