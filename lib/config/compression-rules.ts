// Rules across the keys of compression_training: required keys and limits of enabled techniques.
import type { ResolvedValues } from '../../types/config.js';
import { Regex } from '../runtime/regex/regex.js';
import { formatConfigValue } from './config-error.js';
import type { Advice, Rule, Violation } from './rule.js';

type Section = ResolvedValues['compression_training'];
type Technique = Exclude<keyof Section, 'layer_reduction'>;

const SECTION = 'compression_training';

const TECHNIQUES: readonly Technique[] = [
  'weight_quantization',
  'activation_quantization',
  'sparse_pruning',
  'row_pruning',
  'head_pruning',
  'channel_pruning',
];

interface Group {
  readonly modules: string | readonly string[];
  readonly related_modules: readonly (readonly string[])[] | null;
}

/** Returns the groups of enabled techniques. */
function groupsIn(section: Section): { path: readonly string[]; group: Group }[] {
  return TECHNIQUES.filter((name) => section[name].shared_parameters.enabled).flatMap((name) =>
    Object.entries(section[name].different_groups).map(([group, value]) => ({
      path: [SECTION, name, 'different_groups', group],
      group: value,
    })),
  );
}

/** Returns the first violation that `find` returns for `items`. */
function findFirst<Item>(
  items: readonly Item[],
  find: (item: Item) => Violation | null,
): Violation | null {
  for (const item of items) {
    const flaw = find(item);
    if (flaw) return flaw;
  }
  return null;
}

/** An enabled technique needs a group. Source: DeepSpeed asserts that the key exists. */
const hasGroups: Rule = ({ compression_training: section }) =>
  findFirst(TECHNIQUES, (name) => {
    const { shared_parameters: shared, different_groups: groups } = section[name];
    if (!shared.enabled || Object.keys(groups).length > 0) return null;
    const hint = 'Add a group: { "NAME": { "params": { .. }, "modules": [ .. ] } }.';
    const path = [SECTION, name, 'different_groups'];
    return { path, expected: 'at least one group, because the technique is on', got: 'none', hint };
  });

const patternsAreExpressions: Rule = ({ compression_training: section }) =>
  findFirst(groupsIn(section), ({ path, group }) => {
    const { modules, related_modules: related } = group;
    const patterns = [[modules].flat(), ...(related ?? [])].flat();
    const wrong = patterns.find((pattern) => pattern !== '*' && !isExpression(pattern));
    if (wrong === undefined) return null;
    const hint = 'Write a backslash before special characters that are meant literally.';
    return { path, expected: 'regular expressions', got: formatConfigValue(wrong), hint };
  });

function isExpression(text: string): boolean {
  try {
    return Boolean(new Regex(text));
  } catch {
    return false;
  }
}

/** modules and related_modules have equal lengths: DeepSpeed drops entries without a partner. */
const relatedModulesPairUp: Rule = ({ compression_training: section }) =>
  findFirst(groupsIn(section), ({ path, group: { modules, related_modules: related } }) => {
    const count = [modules].flat().length;
    if (!related || related.length === count) return null;
    const expected = `${count} lists, one for each entry of modules`;
    const hint = 'Write one list of related layers for each entry of modules.';
    return { path: [...path, 'related_modules'], expected, got: String(related.length), hint };
  });

/**
 * The bits fall from start_bits to target_bits, at least to 3 bits for some types. Source:
 * DeepSpeed's quantizers.
 */
const bitsCanBeReached: Rule = ({ compression_training: { weight_quantization: section } }) => {
  const { shared_parameters: shared, different_groups: groups } = section;
  if (!shared.enabled) return null;
  return findFirst(Object.entries(groups), ([name, { params }]) => {
    const path = [SECTION, 'weight_quantization', 'different_groups', name, 'params'];
    const { start_bits: start, target_bits: target } = params;
    if (start < target) {
      const expected = `at least target_bits, ${target}`;
      const hint = 'Raise start_bits or lower target_bits.';
      return { path: [...path, 'start_bits'], expected, got: String(start), hint };
    }
    if (target > 2) return null;
    const isNearest = shared.quantize_weight_in_forward || shared.rounding === 'nearest';
    if (shared.quantization_type === 'symmetric' && isNearest) return null;
    const hint =
      'For 1 and 2 bits, set quantization_type to "symmetric" and rounding to "nearest".';
    return { path: [...path, 'target_bits'], expected: 'at least 3', got: String(target), hint };
  });
};

/** Head pruning needs num_heads. Source: DeepSpeed, which asserts it. */
const headsAreCounted: Rule = ({ compression_training: { head_pruning: section } }) => {
  const { enabled, num_heads: heads } = section.shared_parameters;
  if (!enabled || heads !== null) return null;
  const path = [SECTION, 'head_pruning', 'shared_parameters', 'num_heads'];
  return { path, expected: 'the number of heads of a layer', got: 'none', hint: 'Set num_heads.' };
};

/**
 * Layer reduction needs its three keys. Source: DeepSpeed, which does not compare
 * keep_number_layer.
 */
const layersAreNamed: Rule = ({ compression_training: { layer_reduction: section } }) => {
  if (!section.enabled) return null;
  const { module_name_prefix: prefix, teacher_layer: layers, keep_number_layer: count } = section;
  const path = [SECTION, 'layer_reduction'];
  if (layers.length > 0 && prefix === null) {
    const hint = 'Set it to the path of the layers, such as "transformer.h".';
    return { path: [...path, 'module_name_prefix'], expected: 'a path', got: 'none', hint };
  }
  if (count === null || count === layers.length) return null;
  const expected = `${count} layers, which is keep_number_layer`;
  const hint = 'List one teacher layer for each of the keep_number_layer layers.';
  return { path: [...path, 'teacher_layer'], expected, got: formatConfigValue(layers), hint };
};

export const compressionRules: readonly Rule[] = [
  layersAreNamed,
  hasGroups,
  patternsAreExpressions,
  relatedModulesPairUp,
  bitsCanBeReached,
  headsAreCounted,
];

/** Keys that quantize_weight_in_forward does not read. DeepSpeed ignores them silently. */
export function unreadInForward({
  compression_training: { weight_quantization: section },
}: ResolvedValues): Advice | null {
  const { shared_parameters: shared, different_groups: groups } = section;
  if (!shared.enabled || !shared.quantize_weight_in_forward) return null;
  const falls = Object.values(groups).some(({ params }) => params.start_bits > params.target_bits);
  const unread = [
    ...(falls ? ['start_bits'] : []),
    ...(shared.rounding === 'nearest' ? [] : ['rounding']),
    ...(shared.fp16_mixed_quantize.enabled ? ['fp16_mixed_quantize'] : []),
  ];
  if (unread.length === 0) return null;
  const path = [SECTION, 'weight_quantization', 'shared_parameters', 'quantize_weight_in_forward'];
  const text = `is true, so ${unread.join(', ')} ${unread.length > 1 ? 'have' : 'has'} no effect: weights have target_bits from schedule_offset on, rounded to nearest.`;
  return { path, text };
}
