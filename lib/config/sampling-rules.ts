// Rules across the keys of data_efficiency.data_sampling: required keys and limits of its metrics.
import type { ResolvedValues } from '../../types/config.js';
import { formatConfigValue } from './config-error.js';
import type { Advice, Rule, Violation } from './rule.js';
import {
  beginsBelow,
  completeSchedule,
  missingKey,
  rises,
  type Scheduled,
  scheduleViolation,
  unreadScheduleKey,
} from './schedule-rules.js';

type Sampling = NonNullable<NonNullable<ResolvedValues['data_efficiency']>['data_sampling']>;
type Curriculum = NonNullable<Sampling['curriculum_learning']>;
type Metric = Curriculum['curriculum_metrics'][string];

const SECTION = ['data_efficiency', 'data_sampling'];
const METRICS = [...SECTION, 'curriculum_learning', 'curriculum_metrics'];

interface LocatedMetric extends Scheduled {
  section: Metric;
}

function curriculumIn({ data_efficiency: section }: ResolvedValues): Curriculum | null {
  const sampling = section?.enabled ? section.data_sampling : null;
  const curriculum = sampling?.enabled ? sampling.curriculum_learning : null;
  return curriculum?.enabled ? curriculum : null;
}

/** Returns the metrics of an enabled curriculum. */
function metricsIn(config: ResolvedValues): LocatedMetric[] {
  const metrics = curriculumIn(config)?.curriculum_metrics ?? {};
  return Object.entries(metrics).map(([name, section]) => ({ path: [...METRICS, name], section }));
}

/** An enabled curriculum needs a metric. Source: DeepSpeed, which asserts it. */
const hasMetrics: Rule = (config) => {
  if (!curriculumIn(config) || metricsIn(config).length > 0) return null;
  const hint = 'Add a metric: { "NAME": { "index_to_sample_path": .., "min_difficulty": .. } }.';
  return {
    path: METRICS,
    expected: 'at least one metric, because the curriculum is on',
    got: 'none',
    hint,
  };
};

/** Returns a violation for a metric that selects samples without an index. */
function lacksAnIndex({ path, section }: LocatedMetric): Violation | null {
  if (section.clustering_type === 'single_cluster') return null;
  const needed = ['index_to_sample_path', 'index_to_metric_path'] as const;
  const isValue = section.difficulty_type === 'value';
  const absent = (isValue ? needed : needed.slice(0, 1)).find((key) => section[key] === null);
  if (!absent) return null;
  const hint = `Set it to the file that data.analyze() wrote; "${section.difficulty_type}" reads it.`;
  return missingKey([...path, absent], hint);
}

/** Refuses falling difficulties. In DeepSpeed, a pool keeps every sample that was added. */
function falls({ path, section }: LocatedMetric): Violation | null {
  const { difficulty } = section.schedule_config ?? {};
  if (section.schedule_type !== 'fixed_discrete' || !difficulty || rises(difficulty)) return null;
  const hint = 'Sort the difficulties: samples that were once included stay included.';
  const where = [...path, 'schedule_config', 'difficulty'];
  return {
    path: where,
    expected: 'difficulties in rising order',
    got: formatConfigValue(difficulty),
    hint,
  };
}

const metricsAreComplete: Rule = (config) => {
  for (const metric of metricsIn(config)) {
    const violation = scheduleViolation(metric) ?? falls(metric) ?? lacksAnIndex(metric);
    if (violation) return violation;
  }
  return null;
};

export const samplingRules: readonly Rule[] = [hasMetrics, metricsAreComplete];

/**
 * Returns advice for a metric of all samples: in DeepSpeed, only a post-processing function obeys
 * it.
 */
function usesAllSamples({ path, section }: LocatedMetric): Advice | null {
  if (section.clustering_type !== 'single_cluster') return null;
  const text = 'uses all samples: the loop reads difficulties() of trainLoader.sampler.';
  return { path: [...path, 'clustering_type'], text };
}

/** Returns advice for a schedule that ends before max_difficulty, which is a hundred percent. */
function skipsHardSamples(metric: LocatedMetric): Advice | null {
  const { difficulty_type: type, clustering_type: clustering } = metric.section;
  const schedule = completeSchedule(metric);
  if (!schedule || type !== 'percentile' || clustering === 'single_cluster') return null;
  const last = schedule.schedule.difficulty?.at(-1);
  if (schedule.type !== 'fixed_discrete' || last === undefined || last >= schedule.max) return null;
  const text = `ends at ${last} of max_difficulty, ${schedule.max}: harder samples are never drawn.`;
  return { path: [...metric.path, 'schedule_config', 'difficulty'], text };
}

const ofMetrics = [beginsBelow, unreadScheduleKey, usesAllSamples, skipsHardSamples];

/** Advice about metrics. Each function returns the first finding, as rules do. */
const firstOfMetrics = ofMetrics.map((advice) => (config: ResolvedValues): Advice | null => {
  for (const metric of metricsIn(config)) {
    const result = advice(metric);
    if (result) return result;
  }
  return null;
});

/** Returns advice for an enabled section that samples nothing. */
function samplesNothing(config: ResolvedValues): Advice | null {
  const { data_efficiency: section } = config;
  if (!section?.enabled || !section.data_sampling?.enabled || curriculumIn(config)) return null;
  const text = 'has no effect: its section curriculum_learning is off.';
  return { path: SECTION, text };
}

const SEED = 1234;

/**
 * Returns advice for a seed without data_sampling, which has no effect. In DeepSpeed, random-LTD
 * uses PyTorch's generator.
 */
function hasUnusedSeed(config: ResolvedValues): Advice | null {
  if ((config.data_efficiency?.seed ?? SEED) === SEED || curriculumIn(config)) return null;
  const text =
    'has no effect without data_sampling: random-LTD draws from the generator that seed() sets.';
  return { path: ['data_efficiency', 'seed'], text };
}

export const samplingAdvices = [...firstOfMetrics, samplesNothing, hasUnusedSeed];
