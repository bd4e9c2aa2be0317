// Reads the difficulty of each sample by one metric, from given values or from the files of
// data.analyze().

import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import { type IndexedLists, readIndexedLists, withoutExtension } from './indexed-lists.js';
import { sortByKey } from './order.js';

/** Paths of the files of a metric, without .bin and .idx. */
interface MetricFiles {
  /** Lists of samples, one list per value of the metric, the easiest first. */
  indexToSamplePath: string;
  /** The value of each list. Required unless difficulties are percentiles. */
  indexToMetricPath?: string | undefined;
}

/** Returns the metric of each sample. Throws DS_DATA unless the files contain `length` samples. */
export function readValues(files: MetricFiles, length: number): Float64Array {
  const path = required(files.indexToMetricPath);
  const samples = readIndexedLists(files.indexToSamplePath);
  const metrics = readIndexedLists(path);
  const location = `${withoutExtension(path)}.idx`;
  const lists = samples.lengths.length;
  if (metrics.lengths.length !== lists) {
    const expected = `${lists} values, one for each list of ${files.indexToSamplePath}`;
    const hint = 'Set difficulty_type to "percentile" for a merged index.';
    throw dataError(location, expected, `${metrics.lengths.length}`, hint);
  }
  const invalid = metrics.lengths.findIndex((count) => count !== 1);
  if (invalid >= 0) {
    const got = `${metrics.lengths[invalid]}`;
    throw dataError(
      `${location}, list ${invalid}`,
      'one number',
      got,
      'Pass an index_to_metric file.',
    );
  }
  const values = new Float64Array(length);
  visitSamples(files.indexToSamplePath, samples, length, (sample, _, list) => {
    values[sample] = required(metrics.numbers[list]);
  });
  return values;
}

/**
 * Returns the position of each sample in the order of difficulty, the easiest first. Throws DS_DATA
 * unless the files contain `length` samples.
 */
export function readPositions({ indexToSamplePath }: MetricFiles, length: number): Float64Array {
  const positions = new Float64Array(length);
  visitSamples(
    indexToSamplePath,
    readIndexedLists(indexToSamplePath),
    length,
    (sample, position) => {
      positions[sample] = position;
    },
  );
  return positions;
}

/**
 * Returns the position of each sample in ascending order of value. Samples of equal value keep
 * their order.
 */
export function rankValues(values: Float64Array): Float64Array {
  const order = sortByKey(values);
  const positions = new Float64Array(values.length);
  for (let position = 0; position < order.length; ++position)
    positions[required(order[position])] = position;
  return positions;
}

/** Returns a copy of `values`. Throws DS_ARGUMENT unless they are `length` finite numbers. */
export function requireValues(op: string, values: unknown, length: number): Float64Array {
  const isList = Array.isArray(values) || ArrayBuffer.isView(values);
  const numbers = Float64Array.from((isList ? values : []) as ArrayLike<number>);
  const invalid = numbers.findIndex((value) => !Number.isFinite(value));
  if (isList && numbers.length === length && invalid < 0) return numbers;
  const counted = isList ? `a list of ${numbers.length}` : formatValue(values);
  const got = invalid < 0 ? counted : `${numbers[invalid]} at ${invalid}`;
  const expected = `a finite number for each of the ${length} samples`;
  throw argumentError(op, expected, got);
}

/**
 * Calls `visit` for every sample of an index, with the sample's position and its list. Throws
 * DS_DATA unless each of `length` samples occurs once.
 */
function visitSamples(
  path: string,
  { lengths, numbers }: IndexedLists,
  length: number,
  visit: (sample: number, position: number, list: number) => void,
): void {
  const op = `${withoutExtension(path)}.bin`;
  const hint = 'Run data.analyze() on this dataset: the index belongs to another dataset.';
  if (numbers.length !== length) {
    throw dataError(
      op,
      `an index of the ${length} samples of the dataset`,
      `${numbers.length}`,
      hint,
    );
  }
  const isVisited = new Uint8Array(length);
  let position = 0;
  for (let list = 0; list < lengths.length; ++list) {
    const end = position + required(lengths[list]);
    for (; position < end; ++position) {
      const sample = required(numbers[position]);
      if (!(sample >= 0 && sample < length)) {
        throw dataError(
          `${op}, entry ${position}`,
          `a sample index in [0, ${length})`,
          `${sample}`,
          hint,
        );
      }
      if (isVisited[sample]) {
        throw dataError(`${op}, entry ${position}`, 'each sample once', `${sample} again`, hint);
      }
      isVisited[sample] = 1;
      visit(sample, position, list);
    }
  }
}
