// Describes where the values of a model's tensor are in a file, if their order differs.

/**
 * A run of values of the model at regular distances in the file. `at` counts from the start of the
 * requested range. For i below `count` and j below `lanes`, value `at + i * lanes + j` has the
 * index `from + i * distance + j * apart` in the file.
 */
export interface ValueRun {
  readonly at: number;
  readonly from: number;
  readonly count: number;
  /** If `distance` and `lanes` are 1, the values are contiguous in the file. */
  readonly distance: number;
  readonly lanes: number;
  readonly apart: number;
}

/**
 * Consecutive values of the model, at regular distances along several axes in the file. An index in
 * the file counts the values of all tensors of the file that form the model's tensor, one after the
 * other.
 */
interface ValueBox {
  /** Index in the file of the first value. Default: 0. */
  readonly first?: number;
  /** Distance in the file between repetitions of the box. Default: 0. */
  readonly step?: number;
  /** Number of values and their distance in the file by axis, outermost axis first. */
  readonly axes: readonly (readonly [count: number, distance: number])[];
}

/** The order of a tensor's values: the values of all boxes in turn, repeated `repeats` times. */
export interface ValueOrder {
  /** Default: 1. */
  readonly repeats?: number;
  readonly boxes: readonly ValueBox[];
  /**
   * Number of values of a tensor of the file to decode together if values are not contiguous.
   * Default: all.
   */
  readonly plane?: number;
}

const valuesIn = ({ axes }: ValueBox): number =>
  axes.reduce((product, [count]) => product * count, 1);

/** Yields the runs of `count` values of the model from index `from` on. */
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

/** Values of a box: `count` values from index `from` on. The first is value `at` of the request. */
interface BoxRange {
  readonly from: number;
  readonly count: number;
  readonly at: number;
  /** Index in the file of the box's first value. */
  readonly base: number;
}

/** Maximum length of a last axis that becomes lanes. Longer axes get one run per row. */
const MAX_LANES = 8;

/** Yields the runs of a range of a box. */
function* runsIn({ axes }: ValueBox, range: BoxRange): Generator<ValueRun> {
  const last = axes.at(-1) as readonly [number, number];
  const hasLanes = axes.length > 1 && last[0] <= MAX_LANES && last[1] !== 1;
  const [lanes, apart] = hasLanes ? last : [1, 0];
  const outer = axes.slice(0, hasLanes ? -2 : -1);
  const [length, distance] = axes.at(hasLanes ? -2 : -1) as readonly [number, number];
  // The position on each outer axis; `sum` is the index in the file that these positions give.
  const positions = outer.map(() => 0);
  let [rest, sum] = [Math.floor(range.from / lanes / length), range.base];
  for (let axis = outer.length - 1; axis >= 0; --axis) {
    const [size, step] = outer[axis] as readonly [number, number];
    positions[axis] = rest % size;
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
      // The range starts or ends between lanes.
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
      const next = (positions[axis] as number) + 1;
      positions[axis] = next < size ? next : 0;
      sum += next < size ? step : -(size - 1) * step;
      if (next < size) break;
    }
  }
}
