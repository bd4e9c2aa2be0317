// From the configuration to tokens of which each rank has a part.
import type { Distributed } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { canExchange } from '../../optim/exchange.js';
import { type SequenceParallel, SequenceRanks } from '../../parallel/index.js';
import type { Decisions } from '../engine-parts.js';
import type { Ranks } from '../ranks.js';
import type { ReleaseStack } from '../release-stack.js';

/**
 * Whether ranks that differ on sp have other tokens of the same samples, as the configuration says.
 * Throws DS_CONFIG where the mesh has other sizes, and for a model, a pipeline or an optimizer that
 * cannot do with parts of samples.
 */
export function requireSequence(
  { module, config, optimizer, plan }: Decisions,
  { mesh, worldSize }: Distributed,
): boolean {
  const { sequence_parallel_size: size, data_parallel_size: data } = config;
  if (data !== null && data !== mesh.size('dp')) {
    throw refused('data_parallel_size', `${mesh.size('dp')}, what the mesh has on dp`, `${data}`);
  }
  if (size === 1) return false;
  if (size !== mesh.size('sp')) {
    const expected = `${mesh.size('sp')}, the ranks on the mesh's axis sp`;
    const hint =
      worldSize === 1
        ? `Start ${size} ranks: ds --num_procs ${size} SCRIPT, or --num_gpus.`
        : `Give initDistributed() { mesh: { sp: ${size} } }, or leave joining to initialize().`;
    throw refused(KEY, expected, `${size}`, hint);
  }
  if (plan) throw refused(KEY, '1 in a pipeline', `${size}`);
  if (canExchange(optimizer)) {
    const expected = '1 with an optimizer whose ranks keep gradients of their own';
    throw refused(KEY, expected, `${size} with ${optimizer.name}`, 'Take AdamW, Lamb or SGD.');
  }
  if (takesParts(module)) return true;
  throw refused(
    KEY,
    'a model that can compute with some of the tokens: those of nn.models, or one with shareSequence()',
    `a ${module.constructor.name}`,
    'See docs/sequence-parallel.md for a model of your own.',
  );
}

/** From here on the model computes with this rank's tokens, until the engine's end. */
export function shareSequence(module: Module, { tokens }: Ranks, owned: ReleaseStack): void {
  if (!tokens || !takesParts(module)) return;
  module.shareSequence(new SequenceRanks(tokens));
  owned.defer(() => module.shareSequence(null));
}

const KEY = 'sequence_parallel_size';

function takesParts(module: Module): module is Module & SequenceParallel {
  return typeof (module as Partial<SequenceParallel>).shareSequence === 'function';
}

function refused(op: string, expected: string, got: string, hint?: string): DsError {
  return new DsError({ code: 'DS_CONFIG', op, expected, got, ...(hint && { hint }) });
}
