// The order of a tensor's values in a file, where it differs from that of the model.

/**
 * Consecutive values of a range of the model, and their indices in the file. Value
 * `at + i * lanes + j` of the range has the index `from + i * distance + j * apart`, for i below
 * `count` and j below `lanes`.
 */
export interface ValueRun {
  readonly at: number;
  readonly from: number;
  readonly count: number;
  /** If it is 1 and there is one lane, the values are contiguous in the file. */
  readonly distance: number;
  readonly lanes: number;
  readonly apart: number;
}

/**
 * Consecutive values of the model, and their indices in the file. An index counts values of all
 * tensors of the file that make up the tensor of the model, one tensor after another.
 */
interface ValueBox {
  /** Index of the first value. Default: 0. */
  readonly first?: number;
  /** Distance to the first value of the same box in the next repetition. Default: 0. */
  readonly step?: number;
  /** Number of values and their distance in the file, by axis; the outermost first. */
  readonly axes: readonly (readonly [count: number, distance: number])[];
}

/** The boxes follow each other in the model, and then repeat. */
export interface ValueOrder {
  /** Default: 1. */
  readonly repeats?: number;
  readonly boxes: readonly ValueBox[];
  /**
   * Number of values of a tensor of the file that are unpacked together, if values are not
   * contiguous. Default: all.
   */
  readonly plane?: number;
}

const valuesIn = ({ axes }: ValueBox): number =>
  axes.reduce((product, [count]) => product * count, 1);

/** Yields the runs of values [from, from + count) of the model. */
export function* runsOf(
  { repeats = 1, boxes }: ValueOrder,
  from: number,
  count: number,
): Generator<ValueRun> {
  const sizes = boxes.map(valuesIn);
  const all = sizes.reduce((sum, size) => sum + size, 0);
  let at = 0;
  for (let repeat = Math.floor(from / all); repeat < repeats && at < count; ++repeat) {
    let start = repeat * all;
    for (const [b, box] of boxes.entries()) {
      const size = sizes[b] as number;
      const skipped = Math.max(from + at - start, 0);
      start += size;
      if (skipped >= size) continue;
      const { first = 0, step = 0 } = box;
      const some = Math.min(size - skipped, count - at);
      yield* runsIn(box, { from: skipped, count: some, at, base: first + repeat * step });
      at += some;
      if (at >= count) return;
    }
  }
}

/** Values [from, from + count) of a box; the first is value `at` of the range. */
interface BoxRange {
  readonly from: number;
  readonly count: number;
  readonly at: number;
  /** Index in the file of the box. */
  readonly base: number;
}

/** A last axis of at most this many values that are not contiguous becomes lanes. */
const MAX_LANES = 8;

/** Yields the runs of values of a box. */
function* runsIn({ axes }: ValueBox, range: BoxRange): Generator<ValueRun> {
  const last = axes.at(-1) as readonly [number, number];
  const hasLanes = axes.length > 1 && last[0] <= MAX_LANES && last[1] !== 1;
  const [lanes, apart] = hasLanes ? last : [1, 0];
  const outer = axes.slice(0, hasLanes ? -2 : -1);
  const [length, distance] = axes.at(hasLanes ? -2 : -1) as readonly [number, number];
  // The place on each outer axis, and their sum in the file.
  const places = outer.map(() => 0);
  let [rest, sum] = [Math.floor(range.from / lanes / length), range.base];
  for (let axis = outer.length - 1; axis >= 0; --axis) {
    const [size, step] = outer[axis] as readonly [number, number];
    places[axis] = rest % size;
    sum += (rest % size) * step;
    rest = Math.floor(rest / size);
  }
  let inner = Math.floor(range.from / lanes) % length;
  let lane = range.from % lanes;
  for (let done = 0; done < range.count; ) {
    const left = range.count - done;
    const from = sum + inner * distance + lane * apart;
    const at = range.at + done;
    if (lane > 0 || left < lanes) {
      // A part of the lanes.
      const some = Math.min(lanes - lane, left);
      yield { at, from, count: some, distance: apart, lanes: 1, apart: 0 };
      done += some;
      inner += lane + some === lanes ? 1 : 0;
      lane = 0;
    } else {
      const count = Math.min(length - inner, Math.floor(left / lanes));
      yield { at, from, count, distance, lanes, apart };
      done += count * lanes;
      inner += count;
    }
    if (inner < length) continue;
    inner = 0;
    for (let axis = outer.length - 1; axis >= 0; --axis) {
      const [size, step] = outer[axis] as readonly [number, number];
      const next = (places[axis] as number) + 1;
      places[axis] = next < size ? next : 0;
      sum += next < size ? step : -(size - 1) * step;
      if (next < size) break;
    }
  }
}
