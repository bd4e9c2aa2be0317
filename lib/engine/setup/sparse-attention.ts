// Applies the section "sparse_attention" to all attention of a model.
import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { type SparsityOptions, sparsify } from '../../nn/sparse-attention.js';
import { readSparsity, requireBlocks } from '../../nn/sparse-patterns.js';

/**
 * Sets the pattern of the section, for the longest sequence of the model, in all attention of
 * `module`. Without a section, the model keeps its own pattern. Returns a function that restores
 * it. Throws DS_CONFIG for a model without sparse attention, and if its sequences are too short for
 * the pattern.
 */
export function sparsifyFromSection(
  module: Module,
  section: ResolvedConfig['sparse_attention'],
): () => void {
  if (!section || section === true) return () => {};
  const { config } = module as { config?: { maxSeq?: unknown } };
  const isKnown = Number.isSafeInteger(config?.maxSeq);
  const longest = isKnown ? { maxTokens: config?.maxSeq } : {};
  const options = { ...section, ...longest } as SparsityOptions;
  try {
    if (isKnown) requireBlocks(readSparsity(options), 0);
  } catch (error) {
    throw inSection(
      error,
      'Reduce block, or the numbers of blocks, to fit the longest sequence of the model.',
    );
  }
  try {
    return sparsify(module, options);
  } catch (error) {
    throw inSection(error);
  }
}

/** Converts an error of a pattern to one of the configuration. */
function inSection(error: unknown, advice?: string): unknown {
  if (!(error instanceof DsError)) return error;
  const { expected = '', got = '', hint = '' } = error;
  return new DsError({
    ...{ code: 'DS_CONFIG', op: 'sparse_attention', expected, got, hint: advice ?? hint },
  });
}
