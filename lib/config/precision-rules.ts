// Rules across the keys that choose number formats and loss scaling.

import type { ResolvedValues } from '../../types/config.js';
import { autocastNamesItsDtype } from './autocast.js';
import type { Rule } from './rule.js';

/** fp16 excludes bf16. */
const onePrecision: Rule = ({ fp16, bf16 }) =>
  fp16.enabled && bf16.enabled
    ? {
        path: ['fp16', 'enabled'],
        expected: 'fp16 or bf16, not both',
        got: 'both enabled',
        hint: 'Set one of fp16.enabled and bf16.enabled to false.',
      }
    : null;

/** Returns a violation unless the initial loss scale lies in its range. */
const initialScaleAboveMinimum: Rule = ({ fp16 }) =>
  fp16.enabled && fp16.loss_scale === 0 && 2 ** fp16.initial_scale_power < fp16.min_loss_scale
    ? {
        path: ['fp16', 'initial_scale_power'],
        expected: `a first scale of at least min_loss_scale = ${fp16.min_loss_scale}`,
        got: `2^${fp16.initial_scale_power}`,
        hint: 'Raise initial_scale_power or lower min_loss_scale.',
      }
    : null;

/** LAMB with fp16 needs dynamic loss scaling, as in DeepSpeed. */
const lambScalesDynamically: Rule = ({ optimizer, fp16 }) =>
  /lamb$/i.test(optimizer?.type ?? '') && fp16.enabled && fp16.loss_scale !== 0
    ? {
        path: ['fp16', 'loss_scale'],
        expected: `0 (dynamic) with ${optimizer?.type}`,
        got: String(fp16.loss_scale),
        hint: 'Set fp16.loss_scale to 0, or choose another optimizer.',
      }
    : null;

/** data_types refines fp16 and bf16; it must not contradict them. */
const parameterDtypeAgrees: Rule = (config) => {
  const { param_dtype: dtype } = config.data_types;
  const chosen = weightDtype(config);
  if (dtype === null || dtype === chosen) return null;
  return {
    path: ['data_types', 'param_dtype'],
    expected: `"${chosen}", as set by fp16.enabled and bf16.enabled`,
    got: `"${dtype}"`,
    hint: 'Remove it, or change fp16.enabled and bf16.enabled to match.',
  };
};

/**
 * Gradients are summed in the dtype of the weights or in fp32. Source: DeepSpeed's optimizers
 * refuse other dtypes too.
 */
const gradientsSumInWeightsDtypeOrFp32: Rule = (config) => {
  const { grad_accum_dtype: dtype } = config.data_types;
  const chosen = weightDtype(config);
  if (dtype === null || dtype === chosen || dtype === 'fp32') return null;
  return {
    path: ['data_types', 'grad_accum_dtype'],
    expected: `"fp32", or the weights' "${chosen}"`,
    got: `"${dtype}"`,
    hint: 'Set it to "fp32", or remove it.',
  };
};

/** super_offload needs gradients in the dtype of weights: it overwrites them with new weights. */
const speculationHasOneDtype: Rule = (config) => {
  const { grad_accum_dtype: dtype } = config.data_types;
  const { super_offload: requested } = config.zero_optimization.offload_optimizer;
  const chosen = weightDtype(config);
  if (!requested || dtype === null || dtype === chosen) return null;
  return {
    path: ['zero_optimization', 'offload_optimizer', 'super_offload'],
    expected: `false or null while data_types.grad_accum_dtype is "${dtype}" and weights are "${chosen}"`,
    got: 'true',
    hint: 'Set super_offload to null, which then waits for the step decision, or remove data_types.grad_accum_dtype.',
  };
};

function weightDtype({ fp16, bf16 }: ResolvedValues): 'fp16' | 'bf16' | 'fp32' {
  if (fp16.enabled) return 'fp16';
  return bf16.enabled ? 'bf16' : 'fp32';
}

/** Optimizers that support bf16 moments. */
const WITH_BF16_STATES: readonly string[] = ['Adam', 'AdamW', 'FusedAdam', 'DeepSpeedCPUAdam'];

/** bf16_optimizer_states needs Adam or AdamW. */
const bf16StatesAreAdams: Rule = ({ bf16, optimizer }) =>
  bf16.bf16_optimizer_states && optimizer && !WITH_BF16_STATES.includes(optimizer.type)
    ? {
        path: ['bf16', 'bf16_optimizer_states'],
        expected: `false with ${optimizer.type}, which has no state in bf16`,
        got: 'true',
        hint: 'Set it to false, or optimizer.type to "AdamW" or "Adam".',
      }
    : null;

/** fp8 needs bf16: FP8 products replace products of bf16 layers. */
const fp8NeedsBf16: Rule = ({ fp8, bf16 }) =>
  fp8.enabled && !bf16.enabled
    ? {
        path: ['fp8', 'enabled'],
        expected: 'false without bf16',
        got: 'true',
        hint: 'Set bf16.enabled to true.',
      }
    : null;

/** fp8.all_gather needs one scale per weight, and stage 3, which shards weights. */
const fp8GathersWholeScales: Rule = ({ fp8, zero_optimization: zero }) => {
  if (!fp8.all_gather) return null;
  const violation = (expected: string, hint: string) => ({
    path: ['fp8', 'all_gather'],
    expected,
    got: 'true',
    hint,
  });
  const off = 'or fp8.all_gather to false.';
  if (!fp8.enabled) return violation('false without fp8', `Set fp8.enabled to true, ${off}`);
  if (fp8.recipe !== 'tensorwise')
    return violation(`false with "${fp8.recipe}"`, `Set fp8.recipe to "tensorwise", ${off}`);
  if (zero.stage !== 3)
    return violation(`false at stage ${zero.stage}`, `Set zero_optimization.stage to 3, ${off}`);
  if (zero.zero_quantized_weights)
    return violation('false with zero_quantized_weights', 'Keep one of them.');
  return null;
};

export const precisionRules: readonly Rule[] = [
  onePrecision,
  initialScaleAboveMinimum,
  lambScalesDynamically,
  parameterDtypeAgrees,
  gradientsSumInWeightsDtypeOrFp32,
  speculationHasOneDtype,
  bf16StatesAreAdams,
  fp8NeedsBf16,
  fp8GathersWholeScales,
  autocastNamesItsDtype,
];
