// Rules across the keys of tensor_parallel.
import { findSpecError } from '../parallel/partition-specs.js';
import type { Rule } from './rule.js';
import { isSection } from './schema.js';

/** Requires one value for both names of the size. */
const oneSize: Rule = ({ tensor_parallel: { autotp_size: size, tensor_parallel: other } }) =>
  size > 1 && other.tp_size > 1 && size !== other.tp_size
    ? {
        path: ['tensor_parallel', 'tensor_parallel', 'tp_size'],
        expected: `${size}, as autotp_size`,
        got: String(other.tp_size),
        hint: 'Keep only autotp_size.',
      }
    : null;

/** Refuses a size with a disabled switch. */
const cutIsOn: Rule = ({ tensor_parallel: { enabled, autotp_size, tensor_parallel: other } }) => {
  const ranks = Math.max(autotp_size, other.tp_size);
  return !enabled && ranks > 1
    ? {
        path: ['tensor_parallel', 'enabled'],
        expected: `true with ${ranks} ranks of a layer`,
        got: 'false',
        hint: 'Leave enabled out, or set the size to 1.',
      }
    : null;
};

/** Requires complete rules for the division of layers. */
const specsAreRules: Rule = ({ tensor_parallel: { partition_config: config } }) => {
  for (const [index, spec] of (config?.layer_specs ?? []).entries()) {
    const error = findSpecError(spec);
    if (!error) continue;
    const path = ['tensor_parallel', 'partition_config', 'layer_specs', String(index), error.key];
    return { path, expected: error.expected, got: error.got, hint: error.hint };
  }
  return null;
};

export const partitionRules: readonly Rule[] = [oneSize, cutIsOn, specsAreRules];

/** Ranks per layer in an unchecked section; 1 if it has no size. */
export function layerRanksIn(section: unknown): number {
  if (!isSection(section)) return 1;
  const { autotp_size: size, tp_size: alias, tensor_parallel: long, tp: short } = section;
  const nested = [long, short].map((value) => (isSection(value) ? value.tp_size : null));
  const named = [size, alias, ...nested].map(Number).filter((n) => Number.isInteger(n) && n > 1);
  return Math.max(1, ...named);
}
