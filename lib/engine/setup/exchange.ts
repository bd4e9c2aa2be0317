// Checks optimizers that exchange momentum or updates instead of gradients.
import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import { canExchange } from '../../optim/exchange.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { Progress } from '../step/progress.js';

/**
 * Returns a function: whether gradients are summed over the ranks in this step. Returns null if
 * they are summed in every step.
 */
export function sumsGradients(optimizer: Optimizer, progress: Progress): (() => boolean) | null {
  if (!canExchange(optimizer)) return null;
  return () => optimizer.sumsGradients(progress.appliedSteps + 1);
}

/**
 * Throws DS_CONFIG in two cases:
 *
 * - ZeRO would shard tensors that ranks exchange whole. DeepSpeed also rejects this.
 * - Pipeline stages share parameters, and must sum the gradients of these.
 */
export function requireExchange(
  optimizer: Optimizer,
  config: ResolvedConfig,
  inStages: boolean,
): void {
  if (!canExchange(optimizer)) return;
  const { stage } = config.zero_optimization;
  const { name } = optimizer;
  if (stage !== 0) {
    throw new DsError({
      code: 'DS_CONFIG',
      op: 'zero_optimization.stage',
      expected: `0 with ${name}, because ranks exchange moments of whole parameters`,
      got: `${stage}, which shards gradients and moments`,
      hint: 'Set it to 0, or use Adam, Lamb or SGD.',
    });
  }
  if (!inStages) return;
  throw new DsError({
    code: 'DS_CONFIG',
    op: 'optimizer.type',
    expected: 'an optimizer with summed gradients in a pipeline',
    got: `${name}, which keeps local gradients on each rank after the warm-up`,
    hint: 'Set pipeline.stages to 1, or use Adam, Lamb or SGD.',
  });
}
