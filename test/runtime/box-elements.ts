// Boxes for tests: random ones, and the list of their elements.
import { type Box, type BoxRange, wholeBox } from '../../lib/runtime/box.js';
import { numel } from '../../lib/runtime/view.js';

export type Random = (below: number) => number;

/** The same sequence in every run. */
export function randomly(seed: number): Random {
  let state = seed;
  return (below) => {
    state = (state * 48271) % 2147483647;
    return state % below;
  };
}

/** 1 to 4 dims of 1 to 4. */
export function randomShape(random: Random): number[] {
  return Array.from({ length: 1 + random(4) }, () => 1 + random(4));
}

/** A range of a box inside a tensor of `shape`, often all of it; at least one element. */
export function randomRange(random: Random, shape: readonly number[]): BoxRange {
  const box = random(4) === 0 ? wholeBox(shape) : randomBox(random, shape);
  const size = numel(box.shape);
  if (random(4) === 0) return { box, from: 0, numel: size };
  const from = random(size);
  return { box, from, numel: 1 + random(size - from) };
}

function randomBox(random: Random, shape: readonly number[]) {
  const offset = shape.map((size) => (random(2) === 0 ? 0 : random(size)));
  const sizes = shape.map((size, d) => {
    const maxSize = size - (offset[d] as number);
    return random(2) === 0 ? maxSize : 1 + random(maxSize);
  });
  return { offset, shape: sizes };
}

/** The coordinates of every element, as text, in order. */
export function elementsOf({ box, from, numel: count }: BoxRange): string[] {
  let places: number[][] = [[]];
  for (const [d, size] of box.shape.entries()) {
    const first = box.offset[d] as number;
    places = places.flatMap((place) =>
      Array.from({ length: size }, (_, i) => [...place, first + i]),
    );
  }
  return places.slice(from, from + count).map(String);
}

/** A box as a range of itself. */
export const all = (box: Box): BoxRange => ({ box, from: 0, numel: numel(box.shape) });

/** Parts of a range: splits it along a random dim or as flat ranges, `depth` times. */
export function cut(random: Random, range: BoxRange, depth: number): BoxRange[] {
  const { box, from, numel: count } = range;
  if (depth === 0 || count < 2) return [range];
  if (from > 0 || count < numel(box.shape) || random(3) === 0) {
    const half = 1 + random(count - 1);
    const first = { box, from, numel: half };
    const second = { box, from: from + half, numel: count - half };
    return [...cut(random, first, depth - 1), ...cut(random, second, depth - 1)];
  }
  const d = random(box.shape.length);
  const size = box.shape[d] as number;
  if (size < 2) return cut(random, range, depth - 1);
  const border = 1 + random(size - 1);
  const part = (low: number, high: number): BoxRange =>
    all({
      offset: box.offset.map((n, i) => (i === d ? n + low : n)),
      shape: box.shape.map((n, i) => (i === d ? high - low : n)),
    });
  return [part(0, border), part(border, size)].flatMap((boxRange) =>
    cut(random, boxRange, depth - 1),
  );
}
