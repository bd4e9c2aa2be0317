// The section "sparse_attention" of a ds_config.json: the pattern of all attention of a model.
import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { type SparsityOptions, sparsify } from '../../nn/sparse-attention.js';
import { readSparsity, requireBlocks } from '../../nn/sparse-patterns.js';

/**
 * Gives the pattern of the section to all attention of `module`, made for the longest text that the
 * model takes; a model keeps its own where there is no section. Returns what restores it. Throws
 * DS_CONFIG for a model without attention that can be sparse, and for one whose texts are too short
 * for the pattern.
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
    throw inSection(error, 'Lower block, or ask for fewer blocks: no text of the model has more.');
  }
  try {
    return sparsify(module, options);
  } catch (error) {
    throw inSection(error);
  }
}

/** `error` of a pattern that the configuration has asked for. */
function inSection(error: unknown, advice?: string): unknown {
  if (!(error instanceof DsError)) return error;
  const { expected = '', got = '', hint = '' } = error;
  return new DsError({
    ...{ code: 'DS_CONFIG', op: 'sparse_attention', expected, got, hint: advice ?? hint },
  });
}
