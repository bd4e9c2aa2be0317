// Converts torch_autocast to the bf16 or fp16 section with the same dtype.
import type { ResolvedValues } from '../../types/config.js';
import type { Draft } from './draft.js';
import type { Rule } from './rule.js';
import { isSection } from './schema.js';

/**
 * Enables bf16 or fp16 if `draft` has autocast of that dtype, and adds a notice about differences
 * from PyTorch.
 */
export function readAutocast(draft: Draft): void {
  const { torch_autocast: section } = draft.value;
  if (!isSection(section) || section.enabled !== true) return;
  const { dtype } = section;
  if (dtype !== 'bf16' && dtype !== 'fp16') return;
  const own = draft.value[dtype] ?? {};
  if (!isSection(own)) return; // The schema refuses it.
  const isOn = own.enabled === true;
  draft.value[dtype] = { ...own, enabled: true };
  const of = 'torch_autocast.dtype';
  if (!isOn) draft.filled.set(`${dtype}.enabled`, { from: 'derived', of });
  const text = `enables ${dtype}.enabled. Weights and activations are ${dtype}; master weights and sums are fp32. In PyTorch, weights, norms and softmax stay fp32.`;
  draft.note('advice', ['torch_autocast', 'enabled'], text);
}

/**
 * Requires a dtype for autocast. PyTorch would select it by device: fp16 on a GPU, bf16 on a CPU.
 */
export const autocastNamesItsDtype: Rule = ({ torch_autocast: autocast }: ResolvedValues) =>
  autocast.enabled && autocast.dtype === null
    ? {
        path: ['torch_autocast', 'dtype'],
        expected: '"bf16" or "fp16"',
        got: 'none',
        hint: 'Set it to "bf16" where the GPU has it.',
      }
    : null;
