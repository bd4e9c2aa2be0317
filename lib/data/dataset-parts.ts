// Datasets that consist of samples of other datasets: a subset, a concatenation, a random split.

import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import type { Batched } from './collate.js';
import { buildDataset, type Dataset, type DatasetSource, requireServable } from './dataset.js';
import { shuffledOrder } from './order.js';

/**
 * The samples of a dataset at some indices, in their order. Worker threads can build it if they can
 * build the dataset.
 */
export class Subset<Sample> implements Dataset<Sample> {
  /** Makes a batch with the dataset's batch(). Absent if the dataset has no such method. */
  readonly batch?: NonNullable<Dataset<Sample>['batch']>;

  /** Throws DS_ARGUMENT if an index is outside of the dataset. */
  constructor(
    /** The whole dataset. */
    readonly dataset: Dataset<Sample>,
    /** Indices of the samples in `dataset`. */
    readonly indices: ArrayLike<number>,
  ) {
    requireServable(dataset);
    for (let i = 0; i < indices.length; ++i) {
      const index = indices[i];
      if (requireInteger('Subset index', index, 0) < dataset.length) continue;
      throw argumentError('Subset index', `one below ${dataset.length}`, String(index));
    }
    if (dataset.batch) this.batch = (chosen, device) => this.makeBatch(chosen, device);
  }

  /** Number of samples, counting repeated ones. */
  get length(): number {
    return this.indices.length;
  }

  get source(): DatasetSource | undefined {
    const { source } = this.dataset;
    const args = [source, this.indices];
    return source && { module: __filename, export: 'buildSubset', args };
  }

  /** Returns the sample `indices[index]` of the dataset. */
  get(index: number): Sample | Promise<Sample> {
    return this.dataset.get(required(this.indices[index]));
  }

  private makeBatch(chosen: Uint32Array, device: Device): Batched<Sample> {
    const numbers = chosen.map((index) => required(this.indices[index]));
    return this.dataset.batch?.(numbers, device) as Batched<Sample>;
  }
}

/** @internal Builds a Subset in a worker thread from the source of its dataset. */
export async function buildSubset(
  source: DatasetSource,
  indices: ArrayLike<number>,
): Promise<Dataset<unknown>> {
  return new Subset(await buildDataset(source), indices);
}

/**
 * The samples of several datasets, one dataset after the other. Worker threads can build it if they
 * can build each dataset.
 */
export class ConcatDataset<Sample> implements Dataset<Sample> {
  /** Number of samples of all datasets. */
  readonly length: number;

  /** Throws DS_ARGUMENT if `datasets` is not a list of datasets. */
  constructor(
    /** The datasets in their order. */
    readonly datasets: readonly Dataset<Sample>[],
  ) {
    if (!Array.isArray(datasets)) {
      throw argumentError('ConcatDataset', 'a list of datasets', formatValue(datasets));
    }
    for (const dataset of datasets) requireServable(dataset);
    this.length = datasets.reduce((sum, { length }) => sum + length, 0);
  }

  get source(): DatasetSource | undefined {
    const sources = this.datasets.map(({ source }) => source);
    if (sources.includes(undefined)) return undefined;
    return { module: __filename, export: 'buildConcat', args: [sources] };
  }

  /**
   * Returns the sample `index` of the concatenation. Throws DS_ARGUMENT if there is no such sample.
   */
  get(index: number): Sample | Promise<Sample> {
    let left = index;
    for (const dataset of this.datasets) {
      if (left < dataset.length) return dataset.get(left);
      left -= dataset.length;
    }
    throw argumentError('ConcatDataset.get', `an index below ${this.length}`, String(index));
  }
}

/** @internal Builds a ConcatDataset in a worker thread from the sources of its datasets. */
export async function buildConcat(sources: readonly DatasetSource[]): Promise<Dataset<unknown>> {
  return new ConcatDataset(await Promise.all(sources.map(buildDataset)));
}

/** Options of randomSplit(). */
export interface SplitOptions {
  /** Seed of the random split. Default: 0. */
  seed?: number;
}

/**
 * Splits a dataset into random parts without common samples, the same on every rank. `sizes`:
 * numbers of samples that sum to the dataset's length, or fractions that sum to 1. If fractions do
 * not divide the length, the first parts get one sample more. Throws DS_ARGUMENT if the sum is
 * wrong, or the seed is not an integer of at least 0.
 */
export function randomSplit<Sample>(
  dataset: Dataset<Sample>,
  sizes: readonly number[],
  given: SplitOptions = {},
): Subset<Sample>[] {
  requireServable(dataset);
  const { seed = 0 } = readOptions('randomSplit', given, namesOf.SplitOptions);
  const counts = readSizes(dataset.length, sizes);
  const order = shuffledOrder(dataset.length, requireInteger('randomSplit seed', seed, 0), 0);
  let start = 0;
  return counts.map((count) => {
    start += count;
    return new Subset(dataset, order.slice(start - count, start));
  });
}

function readSizes(length: number, sizes: readonly number[]): number[] {
  if (!Array.isArray(sizes))
    throw argumentError('randomSplit', 'a list of sizes', formatValue(sizes));
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const areNonNegative = sizes.length > 0 && sizes.every((size) => size >= 0);
  const isFractions =
    areNonNegative && Math.abs(total - 1) < 1e-6 && sizes.every((size) => size < 1);
  if (!isFractions && areNonNegative && total === length && sizes.every(Number.isInteger))
    return [...sizes];
  if (!isFractions) {
    const expected = `sizes that add up to ${length}, or fractions that add up to 1`;
    throw argumentError('randomSplit', expected, formatValue(sizes));
  }
  const counts = sizes.map((size) => Math.floor(size * length));
  const left = length - counts.reduce((sum, count) => sum + count, 0);
  return counts.map((count, i) => count + (i < left ? 1 : 0));
}
