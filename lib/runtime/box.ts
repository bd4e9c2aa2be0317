// Boxes: a rank's part of a tensor, as a rectangular box and a flat range inside it. Arithmetic
// only.
import { required } from './required.js';
import { contiguousStrides, numel } from './view.js';

/** `shape` elements from `offset` on, in every dim of a tensor. */
export interface Box {
  /** First element in every dim. */
  readonly offset: readonly number[];
  /** Size in every dim. */
  readonly shape: readonly number[];
}

/** Elements [from, from + numel) of a box, counted in row-major order. */
export interface BoxRange {
  readonly box: Box;
  readonly from: number;
  readonly numel: number;
}

/** A rank's part of a tensor of shape `whole`: boxes of it, contiguous in memory. */
export interface Region {
  /** Shape of the whole tensor. */
  readonly whole: readonly number[];
  /** The boxes of the part, in memory order. */
  readonly boxes: readonly Box[];
}

/** Returns the region of a tensor that one rank has as a whole. */
export const wholeRegion = (shape: readonly number[]): Region => ({
  whole: shape,
  boxes: [wholeBox(shape)],
});

/** Returns the box of a whole tensor. */
export function wholeBox(shape: readonly number[]): Box {
  return { offset: shape.map(() => 0), shape };
}

/** Returns whether other ranks may have the rest of a tensor. */
export const isPart = ({ whole, boxes: [first] }: Region): boolean =>
  !first || !isSameBox(first, wholeBox(whole));

export function isSameBox(a: Box, b: Box): boolean {
  return a === b || (isSame(a.offset, b.offset) && isSame(a.shape, b.shape));
}

function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((n, d) => n === b[d]);
}

/**
 * Returns whether a box has the dims of a tensor of shape `whole`, and lies inside. Boxes from
 * files may not.
 */
export function isInside({ offset, shape }: Box, whole: readonly number[]): boolean {
  return (
    offset.length === whole.length &&
    shape.length === whole.length &&
    whole.every((size, d) => at(offset, d) + at(shape, d) <= size)
  );
}

const at = (numbers: readonly number[], d: number): number => required(numbers[d]);

/** Returns the first coordinate after a box in dim `d`. */
export const endOf = ({ offset, shape }: Box, d: number): number => at(offset, d) + at(shape, d);

/** Returns the intersection, or null if it is empty. */
export function intersectBoxes(a: Box, b: Box): Box | null {
  const offset = a.offset.map((n, d) => Math.max(n, at(b.offset, d)));
  const shape = offset.map((n, d) => Math.min(endOf(a, d), endOf(b, d)) - n);
  return shape.every((n) => n > 0) ? { offset, shape } : null;
}

/**
 * Returns the intersection of two ranges, or null if it is empty: a range of the intersection of
 * their boxes. The elements of a range that lie inside a smaller box are contiguous in that box.
 */
export function intersectRanges(a: BoxRange, b: BoxRange): BoxRange | null {
  if (isSameBox(a.box, b.box)) {
    const from = Math.max(a.from, b.from);
    const count = Math.min(a.from + a.numel, b.from + b.numel) - from;
    return count > 0 ? { box: a.box, from, numel: count } : null;
  }
  const box = intersectBoxes(a.box, b.box);
  if (!box) return null;
  const from = Math.max(countBefore(a.box, a.from, box), countBefore(b.box, b.from, box));
  const to = Math.min(
    countBefore(a.box, a.from + a.numel, box),
    countBefore(b.box, b.from + b.numel, box),
  );
  const count = to - from;
  return count > 0 ? { box, from, numel: count } : null;
}

/**
 * Returns the number of elements of `inner`, a box inside `outer`, before index `position` of
 * `outer`.
 */
function countBefore(outer: Box, position: number, inner: Box): number {
  let left = numel(inner.shape);
  let row = numel(outer.shape);
  if (position >= row) return left;
  let [before, rest] = [0, position];
  for (let d = 0; d < outer.shape.length; ++d) {
    row /= at(outer.shape, d);
    const within = at(outer.offset, d) + Math.floor(rest / row) - at(inner.offset, d);
    rest %= row;
    if (within < 0) return before;
    if (within >= at(inner.shape, d)) return before + left;
    left /= at(inner.shape, d);
    before += within * left;
  }
  return before;
}

