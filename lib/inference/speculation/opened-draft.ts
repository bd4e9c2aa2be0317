// Interface of a loaded draft model or head.
import type { CausalLM } from '../../models/index.js';
import type { Module } from '../../nn/module.js';
import type { CacheSizes } from '../paged-cache.js';
import type { RunnerSizes } from '../step-runner.js';
import type { DraftModel } from './draft-model.js';
import type { RunnerHooks } from './features.js';
import type { DraftCost } from './speculator.js';

/** Maximum sizes of the model's runner. */
export type DraftLimits = Pick<
  RunnerSizes,
  'blocks' | 'tokens' | 'sequences' | 'reach' | 'records'
>;

/** A loaded draft. Owns the weights. */
export interface OpenDraft {
  /** Sizes of the draft model's cache. */
  readonly sizes: CacheSizes;
  /**
   * Returns hooks around the model's forwards, for a cache of `blocks` blocks; null if there are
   * none.
   */
  hooksFor(blocks: number): RunnerHooks | null;
  costFor(model: CausalLM): DraftCost;
  /**
   * Allocates the cache, after hooksFor(). The result owns the weights. Throws DS_OUT_OF_MEMORY if
   * the cache does not fit.
   */
  modelFor(limits: DraftLimits, vocabSize: number): DraftModel;
  /** Frees the weights. */
  dispose(): void;
}

/** Estimates the relative time of a token from the numbers of parameters. */
export const draftCost = (draft: Module, model: Module): number =>
  countParameters(draft) / countParameters(model);

const countParameters = (model: Module): number =>
  model.parameters().reduce((sum, { numel }) => sum + numel, 0);
