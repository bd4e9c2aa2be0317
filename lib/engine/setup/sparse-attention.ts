// Applies the section "sparse_attention" to all attention layers of a model.
import { DsError } from '../../errors.js';
import { type SparsityOptions, sparsify } from '../../nn/sparse-attention.js';
import { readSparsity, requireBlocks } from '../../nn/sparse-patterns.js';
import type { Decisions } from '../engine-parts.js';
import type { BuildResources } from '../release-stack.js';

/**
 * Sets the pattern of the section in all attention layers. `undo` restores their own patterns.
 * Throws DS_CONFIG for a model without such layers, or if its sequences are too short for the
 * pattern.
 */
export function sparsifyFromSection(
  { module, config: { sparse_attention: section } }: Decisions,
  { undo }: BuildResources,
): void {
  if (!section || section === true) return;
  const { maxSeq } = (module as { config?: { maxSeq?: unknown } }).config ?? {};
  const isKnown = Number.isSafeInteger(maxSeq);
  const longest = isKnown ? { maxTokens: maxSeq } : {};
  const options = { ...section, ...longest } as SparsityOptions;
  try {
    if (isKnown) requireBlocks(readSparsity(options), 0);
  } catch (error) {
    throw toSectionError(
      error,
      'Reduce block, or the numbers of blocks, to fit the longest sequence of the model.',
    );
  }
  try {
    undo.defer(sparsify(module, options));
  } catch (error) {
    throw toSectionError(error);
  }
}

/** Converts an error of a pattern to one of the configuration section. */
function toSectionError(error: unknown, advice?: string): unknown {
  if (!(error instanceof DsError)) return error;
  const { expected = '', got = '', hint = '' } = error;
  return new DsError({
    code: 'DS_CONFIG',
    op: 'sparse_attention',
    expected,
    got,
    hint: advice ?? hint,
  });
}
