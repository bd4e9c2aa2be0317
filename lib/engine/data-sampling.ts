// Creates the sampler that data_efficiency.data_sampling configures, and checks that all ranks draw
// the same samples.

import type { ResolvedConfig } from '../../types/config.js';
import type { Distributed } from '../comm/index.js';
import {
  type CurriculumMetric,
  CurriculumSampler,
  DataLoader,
  type Sampler,
} from '../data/index.js';
import { DsError } from '../errors.js';
import { notice } from '../runtime/notice.js';
import { required } from '../runtime/required.js';
import type { Engine } from './engine.js';
import { exchangeValues } from './setup/setup-world.js';
import { scheduleOf } from './step/curriculum.js';

const SECTION = 'data_efficiency.data_sampling';

/** Index of this rank among the data ranks, and their number. */
interface SamplingRank {
  rank: number;
  worldSize: number;
}

/** Returns whether data_efficiency.data_sampling selects the samples. */
export function isSampled({ data_efficiency: section }: ResolvedConfig): boolean {
  if (!section.enabled || !section.data_sampling.enabled) return false;
  return section.data_sampling.curriculum_learning.enabled;
}

/**
 * Returns the sampler for a dataset of `samples` samples. Returns null if the section is off.
 * Throws DS_DATA if an index file is unreadable, damaged, or of another dataset.
 */
export function createSampler(
  config: ResolvedConfig,
  samples: number,
  dataRank: SamplingRank,
): CurriculumSampler | null {
  if (!isSampled(config)) return null;
  const { seed, data_sampling: sampling } = config.data_efficiency;
  const metrics = Object.entries(sampling.curriculum_learning.curriculum_metrics);
  return new CurriculumSampler(samples, {
    ...dataRank,
    seed,
    epochs: sampling.num_epochs,
    batchSize: config.train_batch_size,
    metrics: Object.fromEntries(
      metrics.map(([name, section]) => [name, createMetric(name, section)]),
    ),
  });
}

type Section =
  ResolvedConfig['data_efficiency']['data_sampling']['curriculum_learning']['curriculum_metrics'][string];

function createMetric(name: string, section: Section): CurriculumMetric {
  return {
    schedule: scheduleOf(section, () => missingValues(name)),
    maxDifficulty: required(section.max_difficulty),
    difficultyType: section.difficulty_type,
    clusteringType: section.clustering_type,
    indexToSamplePath: section.index_to_sample_path ?? undefined,
    indexToMetricPath: section.index_to_metric_path ?? undefined,
  };
}

function missingValues(name: string): never {
  throw new DsError({
    code: 'DS_CONFIG',
    op: `${SECTION}.curriculum_learning.curriculum_metrics.${name}.schedule_type`,
    expected: 'setSchedules() of the sampler before the first batch, because the type is "custom"',
    got: 'no schedule',
    hint: `Call trainLoader.sampler.setSchedules({ ${name}: (step) => difficulty }). A Trainer accepts only the other types.`,
  });
}

/**
 * Throws DS_DATA on every rank if the index files of ranks differ. Then it also destroys the
 * engine.
 */
export async function requireSameDraws(
  job: Distributed,
  engine: Engine,
  source: unknown,
): Promise<void> {
  if (job.worldSize === 1 || !isSampled(engine.config)) return;
  if (!(source instanceof DataLoader)) return;
  try {
    await requireSameMetrics(source.sampler, (ownDigests) => exchangeValues(job, ownDigests));
  } catch (error) {
    engine.destroy();
    throw error;
  }
}

/** By metric: a digest of its index files. Null if its values do not come from files. */
type Digests = ReturnType<CurriculumSampler['digests']>;

/** Throws DS_DATA on every rank if index files differ. Ranks would draw different batches. */
export async function requireSameMetrics(
  sampler: Sampler,
  exchange: (own: Digests) => Promise<Digests[]>,
): Promise<void> {
  if (!(sampler instanceof CurriculumSampler)) return;
  const [first, ...others] = await exchange(sampler.digests());
  for (const [i, other] of others.entries()) {
    const name = Object.keys(first ?? {}).find((key) => first?.[key] !== other[key]);
    if (name === undefined) continue;
    throw new DsError({
      code: 'DS_DATA',
      op: `${SECTION}.curriculum_learning.curriculum_metrics.${name}`,
      expected: 'index files with the contents of rank 0',
      got: `different contents on rank ${i + 1}`,
      hint: 'Copy the output files of data.analyze() to every node.',
    });
  }
}

/** Returns the DS_CONFIG error for a dataset without random access. */
export function noRandomAccessError(op: string, got: string): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: `${op}, ${SECTION}`,
    expected: 'a dataset with length and get(index)',
    got,
    hint: 'Pass such a dataset, or disable the section.',
  });
}

/** Warns on rank 0 that the section has no effect, because initialize() has no trainingData. */
export function warnUnserved(config: ResolvedConfig, rank: number): void {
  if (rank !== 0 || !isSampled(config)) return;
  const text = `${SECTION} has no effect without trainingData. Pass the dataset to initialize(), or use data.CurriculumSampler in your own loader.`;
  notice(text);
}
