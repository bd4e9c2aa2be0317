// The section "compression_training" of a ds_config.json: whether the model was made ready for it,
// and the steps by which its layers go.
import { isDeepStrictEqual } from 'node:util';
import type { ResolvedConfig } from '../../../types/config.js';
import { compressionOf, hasTechniques, isOn } from '../../compression/index.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { Decisions } from '../engine-parts.js';

/**
 * Throws DS_CONFIG where the section is not that of initCompression(), which has not been called
 * for a section that is on, and for layers with techniques in stages.
 */
export function requireCompression({
  module,
  config: { compression_training: section },
  plan,
}: Pick<Decisions, 'module' | 'config' | 'plan'>): void {
  const done = compressionOf(module);
  if (!done && !isOn(section)) return;
  if (plan && hasTechniques(section)) {
    throw refused({
      expected: 'a model that is not cut into stages',
      got: `${plan.schedule.stagesPerRank} stages on each rank of a pipeline`,
      hint: 'Stages of a pipeline are not compressed yet.',
    });
  }
  if (!done) {
    throw refused({
      expected: 'a model that initCompression() has prepared',
      got: 'one that it has not',
      hint: 'Call initCompression(model, config) before initialize().',
    });
  }
  if (isDeepStrictEqual(done.section, section)) return;
  throw refused({
    expected: 'the section that initCompression() was given',
    got: 'another one',
    hint: 'Give both the same configuration.',
  });
}

/** Throws DS_CONFIG for a compressed model whose layers the configuration deals out to ranks. */
export function requireWholeLayers(
  module: Module,
  { tensor_parallel: { autotp_size, tensor_parallel: other } }: ResolvedConfig,
): void {
  const size = Math.max(autotp_size, other.tp_size);
  if (size <= 1 || !compressionOf(module)?.layers.size) return;
  throw refused({
    expected: 'tensor_parallel.autotp_size 0 or 1',
    got: String(size),
    hint: 'Layers that ranks share are not compressed yet.',
  });
}

/** Lets the layers go by the global steps of an engine; returns what stops them where they are. */
export function followSteps({
  module,
  progress,
}: Pick<Decisions, 'module' | 'progress'>): () => void {
  return compressionOf(module)?.clock.follow(() => progress.globalSteps) ?? (() => {});
}

const refused = (fields: { expected: string; got: string; hint: string }): DsError =>
  new DsError({ code: 'DS_CONFIG', op: 'compression_training', ...fields });
