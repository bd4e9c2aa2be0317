// How difficult each sample of a dataset is by one metric: given by number, or read from the files
// of an analysis.

import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import { type IndexedLists, prefixOf, readIndexedLists } from './indexed-lists.js';
import { risingOrder } from './order.js';

/** The files of an analyzed metric: pairs, named without .bin and .idx. */
interface MetricFiles {
  /** Lists of samples, one for each value of the metric, the easiest first. */
  indexToSamplePath: string;
  /** The value of each list. Needed for difficulties that are values. */
  indexToMetricPath?: string | undefined;
}

/** The metric of each sample. Throws DS_DATA for files that are not of `length` samples. */
export function valuesInFiles(files: MetricFiles, length: number): Float64Array {
  const path = required(files.indexToMetricPath);
  const samples = readIndexedLists(files.indexToSamplePath);
  const metrics = readIndexedLists(path);
  const location = `${prefixOf(path)}.idx`;
  const lists = samples.lengths.length;
  if (metrics.lengths.length !== lists) {
    const expected = `${lists} values, one for each list of ${files.indexToSamplePath}`;
    const hint = 'Set difficulty_type to "percentile" for a merged index.';
    throw dataError(location, expected, `${metrics.lengths.length}`, hint);
  }
  const several = metrics.lengths.findIndex((count) => count !== 1);
  if (several >= 0) {
    const got = `${metrics.lengths[several]}`;
    throw dataError(
      `${location}, list ${several}`,
      'one number',
      got,
      'Pass an index_to_metric file.',
    );
  }
  const values = new Float64Array(length);
  eachSample(files.indexToSamplePath, samples, length, (sample, _, list) => {
    values[sample] = required(metrics.numbers[list]);
  });
  return values;
}

/**
 * The position of each sample among all, the easiest first. Throws DS_DATA for files that are not
 * of `length` samples.
 */
export function filePositions({ indexToSamplePath }: MetricFiles, length: number): Float64Array {
  const positions = new Float64Array(length);
  eachSample(indexToSamplePath, readIndexedLists(indexToSamplePath), length, (sample, position) => {
    positions[sample] = position;
  });
  return positions;
}

/** The position of each sample among all, the easiest first; equal ones by their number. */
export function positionsOf(values: Float64Array): Float64Array {
  const order = risingOrder(values);
  const positions = new Float64Array(values.length);
  for (let position = 0; position < order.length; ++position)
    positions[required(order[position])] = position;
  return positions;
}

/** A copy of `values`. Throws DS_ARGUMENT unless they are `length` finite numbers. */
export function requireValues(op: string, values: unknown, length: number): Float64Array {
  const isList = Array.isArray(values) || ArrayBuffer.isView(values);
  const numbers = Float64Array.from((isList ? values : []) as ArrayLike<number>);
  const bad = numbers.findIndex((value) => !Number.isFinite(value));
  if (isList && numbers.length === length && bad < 0) return numbers;
  const counted = isList ? `${numbers.length} of them` : formatValue(values);
  const got = bad < 0 ? counted : `${numbers[bad]} at ${bad}`;
  const expected = `a finite number for each of the ${length} samples`;
  throw argumentError(op, expected, got);
}

/** Calls `visit` with every sample, its position among all and its list, each sample once. */
function eachSample(
  path: string,
  { lengths, numbers }: IndexedLists,
  length: number,
  visit: (sample: number, position: number, list: number) => void,
): void {
  const op = `${prefixOf(path)}.bin`;
  const hint = 'Run data.analyze() on this dataset: the index belongs to another one.';
  if (numbers.length !== length) {
    throw dataError(
      op,
      `an index of the ${length} samples of the dataset`,
      `${numbers.length}`,
      hint,
    );
  }
  const isSeen = new Uint8Array(length);
  let position = 0;
  for (let list = 0; list < lengths.length; ++list) {
    const end = position + required(lengths[list]);
    for (; position < end; ++position) {
      const sample = required(numbers[position]);
      if (!(sample >= 0 && sample < length)) {
        throw dataError(
          `${op}, entry ${position}`,
          `a sample of [0, ${length})`,
          `${sample}`,
          hint,
        );
      }
      if (isSeen[sample]) {
        throw dataError(`${op}, entry ${position}`, 'each sample once', `${sample} again`, hint);
      }
      isSeen[sample] = 1;
      visit(sample, position, list);
    }
  }
}
