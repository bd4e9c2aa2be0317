// Rules across the keys of sparse_attention: the rules of its patterns.

import type { ResolvedValues } from '../../types/config.js';
import { DsError } from '../errors.js';
import { readSparsity, type SparsityOptions } from '../nn/sparse-patterns.js';
import { required } from '../runtime/required.js';
import { formatConfigValue } from './config-error.js';
import type { Advice, Rule } from './rule.js';

const SECTION = 'sparse_attention';

/** Keys that each pattern reads in addition to mode, block and different_layout_per_head. */
const READ: Readonly<Record<string, readonly string[]>> = {
  dense: [],
  fixed: [
    'num_local_blocks',
    'num_global_blocks',
    'attention',
    'horizontal_global_attention',
    'num_different_global_patterns',
  ],
  variable: [
    'num_random_blocks',
    'local_window_blocks',
    'global_block_indices',
    'attention',
    'global_block_end_indices',
    'horizontal_global_attention',
  ],
  bigbird: ['num_random_blocks', 'num_sliding_window_blocks', 'num_global_blocks'],
  bslongformer: ['num_sliding_window_blocks', 'global_block_indices', 'global_block_end_indices'],
};

const ALWAYS = ['mode', 'block', 'different_layout_per_head'];

/** Returns a text with the options of patterns by their names in a configuration. */
const snakeCase = (text: string): string =>
  text.replace(/\b[a-z]+(?:[A-Z][a-z]*)+\b/g, (name) =>
    name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
  );

/**
 * Refuses invalid patterns. Source: DeepSpeed's sparsity_config.py, which raises the same errors.
 */
const patternCanBeMade: Rule = ({ sparse_attention: section }) => {
  if (section === true) {
    const hint = 'Name the pattern: { "mode": "fixed" }.';
    return { path: [SECTION], expected: 'a section, or false', got: 'true', hint };
  }
  if (!section) return null;
  try {
    readSparsity(section as SparsityOptions);
    return null;
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    const { op = '', expected = '', got = '', hint = '' } = error;
    const key = snakeCase(required(op.split(' ').at(-1)));
    return { path: [SECTION, key], expected: snakeCase(expected), got, hint: snakeCase(hint) };
  }
};

export const sparseRules: readonly Rule[] = [patternCanBeMade];

/**
 * Returns advice for a key that the pattern does not read. DeepSpeed ignores it silently.
 */
export function unreadSparseKey({ sparse_attention: section }: ResolvedValues): Advice | null {
  if (!section || section === true) return null;
  const fallback = readSparsity({ mode: section.mode });
  const read = new Set([...ALWAYS, ...(READ[section.mode] ?? [])]);
  const camel = (key: string): string => key.replace(/_(\w)/g, (_, c: string) => c.toUpperCase());
  const unread = Object.entries(section).filter(
    ([key, value]) =>
      !read.has(key) &&
      formatConfigValue(value) !== formatConfigValue(fallback[camel(key) as keyof typeof fallback]),
  );
  if (unread.length === 0) return null;
  const names = unread.map(([key]) => key).join(', ');
  const text = `has the mode "${section.mode}", which does not read ${names}.`;
  return { path: [SECTION], text };
}
