// Tests the check for diverged replicas: different values count, different rounding does not, and
// the error names the values.
import { MeshShape } from '../../lib/comm/mesh-shape.js';
import {
  findDifferentCopies,
  findDifferentResults,
  findOtherBatch,
} from '../../lib/engine/step/copy-check.js';
import { BATCHES } from '../../lib/engine/step/step-rows.js';

/** Ranks 0 and 1 are replicas, and 2 and 3. */
const shape = MeshShape.over(4, { tp: 2 });
const mesh = { shape, copies: ['pp', 'sp', 'tp'] as const };

test.each<[numbers: number[], apart: [number, number] | null]>([
  [[1, 1, 2, 2], null],
  [
    [1, 1, 2, 2.5],
    [2, 3],
  ],
  [
    [1, -1, 2, 2.5],
    [0, 1],
  ],
  [[1, 1.0009, 2, 1.999], null],
  [[0, 0, 2, 2], null],
  [
    [0, 1e-30, 2, 2],
    [0, 1],
  ],
  [[Number.NaN, Number.NaN, 3, 3], null],
  [[Number.POSITIVE_INFINITY, 1, 3, 3], null],
])('%j: %j', (numbers, apart) => {
  const found = findDifferentCopies(
    mesh,
    (rank) => Float32Array.of(5, numbers[rank] as number),
    1e-3,
  );
  expect(found).toEqual(apart);
});

test('ranks with different data are not compared', () => {
  const data = { ...mesh, shape: MeshShape.over(4) };
  expect(findDifferentCopies(data, (rank) => Float32Array.of(rank), 1e-3)).toBeNull();
});

/** The numbers of each rank. */
const rowsOf = (losses: readonly number[], squares: readonly number[]) => ({
  lossOf: (rank: number) => losses[rank] as number,
  squaresOf: (rank: number) => Float32Array.of(squares[rank] as number),
});

const among = { ...mesh, compared: BATCHES };

test('reports different losses before different gradient norms', () => {
  const mismatchOf = (losses: number[], squares: number[]) =>
    findDifferentResults(rowsOf(losses, squares), among);
  const what = 'losses or gradients';
  expect(mismatchOf([1, 1, 3, 4], [4, 9, 4, 4])).toEqual({ ranks: [2, 3], axes: ['tp'], what });
  expect(mismatchOf([1, 1, 3, 3], [4, 9, 4, 4])).toEqual({ ranks: [0, 1], axes: ['tp'], what });
  expect(mismatchOf([1, 1, 3, 3], [4, 4, 9, 9])).toBeNull();
});

test.each<
  [reported: [bits: number, outline: number][], given: string, found: [number, number] | null]
>([
  [
    [
      [7, 1],
      [7, 1],
      [8, 2],
      [8, 2],
    ],
    'inputs',
    null,
  ],
  [
    [
      [7, 1],
      [7, 1],
      [8, 2],
      [9, 2],
    ],
    'labels',
    [2, 3],
  ],
  [
    [
      [7, 1],
      [7, 3],
      [8, 2],
      [8, 2],
    ],
    'evaluated inputs',
    [0, 1],
  ],
  [
    [
      [0, 0],
      [7, 3],
      [8, 2],
      [0, 0],
    ],
    'inputs',
    null,
  ],
  [
    [
      [0, 1],
      [0, 1],
      [0, 2],
      [-1, 2],
    ],
    'inputs',
    [2, 3],
  ],
])('digests %j of %s: %j', (reported, given, ranks) => {
  const digestOf = (rank: number, what: string) => {
    const [bits = 0, outline = 0] = what === given ? (reported[rank] ?? []) : [5, 5];
    return { bits, outline };
  };
  const found = ranks && { ranks, axes: ['tp'], what: given };
  expect(findOtherBatch({ digestOf }, among)).toEqual(found);
});

test('ranks whose batches are not compared may differ', () => {
  const digestOf = (rank: number) => ({ bits: rank, outline: 1 });
  expect(findOtherBatch({ digestOf }, { ...mesh, compared: [] })).toBeNull();
  expect(findOtherBatch({ digestOf }, { ...among, shape: MeshShape.over(4) })).toBeNull();
});
