// Sequence parallelism: divides the tokens of samples over the axis sp.

import type { Distributed } from '../../comm/index.js';
import { AXIS } from '../../comm/mesh-shape.js';
import type { Module } from '../../nn/module.js';
import { canExchange } from '../../optim/exchange.js';
import { type SequenceParallel, SequenceRanks } from '../../parallel/index.js';
import { configError } from '../../runtime/input-errors.js';
import type { Decisions } from '../engine-parts.js';
import { otherMeshError, type Ranks } from '../ranks.js';
import type { BuildResources } from '../release-stack.js';

/**
 * Returns whether ranks along sp have different tokens of the same samples. Throws DS_CONFIG if the
 * sizes differ from the mesh, or if the model, the pipeline or the optimizer does not support it.
 */
export function requireSequence(
  { module, config, optimizer, plan }: Decisions,
  job: Distributed,
): boolean {
  const { mesh } = job;
  const { sequence_parallel_size: size, data_parallel_size: data } = config;
  const ranks = mesh.size(AXIS.data);
  if (data !== null && data !== ranks) {
    throw configError('data_parallel_size', `${ranks}, the size of axis dp`, `${data}`);
  }
  if (size === 1) return false;
  if (size !== mesh.size(AXIS.sequence)) throw otherMeshError(KEY, AXIS.sequence, size, job);
  if (plan) throw configError(KEY, '1 in a pipeline', `${size}`);
  if (canExchange(optimizer)) {
    const expected = '1 with an optimizer that keeps local gradients on each rank';
    throw configError(KEY, expected, `${size} with ${optimizer.name}`, 'Use AdamW, Lamb or SGD.');
  }
  if (supportsSequenceParallel(module)) return true;
  throw configError(
    KEY,
    'a model of nn.models, or a model with shareSequence()',
    `a ${module.constructor.name}`,
    'See docs/sequence-parallel.md for your own model.',
  );
}

/** Lets the model compute with this rank's tokens, until the engine is destroyed. */
export function splitSequence(
  { module }: Decisions,
  { sequenceGroup }: Ranks,
  { owned }: BuildResources,
): void {
  if (!sequenceGroup || !supportsSequenceParallel(module)) return;
  module.shareSequence(new SequenceRanks(sequenceGroup));
  owned.defer(() => module.shareSequence(null));
}

const KEY = 'sequence_parallel_size';

function supportsSequenceParallel(module: Module): module is Module & SequenceParallel {
  return 'shareSequence' in module && typeof module.shareSequence === 'function';
}