/** Returns the index in `box` of the element at `coordinates` of the tensor. */
export function positionIn(box: Box, coordinates: readonly number[]): number {
  const strides = contiguousStrides(box.shape);
  return coordinates.reduce((sum, n, d) => sum + (n - at(box.offset, d)) * at(strides, d), 0);
}

/** Returns the coordinates of element number `position` of `box`. */
export function coordinatesIn({ offset, shape }: Box, position: number): number[] {
  const strides = contiguousStrides(shape);
  let rest = position;
  return offset.map((first, d) => {
    const within = Math.floor(rest / at(strides, d));
    rest -= within * at(strides, d);
    return first + within;
  });
}

/**
 * Returns the canonical form of a range of a tensor of `shape`: if its box is contiguous in the
 * tensor, as a cut along the first dim is, it is a range of the whole.
 */
export function canonical(shape: readonly number[], range: BoxRange): BoxRange {
  const whole = wholeBox(shape);
  const { box, from, numel: count } = range;
  if (isSameBox(box, whole)) return { box: whole, from, numel: count };
  const cut = box.shape.findIndex((n) => n > 1);
  const isFull = (d: number): boolean => at(box.shape, d) === at(shape, d);
  const isContiguous = cut < 0 || shape.every((_, d) => d <= cut || isFull(d));
  if (!isContiguous) return range;
  return { box: whole, from: positionIn(whole, box.offset) + from, numel: count };
}

/** Returns a range as at most 2 n - 1 boxes in order, for a tensor of n dims. */
export function boxesOf({ box, from, numel: count }: BoxRange): Box[] {
  const boxes: Box[] = [];
  const strides = contiguousStrides(box.shape);
  const { length } = box.shape;
  /** Adds elements [low, high) of the part of `box` at `coordinates` of its first dims. */
  const add = (coordinates: readonly number[], low: number, high: number): void => {
    if (high <= low) return;
    const d = coordinates.length;
    if (d === length) {
      boxes.push({ offset: coordinates, shape: coordinates.map(() => 1) });
      return;
    }
    const row = at(strides, d);
    const [first, last] = [Math.ceil(low / row), Math.floor(high / row)];
    const on = (n: number): number[] => [...coordinates, at(box.offset, d) + n];
    if (first > last) {
      add(on(last), low - last * row, high - last * row);
      return;
    }
    add(on(first - 1), row - (first * row - low), row);
    if (last > first) {
      const offset = [...on(first), ...box.offset.slice(d + 1)];
      const shape = [...coordinates.map(() => 1), last - first, ...box.shape.slice(d + 1)];
      boxes.push({ offset, shape });
    }
    add(on(last), 0, high - last * row);
  };
  add([], from, from + count);
  return boxes;
}

/**
 * Divides elements [from, from + count) of boxes that are contiguous in memory, in order. Returns
 * the part of each box, and its offset from `from`.
 */
export function rangesOf(
  boxes: readonly Box[],
  from: number,
  count: number,
): (BoxRange & { offset: number })[] {
  let first = 0;
  return boxes.flatMap((box) => {
    const start = first;
    first += numel(box.shape);
    const [low, high] = [Math.max(from, start), Math.min(from + count, first)];
    if (high <= low) return [];
    return [{ box, from: low - start, numel: high - low, offset: low - from }];
  });
}

/**
 * Returns the shape of the largest runs of `box`. The boxes `around` contain `box`; a run is
 * contiguous in each of them.
 */
export function runShape(box: Box, around: readonly Box[]): number[] {
  const run = box.shape.map(() => 1);
  for (let d = run.length - 1; d >= 0; --d) {
    run[d] = at(box.shape, d);
    if (around.some(({ shape }) => shape[d] !== run[d])) break;
  }
  return run;
}

/** Yields the parts of `box` with the shape `run`, in order. `run` divides the shape of `box`. */
export function* partsOf(box: Box, run: readonly number[]): Generator<Box> {
  const counts = wholeBox(box.shape.map((n, d) => n / at(run, d)));
  for (let i = 0; i < numel(counts.shape); ++i) {
    const coordinates = coordinatesIn(counts, i);
    yield { offset: coordinates.map((n, d) => at(box.offset, d) + n * at(run, d)), shape: run };
  }
}
