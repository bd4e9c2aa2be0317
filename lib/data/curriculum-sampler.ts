// CurriculumSampler: draws each batch among the samples within the difficulty of its step.

import { createHash } from 'node:crypto';
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { requireOneOf, requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { CurriculumDraws, type Gate } from './curriculum-draws.js';
import { type CurriculumSchedule, DifficultyPath } from './curriculum-schedule.js';
import { rankValues, readPositions, readValues, requireValues } from './metric-index.js';
import { samplesPerRank, takeShare } from './order.js';
import { requireState } from './require-state.js';
import { requireRank, Sampler } from './sampler.js';

const DIFFICULTY_TYPES = ['value', 'percentile'] as const;
const CLUSTERING_TYPES = ['schedule_based', 'single_cluster'] as const;

/** A metric of difficulty, and its limit at each step. */
export interface CurriculumMetric {
  /** Returns the difficulty of a step, from step 1 on. It must never fall from step to step. */
  schedule: CurriculumSchedule;
  /**
   * From this difficulty on, the difficulty stays constant. With percentiles it accepts all
   * samples.
   */
  maxDifficulty: number;
  /** The metric of each sample. Default: the values in the files. */
  values?: ArrayLike<number>;
  /**
   * Path of index_to_sample without .bin or .idx: a file of `data.analyze` or of DeepSpeed's
   * DataAnalyzer.
   */
  indexToSamplePath?: string;
  /** Path of index_to_metric without .bin or .idx. Required for the difficulty type "value". */
  indexToMetricPath?: string;
  /**
   * "value": accepts samples with a metric of at most the difficulty. "percentile": accepts the
   * easiest fraction of all samples, which is the difficulty divided by maxDifficulty. Default:
   * "value".
   */
  difficultyType?: (typeof DIFFICULTY_TYPES)[number];
  /**
   * "single_cluster": draws from all samples in every step; the training loop makes batches harder
   * with difficulties(). Default: "schedule_based".
   */
  clusteringType?: (typeof CLUSTERING_TYPES)[number];
}

/** Options of a CurriculumSampler. `rank` and `worldSize` count data ranks only. */
export interface CurriculumSamplerOptions {
  /** Metrics by name, at least one. A sample must be within the difficulty of every metric. */
  metrics: Readonly<Record<string, CurriculumMetric>>;
  /** Number of samples per step, of all ranks and micro-batches together. */
  batchSize: number;
  /**
   * Maximum number of epochs. An epoch draws about as many samples as the dataset has. Default:
   * 1000.
   */
  epochs?: number;
  /** Seed of the random order, the same on every rank. Default: 0. */
  seed?: number;
  /** Index of this rank. Default: 0. */
  rank?: number;
  /** Number of ranks. Default: 1. */
  worldSize?: number;
}

const OP = 'CurriculumSampler';

/**
 * Draws the batch of each step among the samples within the difficulties of the step.
 *
 * - Samples that become available at the same step form a cluster. A cluster is drawn completely,
 *   in random order, before a sample is drawn again.
 * - A batch has samples of each cluster in proportion to its size.
 * - Draws depend only on seed and step, so they are the same on every rank. Ranks take the samples
 *   of a batch in turn, like DistributedSampler.
 * - An epoch has as many steps as batches fit the dataset, rounded up.
 *
 * Source: DeepSpeed's DeepSpeedDataSampler (data_efficiency.data_sampling).
 */
export class CurriculumSampler extends Sampler {
  /** Index of this rank, from 0. */
  readonly rank: number;
  override readonly worldSize: number;
  /** Always false: every batch is full. */
  readonly dropLast = false;
  /** Number of samples per step, of all ranks together. */
  readonly batchSize: number;
  private readonly samples: number;
  private readonly epochs: number;
  private readonly metrics: ReadonlyMap<string, SamplerMetric>;
  private seed: number;
  /**
   * The draws of the current epoch. Null before the first draw, and after the schedule or the
   * position has changed.
   */
  private draws: CurriculumDraws | null = null;
  private epochOrder: { epoch: number; order: Uint32Array } | null = null;

  /**
   * `samples`: number of samples in the whole dataset. Throws DS_ARGUMENT for invalid options.
   * Throws DS_DATA if a file cannot be read, is damaged, or has another number of samples.
   */
  constructor(samples: number, given: CurriculumSamplerOptions) {
    super();
    const options = readOptions(OP, given, namesOf.CurriculumSamplerOptions);
    const { metrics, batchSize, epochs = 1000, seed = 0, rank = 0, worldSize = 1 } = options;
    this.samples = requireInteger(`${OP} samples`, samples, 1);
    this.batchSize = requireInteger(`${OP} batchSize`, batchSize, 1);
    this.epochs = requireInteger(`${OP} epochs`, epochs, 1);
    this.seed = requireInteger(`${OP} seed`, seed, 0);
    this.worldSize = requireInteger(`${OP} worldSize`, worldSize, 1);
    this.rank = requireInteger(`${OP} rank`, rank, 0);
    requireRank(OP, rank, worldSize);
    if (batchSize % worldSize !== 0) {
      const expected = `a multiple of the world size ${worldSize}`;
      throw valueError(
        `${OP} batchSize`,
        expected,
        batchSize,
        'batchSize counts the samples of all ranks.',
      );
    }
    this.metrics = readMetrics(metrics, samples);
  }

  get length(): number {
    return samplesPerRank(this.stepsPerEpoch * this.batchSize, this);
  }

  /**
   * Returns this rank's remaining samples of the epoch; empty after the last epoch. Throws DS_DATA
   * if a step accepts no sample.
   */
  order(served: number): Uint32Array {
    if (this.epoch >= this.epochs) return new Uint32Array(0);
    if (this.epochOrder?.epoch !== this.epoch)
      this.epochOrder = { epoch: this.epoch, order: this.drawEpoch() };
    return takeShare(this.epochOrder.order, served, this);
  }

  /** Returns the difficulty of each metric at a step. The first step is 1. */
  difficulties(step: number): Record<string, number> {
    requireInteger(`${OP}.difficulties`, step, 1);
    const all = Array.from(this.metrics, ([name, { path }]) => [name, path.at(step)]);
    return Object.fromEntries(all);
  }

  /**
   * Replaces the schedules of some metrics, by name. After a restart, the functions must return the
   * same values. Throws DS_ARGUMENT for an unknown metric.
   */
  setSchedules(schedules: Readonly<Record<string, CurriculumSchedule>>): void {
    const op = `${OP}.setSchedules`;
    for (const [name, schedule] of Object.entries(schedules)) {
      const metric = this.metrics.get(name);
      if (!metric) throw valueError(op, `one of the metrics ${formatNames(this.metrics)}`, name);
      metric.setSchedule(requireType(`${op} ${name}`, schedule, 'function') as CurriculumSchedule);
    }
    this.clearDraws();
  }

  /**
   * @internal Returns a digest of each metric; null for a metric that accepts all samples. An
   * engine compares the digests of all ranks.
   */
  digests(): Record<string, string | null> {
    return Object.fromEntries(Array.from(this.metrics, ([name, { digest }]) => [name, digest]));
  }

  /**
   * Returns the epoch, the seed and the number of samples per step. All are the same on every rank.
   */
  override stateDict(): JsonObject {
    return { ...super.stateDict(), seed: this.seed, batchSize: this.batchSize };
  }

  override loadStateDict(state: JsonObject): void {
    requireState(OP, state);
    if (state.batchSize !== this.batchSize) {
      throw new DsError({
        code: 'DS_CHECKPOINT',
        op: `${OP}.loadStateDict`,
        expected: `a position in steps of ${this.batchSize} samples`,
        got:
          state.batchSize === undefined
            ? 'the position of another kind of sampler'
            : `a position in steps of ${formatValue(state.batchSize)}`,
        hint: 'Resume with the same train_batch_size, or without the loader state.',
      });
    }
    this.seed = requireInteger(`${OP} seed`, state.seed, 0);
    this.clearDraws();
    super.loadStateDict(state);
  }

  private get stepsPerEpoch(): number {
    return Math.ceil(this.samples / this.batchSize);
  }

  private drawEpoch(): Uint32Array {
    const steps = this.stepsPerEpoch;
    const before = this.epoch * steps;
    if (!this.draws || this.draws.step > before) this.draws = this.createDraws();
    try {
      this.draws.skip(before - this.draws.step);
      return this.draws.take(steps);
    } catch (error) {
      this.draws = null;
      throw error;
    }
  }

  private createDraws(): CurriculumDraws {
    const { samples: length, batchSize, seed } = this;
    const gates = [...this.metrics.values()].flatMap((metric) => metric.createGate() ?? []);
    return new CurriculumDraws({ length, batchSize, seed, gates });
  }

  private clearDraws(): void {
    this.draws = null;
    this.epochOrder = null;
  }
}

/** A metric with checked options. */
class SamplerMetric {
  /**
   * The difficulties for difficulties(). The draws have their own path, because they advance
   * separately.
   */
  path: DifficultyPath;
  private schedule: CurriculumSchedule;

  constructor(
    private readonly name: string,
    private readonly options: CurriculumMetric,
    /** The key of each sample; null if all samples are accepted. */
    private readonly keys: Float64Array | null,
  ) {
    this.schedule = options.schedule;
    this.path = this.createPath();
  }

  get digest(): string | null {
    return this.keys && createHash('sha256').update(this.keys).digest('hex');
  }

  setSchedule(schedule: CurriculumSchedule): void {
    this.schedule = schedule;
    this.path = this.createPath();
  }

  createGate(): Gate | null {
    const { name, keys, options } = this;
    if (!keys) return null;
    const path = this.createPath();
    if (options.difficultyType !== 'percentile') {
      const easiest = () => keys.reduce((min, key) => Math.min(min, key));
      return { name, path, keys, bound: (difficulty) => difficulty, easiest };
    }
    const { length } = keys;
    const max = options.maxDifficulty;
    const fraction = Math.floor(length / max);
    // get_sample_based_on_metric_percentile() of DeepSpeed also rounds the fraction, not the end.
    const bound = (difficulty: number): number =>
      (difficulty >= max ? length : fraction * difficulty) - 1;
    return { name, path, keys, bound, easiest: () => 1 };
  }

  private createPath(): DifficultyPath {
    const { name, schedule, options } = this;
    return new DifficultyPath(`${OP} ${name} schedule`, schedule, options.maxDifficulty);
  }
}

function readMetrics(
  option: Readonly<Record<string, CurriculumMetric>>,
  samples: number,
): ReadonlyMap<string, SamplerMetric> {
  if (!isObject(option) || Object.keys(option).length === 0) {
    const expected = 'an object with at least one metric, by name';
    throw valueError(`${OP} metrics`, expected, option);
  }
  const readMetric = ([name, metric]: [string, CurriculumMetric]): [string, SamplerMetric] => {
    const op = `${OP} ${name}`;
    const options = readOptions(op, metric, namesOf.CurriculumMetric);
    requireType(`${op} schedule`, options.schedule, 'function');
    requireFinite(`${op} maxDifficulty`, options.maxDifficulty);
    const { difficultyType = 'value', clusteringType = 'schedule_based' } = options;
    requireOneOf(`${op} difficultyType`, difficultyType, DIFFICULTY_TYPES);
    requireOneOf(`${op} clusteringType`, clusteringType, CLUSTERING_TYPES);
    const usesAllSamples = clusteringType === 'single_cluster';
    return [
      name,
      new SamplerMetric(name, options, usesAllSamples ? null : readKeys(op, options, samples)),
    ];
  };
  return new Map(Object.entries(option).map(readMetric));
}

/** Returns the key of each sample, which a gate compares with the bound of a difficulty. */
function readKeys(op: string, metric: CurriculumMetric, samples: number): Float64Array {
  const { values, indexToSamplePath, indexToMetricPath, maxDifficulty } = metric;
  const isPercentile = metric.difficultyType === 'percentile';
  if (isPercentile && maxDifficulty > samples) {
    const expected = `at most ${samples}, the number of samples, for percentiles`;
    throw valueError(`${op} maxDifficulty`, expected, maxDifficulty);
  }
  if (values !== undefined) {
    const numbers = requireValues(`${op} values`, values, samples);
    return isPercentile ? rankValues(numbers) : numbers;
  }
  const needed = { indexToSamplePath, ...(isPercentile ? {} : { indexToMetricPath }) };
  for (const [key, path] of Object.entries(needed)) {
    if (typeof path === 'string') continue;
    const expected = `a path, for difficulties of type "${isPercentile ? 'percentile' : 'value'}"`;
    throw valueError(`${op} ${key}`, expected, path, 'data.analyze() writes both files.');
  }
  const files = { indexToSamplePath: required(indexToSamplePath), indexToMetricPath };
  return isPercentile ? readPositions(files, samples) : readValues(files, samples);
}

const formatNames = (metrics: ReadonlyMap<string, unknown>): string =>
  Array.from(metrics.keys(), (name) => `"${name}"`).join(', ');
