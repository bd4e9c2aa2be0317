// Optimizers whose ranks exchange something else than gradients: when they do, and what they need.
import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import { canExchange } from '../../optim/exchange.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { Progress } from '../step/progress.js';

/**
 * Whether gradients are summed over the ranks in the step under way; null where they are in every
 * step.
 */
export function sumsGradients(optimizer: Optimizer, progress: Progress): (() => boolean) | null {
  if (!canExchange(optimizer)) return null;
  return () => optimizer.sumsGradients(progress.appliedSteps + 1);
}

/**
 * Throws DS_CONFIG where ZeRO cuts what ranks exchange as a whole, DeepSpeed's reason as well, or a
 * pipeline's stages share parameters whose gradients they have to sum.
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
      expected: `0 with ${name}, whose ranks exchange moments of whole parameters`,
      got: `${stage}, which shares gradients and moments out`,
      hint: 'Set it to 0, or take Adam, Lamb or SGD.',
    });
  }
  if (!inStages) return;
  throw new DsError({
    code: 'DS_CONFIG',
    op: 'optimizer.type',
    expected: 'an optimizer whose gradients are summed, in a pipeline',
    got: `${name}, whose ranks keep their own gradients after the warm-up`,
    hint: 'Set pipeline.stages to 1, or take Adam, Lamb or SGD.',
  });
}
