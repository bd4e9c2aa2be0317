// Rules across keys: each function returns keys that conflict, and the fix.
import type { ResolvedValues } from '../../types/config.js';
import { expectedMethod } from '../pipe/partition-method.js';
import { formatValue } from '../runtime/format-value.js';
import { autotuningRules, searchesNothing } from './autotuning-rules.js';
import { compressionRules, unreadInForward } from './compression-rules.js';
import { curriculumAdvices, curriculumRules } from './curriculum-rules.js';
import type { Draft } from './draft.js';
import { partitionRules } from './partition-rules.js';
import { precisionRules } from './precision-rules.js';
import { routingRules } from './routing-rules.js';
import type { Advice, Rule, Violation } from './rule.js';
import { samplingAdvices, samplingRules } from './sampling-rules.js';
import { sparseRules, unreadSparseKey } from './sparse-rules.js';
import { zeroRules } from './zero-rules.js';

/** "AdamW" requires adam_w_mode: its name means decoupled weight decay. */
const adamWIsDecoupled: Rule = ({ optimizer }) =>
  optimizer?.type === 'AdamW' && !optimizer.params.adam_w_mode
    ? {
        path: ['optimizer', 'params', 'adam_w_mode'],
        expected: 'true with "AdamW"',
        got: 'false',
        hint: 'For weight decay inside the gradient set optimizer.type to "Adam".',
      }
    : null;

/** pipeline.partition must be a known method. */
const partitionIsKnown: Rule = ({ pipeline: { partition } }) => {
  const expected = partition === 'best' ? null : expectedMethod(partition);
  return expected
    ? {
        path: ['pipeline', 'partition'],
        expected: `"best", or ${expected}`,
        got: formatValue(partition),
        hint: 'Remove the key: the default chooses the best method for the model.',
      }
    : null;
};

/** Generation uses the ranks that share each layer in training. */
const generatesOnTrainingRanks: Rule = ({ hybrid_engine: hybrid, tensor_parallel: tensor }) => {
  const { enabled, inference_tp_size: size } = hybrid;
  const ranks = Math.max(1, tensor.autotp_size);
  return enabled && size !== 1 && size !== ranks
    ? {
        path: ['hybrid_engine', 'inference_tp_size'],
        expected: ranks === 1 ? '1' : `1, or ${ranks} as tensor_parallel.autotp_size`,
        got: formatValue(size),
        hint: 'Set tensor_parallel.autotp_size: generation uses the ranks that share each layer in training.',
      }
    : null;
};

const rules: readonly Rule[] = [
  ...precisionRules,
  ...zeroRules,
  ...partitionRules,
  ...sparseRules,
  ...curriculumRules,
  ...routingRules,
  ...samplingRules,
  ...compressionRules,
  ...autotuningRules,
  adamWIsDecoupled,
  partitionIsKnown,
  generatesOnTrainingRanks,
];

/**
 * Returns advice for a schedule that decays, but has no steps left after its warm-up. Source:
 * DeepSpeed, which warns and runs.
 */
const warmupOutlastsTotal = ({ scheduler }: ResolvedValues): Advice | null => {
  if (scheduler?.type !== 'WarmupDecayLR' && scheduler?.type !== 'WarmupCosineLR') return null;
  const { total_num_steps: total, warmup_num_steps: warmup } = scheduler.params;
  if (total >= warmup) return null;
  const text = `is ${total}, and warmup_num_steps is ${warmup}: the run ends during the warm-up, and the rate never reaches its peak.`;
  return { path: ['scheduler', 'params', 'total_num_steps'], text };
};

/**
 * Returns advice for auto_cast without fp16: inputs are cast only for fp16 weights, as in
 * DeepSpeed.
 */
const castWithoutFp16 = ({ fp16 }: ResolvedValues): Advice | null => {
  if (!fp16.auto_cast || fp16.enabled) return null;
  const text = 'has no effect because fp16.enabled is false: inputs of forward are not converted.';
  return { path: ['fp16', 'auto_cast'], text, because: 'fp16.enabled' };
};

const advices = [
  warmupOutlastsTotal,
  castWithoutFp16,
  unreadSparseKey,
  unreadInForward,
  searchesNothing,
  ...curriculumAdvices,
  ...samplingAdvices,
];

/** Returns advice on `config`. */
function adviceOn(config: ResolvedValues): Advice[] {
  return advices.map((advice) => advice(config)).filter((advice) => advice !== null);
}

/** Returns the violations in `config`. */
export function violations(config: ResolvedValues): Violation[] {
  return rules.map((rule) => rule(config)).filter((violation) => violation !== null);
}

/**
 * Adds violations and advice for `config` (values with all defaults) to `draft`. Ignores keys in
 * `left`: they have no value yet.
 */
export function applyRules(draft: Draft, config: ResolvedValues, left: ReadonlySet<string>): void {
  for (const { path, text, because = '' } of adviceOn(config)) {
    if (!left.has(because)) draft.note('advice', path, text);
  }
  for (const { path, ...refusal } of violations(config)) draft.refuse(path, refusal);
}
