// How difficult each sample of a dataset is by one metric: given by number, or read from the files
// of an analysis.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/refused.js';
import { type IndexedLists, prefixOf, readIndexedLists } from './indexed-lists.js';
import { risingOrder } from './order.js';

/** Where an analysis has left a metric: pairs of files, named without .bin and .idx. */
export interface MetricFiles {
  /** Lists of samples, one for each value of the metric, the easiest first. */
  indexToSamplePath: string;
  /** The value of each list. Needed for difficulties that are values. */
  indexToMetricPath?: string | undefined;
}

/** The metric of each sample. Throws DS_DATA for files that are not of `length` samples. */
export function valuesInFiles(files: MetricFiles, length: number): Float64Array {
  const path = files.indexToMetricPath as string;
  const samples = readIndexedLists(files.indexToSamplePath);
  const metrics = readIndexedLists(path);
  const place = `${prefixOf(path)}.idx`;
  const lists = samples.lengths.length;
  if (metrics.lengths.length !== lists) {
    const expected = `${lists} values, one for each list of ${files.indexToSamplePath}`;
    const hint = 'A merged index supports only percentiles.';
    throw dataError(place, expected, `${metrics.lengths.length}`, hint);
  }
  const several = metrics.lengths.findIndex((count) => count !== 1);
  if (several >= 0) {
    const got = `${metrics.lengths[several]}`;
    throw dataError(`${place}, list ${several}`, 'one number', got, 'Is it an index_to_metric?');
  }
  const values = new Float64Array(length);
  eachSample(files.indexToSamplePath, samples, length, (sample, _, list) => {
    values[sample] = metrics.numbers[list] as number;
  });
  return values;
}

/**
 * The place of each sample among all, the easiest first. Throws DS_DATA for files that are not of
 * `length` samples.
 */
export function placesInFiles({ indexToSamplePath }: MetricFiles, length: number): Float64Array {
  const places = new Float64Array(length);
  eachSample(indexToSamplePath, readIndexedLists(indexToSamplePath), length, (sample, place) => {
    places[sample] = place;
  });
  return places;
}

/** The place of each sample among all, the easiest first; equal ones by their number. */
export function placesOf(values: Float64Array): Float64Array {
  const order = risingOrder(values);
  const places = new Float64Array(values.length);
  for (let place = 0; place < order.length; ++place) places[order[place] as number] = place;
  return places;
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
  throw new DsError({ code: 'DS_ARGUMENT', op, expected, got });
}

/** Calls `visit` with every sample, its place among all and its list, each sample once. */
function eachSample(
  path: string,
  { lengths, numbers }: IndexedLists,
  length: number,
  visit: (sample: number, place: number, list: number) => void,
): void {
  const op = `${prefixOf(path)}.bin`;
  const hint = 'Is it the index of another dataset? Analyze this one.';
  if (numbers.length !== length) {
    throw dataError(
      op,
      `an index of ${length} samples, those of the dataset`,
      `${numbers.length}`,
      hint,
    );
  }
  const isSeen = new Uint8Array(length);
  let place = 0;
  for (let list = 0; list < lengths.length; ++list) {
    const end = place + (lengths[list] as number);
    for (; place < end; ++place) {
      const sample = numbers[place] as number;
      if (!(sample >= 0 && sample < length)) {
        throw dataError(`${op}, entry ${place}`, `a sample of [0, ${length})`, `${sample}`, hint);
      }
      if (isSeen[sample]) {
        throw dataError(`${op}, entry ${place}`, 'each sample once', `${sample} again`, hint);
      }
      isSeen[sample] = 1;
      visit(sample, place, list);
    }
  }
}
