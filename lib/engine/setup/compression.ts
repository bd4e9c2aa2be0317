// Compression in training: checks "compression_training" against the model, and lets compressed
// layers follow the step counter.
import { isDeepStrictEqual } from 'node:util';
import { compressionOf, hasTechniques, isCompressionEnabled } from '../../compression/index.js';
import type { DsError } from '../../errors.js';
import { configError } from '../../runtime/input-errors.js';
import type { Decisions } from '../engine-parts.js';
import type { BuildResources } from '../release-stack.js';
import type { BuildInputs } from './clients.js';
import type { PipelinePlan } from './pipeline.js';
import { tensorSize } from './tensor-parallel.js';

/**
 * Throws DS_CONFIG if the section differs from that of initCompression(), or if the model is a
 * pipeline.
 */
export function requireCompression(
  { module, config: { compression_training: section } }: BuildInputs,
  plan: PipelinePlan | null,
): void {
  const done = compressionOf(module);
  if (!done && !isCompressionEnabled(section)) return;
  if (plan && hasTechniques(section)) {
    throw refusedError(
      'a model without pipeline stages',
      `${plan.schedule.stagesPerRank} stages on each rank of a pipeline`,
      'Stages of a pipeline are not compressed yet.',
    );
  }
  if (!done) {
    throw refusedError(
      'a model prepared by initCompression()',
      'an unprepared model',
      'Call initCompression(model, config) before initialize().',
    );
  }
  if (isDeepStrictEqual(done.section, section)) return;
  throw refusedError(
    'the section passed to initCompression()',
    'a different section',
    'Pass the same configuration to both.',
  );
}

/**
 * Throws DS_CONFIG if a compressed model uses tensor parallelism. Call it before layers are
 * divided.
 */
export function requireWholeLayers({
  module,
  config: { tensor_parallel: section },
}: Pick<BuildInputs, 'module' | 'config'>): void {
  const size = tensorSize(section);
  if (size <= 1 || !compressionOf(module)?.layers.size) return;
  throw refusedError(
    'tensor_parallel.autotp_size 0 or 1',
    String(size),
    'Layers divided over ranks are not compressed yet.',
  );
}

/** Lets compressed layers follow the global steps of the engine, until the engine is destroyed. */
export function followSteps({ module, progress }: Decisions, { owned }: BuildResources): void {
  const stop = compressionOf(module)?.clock.follow(() => progress.globalSteps);
  if (stop) owned.defer(stop);
}

const refusedError = (expected: string, got: string, hint: string): DsError =>
  configError('compression_training', expected, got, hint);
