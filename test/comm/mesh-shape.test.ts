// The arithmetic of a mesh against a list of all its places.
import { AXES, type Axis, MeshShape, type PerAxis } from '../../lib/comm/mesh-shape.js';
import { below } from '../support/random.js';

/** Every place by rank: nested loops, the last axis fastest. */
function places({ pp, dp, sp, tp }: PerAxis): PerAxis[] {
  const found: PerAxis[] = [];
  for (let i = 0; i < pp; ++i)
    for (let j = 0; j < dp; ++j)
      for (let k = 0; k < sp; ++k)
        for (let l = 0; l < tp; ++l) found.push({ pp: i, dp: j, sp: k, tp: l });
  return found;
}

const subsets: readonly Axis[][] = Array.from({ length: 16 }, (_, bits) =>
  AXES.filter((_, i) => bits & (1 << i)),
);

test('ranks, coordinates and groups of random shapes', () => {
  for (let round = 0; round < 60; ++round) {
    const size = () => 1 + below(4);
    const sizes = { pp: size(), dp: size(), sp: size(), tp: size() };
    const all = places(sizes);
    const shape = MeshShape.over(all.length, sizes);
    expect(shape.ranks).toBe(all.length);
    for (const axes of subsets) {
      const input = below(2) ? axes.toReversed() : axes;
      const fixed = AXES.filter((axis) => !axes.includes(axis));
      const isFellow = (a: PerAxis, b: PerAxis) => fixed.every((axis) => a[axis] === b[axis]);
      const groups = new Set<string>();
      for (const [rank, place] of all.entries()) {
        expect(shape.coordinates(rank)).toEqual(place);
        expect(shape.rankAt(place)).toBe(rank);
        const along = all.flatMap((other, i) => (isFellow(place, other) ? [i] : []));
        expect(shape.ranksAlong(rank, ...input)).toEqual(along);
        expect(shape.indexAlong(rank, ...input)).toBe(along.indexOf(rank));
        expect(shape.size(...input)).toBe(along.length);
        groups.add(along.join());
      }
      expect(shape.groups(...input).map(String)).toEqual([...groups]);
    }
  }
});

test("the order of DeepSpeed's topology of pipe, data and model", () => {
  const shape = MeshShape.over(8, { pp: 2, dp: 2, tp: 2 });
  expect(shape.groups('tp')).toEqual([
    [0, 1],
    [2, 3],
    [4, 5],
    [6, 7],
  ]);
  expect(shape.groups('dp')).toEqual([
    [0, 2],
    [1, 3],
    [4, 6],
    [5, 7],
  ]);
  expect(shape.groups('pp')).toEqual([
    [0, 4],
    [1, 5],
    [2, 6],
    [3, 7],
  ]);
  expect(shape.groups('tp', 'pp')).toEqual([
    [0, 1, 4, 5],
    [2, 3, 6, 7],
  ]);
  expect(shape.groups()).toEqual([[0], [1], [2], [3], [4], [5], [6], [7]]);
});

test.each([
  [1, {}, 'dp 1', 1],
  [8, {}, 'dp 8', 8],
  [8, { tp: 2 }, 'dp 4 x tp 2', 4],
  [8, { pp: 2, dp: 2, sp: 2, tp: 1 }, 'pp 2 x dp 2 x sp 2', 2],
  [6, { dp: 1, sp: 6 }, 'sp 6', 1],
])('%d ranks on %j are %s', (ranks, options, text, dp) => {
  const shape = MeshShape.over(ranks, options);
  expect(String(shape)).toBe(text);
  expect(shape.sizes.dp).toBe(dp);
});

test.each([
  [
    8,
    { dp: 2, tp: 2 },
    /mesh: expected sizes with the product 8, the number of ranks, got dp 2 x tp 2 = 4\. Without dp/,
  ],
  [
    8,
    { tp: 3 },
    /mesh: expected sizes with a product that divides 8, the number of ranks, got tp 3 = 3\.$/,
  ],
  [1, { tp: 2 }, /product that divides 1, the number of ranks, got tp 2 = 2/],
  [8, { tp: 0 }, /mesh\.tp: expected an integer of at least 1, got 0/],
  [8, { dp: 2.5 }, /mesh\.dp: expected an integer of at least 1, got 2\.5/],
  [8, { tp: '2' }, /mesh\.tp: expected an integer/],
  [8, { ep: 2 }, /mesh: expected the options pp, dp, sp, tp, got "ep"/],
  [8, [2, 4], /mesh: expected an object of options/],
])('%d ranks on %j are refused', (ranks, options, message) => {
  expect(() => MeshShape.over(ranks, options as object)).toThrow(message);
  expect(() => MeshShape.over(ranks, options as object)).toThrow(
    expect.objectContaining({ code: 'DS_ARGUMENT' }),
  );
});

test('unknown axes are refused', () => {
  const shape = MeshShape.over(4);
  expect(() => shape.groups('ep' as Axis)).toThrow(
    /mesh axis: expected "pp", "dp", "sp", "tp", got "ep"/,
  );
});
