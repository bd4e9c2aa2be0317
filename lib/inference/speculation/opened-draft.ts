// What an engine needs of a loaded draft model or head.
import type { CausalLM } from '../../models/index.js';
import type { Module } from '../../nn/module.js';
import type { CacheSizes } from '../paged-cache.js';
import type { RunnerSizes } from '../step-runner.js';
import type { DraftModel } from './draft-model.js';
import type { RunnerHooks } from './features.js';
import type { DraftCost } from './speculator.js';

/** The largest sizes of the model's runner. */
export type DraftRoom = Pick<RunnerSizes, 'blocks' | 'tokens' | 'sequences' | 'reach' | 'records'>;

/** A loaded draft. It owns the weights. */
export interface Draft {
  /** Sizes of the draft model's cache. */
  readonly sizes: CacheSizes;
  /**
   * Returns what the model's runner does around its forwards, for a cache of `blocks` blocks; null:
   * nothing. Throws DS_OUT_OF_MEMORY.
   */
  besideFor(blocks: number): RunnerHooks | null;
  costFor(model: CausalLM): DraftCost;
  /**
   * Allocates the cache, after besideFor(). The result owns the weights. Throws DS_OUT_OF_MEMORY.
   */
  modelFor(room: DraftRoom, vocabSize: number): DraftModel;
  /** Frees the weights. */
  dispose(): void;
}

/** Estimates the time of a token by the numbers of parameters. */
export const costOf = (draft: Module, model: Module): number => sizeOf(draft) / sizeOf(model);

const sizeOf = (model: Module): number =>
  model.parameters().reduce((sum, { numel }) => sum + numel, 0);
