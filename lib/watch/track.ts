// A track: columns of numbers over steps, in a bounded number of buckets.
import { leading, required } from '../runtime/required.js';

/** Maximum number of buckets; a full track merges pairs. */
const MAX_BUCKETS = 131_072;
const FIRST_BUCKETS = 1024;
const MAX_COLUMNS = 64;

/** Statistics of a column in each bucket; `count` is 0 for an empty bucket. */
interface Column {
  min: Float64Array;
  max: Float64Array;
  sum: Float64Array;
  count: Float64Array;
}

/** Axis of a range: steps, or milliseconds since 1970. */
export type Axis = 'step' | 'time';

/** A range that includes both ends; an undefined end is unlimited. */
export interface Range {
  axis: Axis;
  from?: number;
  to?: number;
}

/** Values of a column at the points; null for a point without values. */
export interface Points {
  mean: (number | null)[];
  /** Present only if a point covers several rows. */
  min?: (number | null)[];
  max?: (number | null)[];
}

/** Points of a range, for all columns. */
export interface DecimatedPoints {
  step: number[];
  time: number[];
  /** Number of rows of a point. */
  rows: number;
  columns: Record<string, Points>;
}

/**
 * A track of rows in order of step. A row before the last step replaces the rows from that step on,
 * because a resumed run repeats the steps after its checkpoint. A row of the last step adds to its
 * values.
 *
 * Memory: at most 40 bytes per bucket, plus 32 for each column.
 */
export class Track {
  /** Number of rows in a full bucket. */
  rowsPerBucket = 1;
  private size = 0;
  private rowsInLast = 0;
  private step = new Float64Array(FIRST_BUCKETS);
  private time = new Float64Array(FIRST_BUCKETS);
  /** File offset of the first row of each bucket. */
  private offset = new Float64Array(FIRST_BUCKETS);
  private readonly columns = new Map<string, Column>();
  private lastStep = -1;
  private lastTime = 0;

  /** `maxBuckets` must be a power of 2. */
  constructor(private readonly maxBuckets = MAX_BUCKETS) {}

  /** Step of the last row; -1 without rows. */
  get lastRowStep(): number {
    return this.lastStep;
  }

  get bucketCount(): number {
    return this.size;
  }

  add(step: number, time: number, values: Readonly<Record<string, number>>, offset = 0): void {
    const isSame = step === this.lastStep;
    if (step < this.lastStep) this.truncate(step);
    if (!isSame) {
      if (this.size === 0 || this.rowsInLast === this.rowsPerBucket)
        this.openBucket(step, time, offset);
      this.rowsInLast++;
    }
    this.lastStep = step;
    this.lastTime = Math.max(this.lastTime, time);
    const at = this.size - 1;
    for (const name of Object.keys(values)) {
      const value = required(values[name]);
      const column = this.findOrAddColumn(name);
      if (!column || !Number.isFinite(value)) continue;
      if (isSame && this.rowsPerBucket === 1) {
        [column.min[at], column.max[at]] = [Infinity, -Infinity];
        [column.sum[at], column.count[at]] = [0, 0];
      }
      column.min[at] = Math.min(required(column.min[at]), value);
      column.max[at] = Math.max(required(column.max[at]), value);
      column.sum[at] = required(column.sum[at]) + value;
      column.count[at] = required(column.count[at]) + 1;
    }
  }

  /** Drops the rows from `step` on. Keeps a bucket that begins before it. */
  truncate(step: number): void {
    while (this.size > 0 && required(this.step[this.size - 1]) >= step) this.size--;
    this.rowsInLast = this.rowsPerBucket;
    this.lastStep = Math.min(this.lastStep, step - 1);
    if (this.size === 0) this.lastStep = -1;
    this.lastTime = this.size > 0 ? required(this.time[this.size - 1]) : 0;
  }

  /** Returns at most about `width` points of the range, and one further point on each side. */
  decimate(range: Range, width: number): DecimatedPoints {
    const [begin, end] = this.findBuckets(range);
    let stride = 1;
    while ((end - begin) / stride > width) stride *= 2;
    // Groups begin at multiples of the stride, so they stay the same when rows are added.
    const first = Math.floor(begin / stride) * stride;
    const result: DecimatedPoints = {
      step: [],
      time: [],
      rows: stride * this.rowsPerBucket,
      columns: {},
    };
    for (let at = first; at < end; at += stride) {
      result.step.push(required(this.step[at]));
      result.time.push(required(this.time[at]));
    }
    const isExact = result.rows === 1;
    const groups = { first, end: Math.min(this.size, end), stride };
    for (const [name, column] of this.columns) {
      const points = computePoints(column, groups, isExact);
      if (points) result.columns[name] = points;
    }
    return result;
  }

  /** Returns the bytes of the file with the rows of the range; null without rows. */
  findBytes(range: Range, fileEnd: number): { begin: number; end: number } | null {
    const [begin, end] = this.findBuckets(range);
    if (begin >= end) return null;
    return {
      begin: required(this.offset[begin]),
      end: end < this.size ? required(this.offset[end]) : fileEnd,
    };
  }

