// The sampler that data_efficiency.data_sampling asks for.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Distributed } from '../../comm/index.js';
import {
  type CurriculumMetric,
  CurriculumSampler,
  DataLoader,
  type Sampler,
} from '../../data/index.js';
import { DsError } from '../../errors.js';
import type { Engine } from '../engine.js';
import { scheduleOf } from '../step/curriculum.js';
import { exchanged } from './setup-world.js';

const SECTION = 'data_efficiency.data_sampling';

/** This rank among those that share a batch. */
export interface SamplingPlace {
  rank: number;
  worldSize: number;
}

/** Whether the configuration says which samples are drawn. */
export function isSampled({ data_efficiency: section }: ResolvedConfig): boolean {
  if (!section.enabled || !section.data_sampling.enabled) return false;
  return section.data_sampling.curriculum_learning.enabled;
}

/**
 * What draws from a dataset of so many samples; null where the configuration leaves that to
 * others. Throws DS_DATA for an index that cannot be read, is damaged, or is not of this dataset.
 */
export function samplerOf(
  config: ResolvedConfig,
  samples: number,
  place: SamplingPlace,
): CurriculumSampler | null {
  if (!isSampled(config)) return null;
  const { seed, data_sampling: sampling } = config.data_efficiency;
  const metrics = Object.entries(sampling.curriculum_learning.curriculum_metrics);
  return new CurriculumSampler(samples, {
    ...place,
    seed,
    epochs: sampling.num_epochs,
    batchSize: config.train_batch_size,
    metrics: Object.fromEntries(metrics.map(([name, section]) => [name, metricOf(name, section)])),
  });
}

type Section =
  ResolvedConfig['data_efficiency']['data_sampling']['curriculum_learning']['curriculum_metrics'][string];

function metricOf(name: string, section: Section): CurriculumMetric {
  return {
    schedule: scheduleOf(section, () => unset(name)),
    maxDifficulty: section.max_difficulty as number,
    difficultyType: section.difficulty_type,
    clusteringType: section.clustering_type,
    indexToSamplePath: section.index_to_sample_path ?? undefined,
    indexToMetricPath: section.index_to_metric_path ?? undefined,
  };
}

function unset(name: string): never {
  throw new DsError({
    code: 'DS_CONFIG',
    op: `${SECTION}.curriculum_learning.curriculum_metrics.${name}.schedule_type`,
    expected: 'setSchedules() of the sampler before the first batch, as the type is "custom"',
    got: 'no schedule',
    hint: `Give trainLoader.sampler.setSchedules({ ${name}: (step) => difficulty }); a Trainer takes the other types.`,
  });
}

/**
 * Compares what the ranks of an engine draw from, once they have agreed on its configuration;
 * destroys it where they differ.
 */
export async function requireSameDraws(
  job: Distributed,
  engine: Engine,
  source: unknown,
): Promise<void> {
  if (job.worldSize === 1 || !isSampled(engine.config)) return;
  if (!(source instanceof DataLoader)) return;
  try {
    await requireSameMetrics(source.sampler, (own) => exchanged(job, own));
  } catch (error) {
    engine.destroy();
    throw error;
  }
}

/** Of the index files of each metric; null where its values are no file's. */
type Digests = ReturnType<CurriculumSampler['digests']>;

/**
 * Throws DS_DATA, on every rank alike, where ranks have other index files than the first: they
 * would draw other batches. `exchange` gives what every rank says, by rank.
 */
export async function requireSameMetrics(
  sampler: Sampler,
  exchange: (own: Digests) => Promise<Digests[]>,
): Promise<void> {
  if (!(sampler instanceof CurriculumSampler)) return;
  const [first, ...others] = await exchange(sampler.digests());
  for (const [i, other] of others.entries()) {
    const name = Object.keys(first ?? {}).find((one) => first?.[one] !== other[one]);
    if (name === undefined) continue;
    throw new DsError({
      code: 'DS_DATA',
      op: `${SECTION}.curriculum_learning.curriculum_metrics.${name}`,
      expected: 'index files of the same contents on every rank',
      got: `others on rank ${i + 1} than on rank 0`,
      hint: 'Copy the files that data.analyze() has written to every node.',
    });
  }
}

/** The error of data whose samples nobody can choose. */
export function unchosen(op: string, got: string): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: `${op}, ${SECTION}`,
    expected: 'a dataset with length and get(index), whose samples can be chosen',
    got,
    hint: 'Give such a dataset, or switch the section off.',
  });
}

/** Says on rank 0 that nobody obeys the section. */
export function noteUnserved(config: ResolvedConfig, rank: number): void {
  if (rank !== 0 || !isSampled(config)) return;
  const text = `${SECTION} has no effect without trainingData: give initialize() the dataset, or a loader of your own a data.CurriculumSampler.`;
  process.emitWarning(text, { type: 'DsNotice', code: 'DS_NOTICE' });
}
