// Rules across the keys of data_efficiency.data_routing.random_ltd: required keys and combinations.
import type { ResolvedValues } from '../../types/config.js';
import { formatConfigValue } from './config-error.js';
import type { Rule, Violation } from './rule.js';

const PATH = ['data_efficiency', 'data_routing', 'random_ltd'];

function sectionOf({ data_efficiency: section }: ResolvedValues) {
  const routing = section?.enabled ? section.data_routing : null;
  const ltd = routing?.enabled ? routing.random_ltd : null;
  return ltd?.enabled ? ltd : null;
}

const findMissing = (...path: string[]): Violation => ({
  path: [...PATH, ...path],
  expected: 'a value, because random_ltd is on',
  got: 'none',
  hint: 'Set it, or set random_ltd.enabled to false.',
});

const hasRequiredKeys: Rule = (config) => {
  const ltd = sectionOf(config);
  if (!ltd) return null;
  if (!ltd.random_ltd_layer_id?.length) return findMissing('random_ltd_layer_id');
  const schedule = ltd.random_ltd_schedule;
  for (const key of ['min_value', 'max_value'] as const) {
    if (schedule?.[key] == null) return findMissing('random_ltd_schedule', key);
  }
  for (const key of ['require_steps', 'seq_per_step'] as const) {
    const value = schedule?.schedule_config?.[key];
    if (value == null) return findMissing('random_ltd_schedule', 'schedule_config', key);
  }
  return null;
};

const namesLayers: Rule = (config) => {
  const ltd = sectionOf(config);
  const {
    random_ltd_layer_id: ids,
    random_ltd_layer_num: count,
    total_layer_num: total,
  } = ltd ?? {};
  if (!ids?.length) return null;
  const path = [...PATH, 'random_ltd_layer_id'];
  const got = formatConfigValue(ids);
  const hint = 'List each layer once; the first layer has the number 0.';
  if (new Set(ids).size !== ids.length) return { path, expected: 'each layer once', got, hint };
  if (count != null && count !== ids.length) {
    return { path, expected: `${count} layers, as in random_ltd_layer_num`, got, hint };
  }
  if (total == null || ids.every((id) => id < total)) return null;
  return { path, expected: `numbers below ${total}, the total_layer_num`, got, hint };
};

const growsFromTokens: Rule = (config) => {
  const schedule = sectionOf(config)?.random_ltd_schedule;
  const { min_value: min, max_value: max } = schedule ?? {};
  const step = schedule?.schedule_config?.seq_per_step;
  if (min == null || max == null || step == null) return null;
  const path = [...PATH, 'random_ltd_schedule'];
  if (max < min) {
    const expected = `at least min_value, ${min}`;
    return {
      path: [...path, 'max_value'],
      expected,
      got: String(max),
      hint: 'Raise max_value or lower min_value.',
    };
  }
  if (min >= step) return null;
  return {
    path: [...path, 'min_value'],
    expected: `at least seq_per_step, ${step}, because lengths are rounded down to its multiples`,
    got: String(min),
    hint: 'Start at a multiple of seq_per_step, or make it smaller.',
  };
};

/**
 * random_ltd excludes sparse attention and sequence parallelism, because its layers see only some
 * tokens.
 */
const seesRows: Rule = (config) => {
  if (!sectionOf(config)) return null;
  const hint = 'Remove one of the two features.';
  const expected = 'none with random_ltd, because its layers see a random part of each row';
  const { sequence_parallel_size: ranks, sparse_attention: sparse } = config;
  if (ranks > 1) return { path: ['sequence_parallel_size'], expected, got: String(ranks), hint };
  return sparse ? { path: ['sparse_attention'], expected, got: 'a pattern', hint } : null;
};

export const routingRules: readonly Rule[] = [
  hasRequiredKeys,
  namesLayers,
  growsFromTokens,
  seesRows,
];
