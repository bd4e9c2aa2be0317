// The arithmetic of boxes and of flat ranges inside them, against lists of all their elements.
import {
  type Box,
  type BoxRange,
  boxesOf,
  canonical,
  coordinatesIn,
  intersectBoxes,
  intersectRanges,
  isInside,
  positionIn,
  rangesOf,
  wholeBox,
} from '../../lib/runtime/box.js';
import { numel } from '../../lib/runtime/view.js';
import { elementsOf, randomly, randomRange, randomShape } from './box-elements.js';

const ROUNDS = 3000;

test('positions and places are inverse, in row-major order', () => {
  const box: Box = { offset: [2, 0, 5], shape: [2, 3, 2] };
  const places = Array.from({ length: 12 }, (_, i) => coordinatesIn(box, i));
  expect(places.slice(0, 3)).toEqual([
    [2, 0, 5],
    [2, 0, 6],
    [2, 1, 5],
  ]);
  expect(places.map((place) => positionIn(box, place))).toEqual(places.map((_, i) => i));
});

test('the intersection of two ranges is one range of the intersected box, in order', () => {
  const random = randomly(1);
  let found = 0;
  for (let round = 0; round < ROUNDS; ++round) {
    const shape = randomShape(random);
    const [a, b] = [randomRange(random, shape), randomRange(random, shape)];
    const inB = new Set(elementsOf(b));
    const expected = elementsOf(a).filter((place) => inB.has(place));
    const both = intersectRanges(a, b);
    expect(both ? elementsOf(both) : []).toEqual(expected);
    if (both) {
      found++;
      expect(both.box).toEqual(intersectBoxes(a.box, b.box));
      expect(both.numel).toBe(expected.length);
    }
  }
  expect(found).toBeGreaterThan(ROUNDS / 4);
});

test('a range is at most 2 n - 1 boxes, which are its elements in order', () => {
  const random = randomly(2);
  for (let round = 0; round < ROUNDS; ++round) {
    const shape = randomShape(random);
    const range = randomRange(random, shape);
    const boxes = boxesOf(range);
    expect(boxes.length).toBeLessThanOrEqual(Math.max(1, 2 * shape.length - 1));
    const all = boxes.flatMap((box) => elementsOf({ box, from: 0, numel: numel(box.shape) }));
    expect(all).toEqual(elementsOf(range));
  }
});

test('the canonical form has the same elements, and one box where possible', () => {
  const random = randomly(3);
  for (let round = 0; round < ROUNDS; ++round) {
    const shape = randomShape(random);
    const range = randomRange(random, shape);
    const same = canonical(shape, range);
    expect(elementsOf(same)).toEqual(elementsOf(range));
    expect(canonical(shape, same)).toEqual(same);
    const all = { box: range.box, from: 0, numel: numel(range.box.shape) };
    const places = elementsOf({ box: wholeBox(shape), from: 0, numel: numel(shape) });
    const first = places.indexOf(elementsOf(all)[0] as string);
    const isContiguous = places.slice(first, first + all.numel).join() === elementsOf(all).join();
    expect(same.box.shape.join() === shape.join()).toBe(isContiguous);
  }
});

test('a range over consecutive boxes is a range of each box', () => {
  const random = randomly(4);
  for (let round = 0; round < ROUNDS; ++round) {
    const shape = randomShape(random);
    const boxes = Array.from({ length: 1 + random(3) }, () => randomRange(random, shape).box);
    const memory = boxes.flatMap((box) => elementsOf({ box, from: 0, numel: numel(box.shape) }));
    const from = random(memory.length);
    const count = random(memory.length - from + 1);
    const ranges = rangesOf(boxes, from, count);
    expect(ranges.flatMap(elementsOf)).toEqual(memory.slice(from, from + count));
    let offset = 0;
    for (const range of ranges) {
      expect(range.offset).toBe(offset);
      offset += range.numel;
    }
  }
});

test('scalars, empty tensors, and boxes that lie outside', () => {
  const scalar: BoxRange = { box: wholeBox([]), from: 0, numel: 1 };
  expect(intersectRanges(scalar, scalar)).toEqual(scalar);
  expect(boxesOf(scalar)).toEqual([{ offset: [], shape: [] }]);
  const empty: BoxRange = { box: wholeBox([3, 0]), from: 0, numel: 0 };
  expect(intersectRanges(empty, empty)).toBeNull();
  expect(boxesOf(empty)).toEqual([]);
  expect(isInside({ offset: [1, 2], shape: [2, 2] }, [3, 4])).toBe(true);
  expect(isInside({ offset: [2, 2], shape: [2, 2] }, [3, 4])).toBe(false);
  expect(isInside({ offset: [2 ** 53, 0], shape: [2 ** 53, 1] }, [3, 4])).toBe(false);
  expect(isInside({ offset: [0], shape: [3] }, [3, 4])).toBe(false);
});

test('boxes of sizes that are too large to list are handled', () => {
  const shape = [2 ** 20, 3, 2 ** 20];
  const half: Box = { offset: [0, 0, 2 ** 19], shape: [2 ** 20, 3, 2 ** 19] };
  const ofHalf: BoxRange = { box: half, from: 3 * 2 ** 38, numel: 2 ** 30 };
  const rest = 3 * 2 ** 40 - 5;
  const ofWhole: BoxRange = { box: wholeBox(shape), from: rest / 2 - 0.5, numel: 2 ** 40 };
  const both = intersectRanges(ofHalf, ofWhole) as BoxRange;
  expect(both.box).toEqual(half);
  expect(both.from).toBe(3 * 2 ** 38);
  expect(both.numel).toBe(2 ** 30);
  expect(boxesOf({ box: half, from: 1, numel: 3 * 2 ** 39 - 2 })).toHaveLength(5);
});
