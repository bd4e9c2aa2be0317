// The section "sparse_attention" of a ds_config.json: the pattern of all attention of a model.
import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { type SparsityOptions, sparsify } from '../../nn/sparse-attention.js';

/**
 * Gives the pattern of the section to all attention of `module`, made for the longest text that the
 * model takes; a model keeps its own where there is no section. Returns what restores it. Throws
 * DS_CONFIG for a model without attention that can be sparse.
 */
export function sparsifyFromSection(
  module: Module,
  section: ResolvedConfig['sparse_attention'],
): () => void {
  if (!section || section === true) return () => {};
  const { config } = module as { config?: { maxSeq?: unknown } };
  const maxTokens = Number.isSafeInteger(config?.maxSeq) ? { maxTokens: config?.maxSeq } : {};
  try {
    return sparsify(module, { ...section, ...maxTokens } as SparsityOptions);
  } catch (error) {
    if (!(error instanceof DsError) || error.op !== 'sparsify') throw error;
    const { expected = '', got = '', hint = '' } = error;
    throw new DsError({ code: 'DS_CONFIG', op: 'sparse_attention', expected, got, hint });
  }
}
