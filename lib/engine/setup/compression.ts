// Checks the section "compression_training" against the model, and connects its layers to the step
// counter.
import { isDeepStrictEqual } from 'node:util';
import type { ResolvedConfig } from '../../../types/config.js';
import { compressionOf, hasTechniques, isOn } from '../../compression/index.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { Decisions } from '../engine-parts.js';

/**
 * Throws DS_CONFIG if the section differs from that of initCompression(), if it is enabled without
 * a call of initCompression(), and for a compressed pipeline.
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
      expected: 'a model without pipeline stages',
      got: `${plan.schedule.stagesPerRank} stages on each rank of a pipeline`,
      hint: 'Stages of a pipeline are not compressed yet.',
    });
  }
  if (!done) {
    throw refused({
      expected: 'a model prepared by initCompression()',
      got: 'an unprepared model',
      hint: 'Call initCompression(model, config) before initialize().',
    });
  }
  if (isDeepStrictEqual(done.section, section)) return;
  throw refused({
    expected: 'the section passed to initCompression()',
    got: 'a different section',
    hint: 'Pass the same configuration to both.',
  });
}

/** Throws DS_CONFIG for a compressed model with tensor parallelism. */
export function requireWholeLayers(
  module: Module,
  { tensor_parallel: { autotp_size, tensor_parallel: other } }: ResolvedConfig,
): void {
  const size = Math.max(autotp_size, other.tp_size);
  if (size <= 1 || !compressionOf(module)?.layers.size) return;
  throw refused({
    expected: 'tensor_parallel.autotp_size 0 or 1',
    got: String(size),
    hint: 'Layers divided over ranks are not compressed yet.',
  });
}

/** Makes the layers follow the engine's global steps. Returns a function that stops this. */
export function followSteps({
  module,
  progress,
}: Pick<Decisions, 'module' | 'progress'>): () => void {
  return compressionOf(module)?.clock.follow(() => progress.globalSteps) ?? (() => {});
}

const refused = (fields: { expected: string; got: string; hint: string }): DsError =>
  new DsError({ code: 'DS_CONFIG', op: 'compression_training', ...fields });