  /** Returns the last value of each column. */
  latestValues(): Record<string, number> {
    const values: Record<string, number> = {};
    for (const [name, { sum, count }] of this.columns) {
      for (let at = this.size - 1; at >= 0 && at > this.size - 64; at--) {
        if (count[at] === 0) continue;
        values[name] = required(sum[at]) / required(count[at]);
        break;
      }
    }
    return values;
  }

  /** Returns the indices [begin, end) of the buckets of a range, with one neighbor on each side. */
  private findBuckets({ axis, from = -Infinity, to = Infinity }: Range): [number, number] {
    const positions = axis === 'step' ? this.step : this.time;
    const begin = lowerBound(positions, this.size, from);
    const end = lowerBound(positions, this.size, nextAfter(to));
    return [Math.max(0, begin - 1), Math.min(this.size, end + 1)];
  }

  private openBucket(step: number, time: number, offset: number): void {
    if (this.size === this.maxBuckets) this.mergePairs();
    if (this.size === this.step.length) this.grow();
    if (this.rowsInLast === this.rowsPerBucket || this.size === 0) {
      const at = this.size++;
      this.step[at] = step;
      this.time[at] = Math.max(time, this.lastTime);
      this.offset[at] = offset;
      for (const { min, max, sum, count } of this.columns.values()) {
        min[at] = Infinity;
        max[at] = -Infinity;
        sum[at] = 0;
        count[at] = 0;
      }
      this.rowsInLast = 0;
    }
  }

  /** Halves the number of buckets. */
  private mergePairs(): void {
    const half = this.size / 2;
    for (let i = 0; i < half; i++) {
      for (const positions of [this.step, this.time, this.offset]) {
        positions[i] = required(positions[2 * i]);
      }
      for (const { min, max, sum, count } of this.columns.values()) {
        min[i] = Math.min(required(min[2 * i]), required(min[2 * i + 1]));
        max[i] = Math.max(required(max[2 * i]), required(max[2 * i + 1]));
        sum[i] = required(sum[2 * i]) + required(sum[2 * i + 1]);
        count[i] = required(count[2 * i]) + required(count[2 * i + 1]);
      }
    }
    this.size = half;
    this.rowsPerBucket *= 2;
    this.rowsInLast = this.rowsPerBucket;
  }

  private grow(): void {
    const length = Math.min(this.maxBuckets, this.step.length * 2);
    const extend = (from: Float64Array, fill = 0): Float64Array<ArrayBuffer> => {
      const to = new Float64Array(length).fill(fill, from.length);
      to.set(from);
      return to;
    };
    [this.step, this.time, this.offset] = leading(
      [this.step, this.time, this.offset].map((item) => extend(item)),
      3,
    );
    for (const column of this.columns.values()) {
      column.min = extend(column.min, Infinity);
      column.max = extend(column.max, -Infinity);
      column.sum = extend(column.sum);
      column.count = extend(column.count);
    }
  }

  private findOrAddColumn(name: string): Column | null {
    const existing = this.columns.get(name);
    if (existing) return existing;
    if (this.columns.size === MAX_COLUMNS) return null;
    const { length } = this.step;
    const column = {
      min: new Float64Array(length).fill(Infinity),
      max: new Float64Array(length).fill(-Infinity),
      sum: new Float64Array(length),
      count: new Float64Array(length),
    };
    this.columns.set(name, column);
    return column;
  }
}

/** Returns the points of groups of `stride` buckets; null for a column without values there. */
function computePoints(
  { min, max, sum, count }: Column,
  { first, end, stride }: { first: number; end: number; stride: number },
  isExact: boolean,
): Points | null {
  const points = { mean: [], min: [], max: [] } as Required<Points>;
  let isEmpty = true;
  for (let at = first; at < end; at += stride) {
    let [low, high, total, number] = [Infinity, -Infinity, 0, 0];
    for (let i = at; i < Math.min(at + stride, end); i++) {
      low = Math.min(low, required(min[i]));
      high = Math.max(high, required(max[i]));
      total += required(sum[i]);
      number += required(count[i]);
    }
    if (number > 0) isEmpty = false;
    points.mean.push(number > 0 ? roundValue(total / number) : null);
    if (isExact) continue;
    points.min.push(number > 0 ? low : null);
    points.max.push(number > 0 ? high : null);
  }
  if (isEmpty) return null;
  return isExact ? { mean: points.mean } : points;
}

const roundValue = (value: number): number => Number(value.toPrecision(7));

/** Returns the first index of `positions` with a value of at least `min`. */
function lowerBound(positions: Float64Array, size: number, min: number): number {
  let [low, high] = [0, size];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (required(positions[middle]) < min) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Returns a number above `value` with no step or time in between. */
const nextAfter = (value: number): number =>
  Number.isFinite(value) ? value + Math.max(1e-9, Math.abs(value) * 2 ** -52) : value;
