// When copies are found apart: other numbers, not other rounding, and only between copies; and what
// is said to be apart.
import { MeshShape } from '../../lib/comm/mesh-shape.js';
import { copiesApart, findApart } from '../../lib/engine/step/copies-apart.js';

/** Ranks 0 and 1, 2 and 3 are copies. */
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
  const found = copiesApart(mesh, (rank) => Float32Array.of(5, numbers[rank] as number), 1e-3);
  expect(found).toEqual(apart);
});

test('ranks with other data are no copies', () => {
  const data = { ...mesh, shape: MeshShape.over(4) };
  expect(copiesApart(data, (rank) => Float32Array.of(rank), 1e-3)).toBeNull();
});

test.each<
  [what: string, told: [inputs: number[], losses: number[], squares: number[]], found: object]
>([
  [
    'inputs, where losses are apart as well',
    [
      [7, 7, 8, 9],
      [1, 2, 3, 3],
      [4, 4, 4, 4],
    ],
    { ranks: [2, 3], axes: ['tp'], what: 'inputs' },
  ],
  [
    'losses before squares',
    [
      [7, 7, 8, 8],
      [1, 1, 3, 4],
      [4, 9, 4, 4],
    ],
    { ranks: [2, 3], axes: ['pp', 'sp', 'tp'], what: 'losses or gradients' },
  ],
  [
    'squares',
    [
      [7, 7, 8, 8],
      [1, 1, 3, 3],
      [4, 9, 4, 4],
    ],
    { ranks: [0, 1], axes: ['pp', 'sp', 'tp'], what: 'losses or gradients' },
  ],
])('%s', (_what, told, found) => {
  const [inputs, losses, squares] = told.map((all) => (rank: number) => all[rank] as number);
  const rows = {
    inputsOf: inputs as (rank: number) => number,
    lossOf: losses as (rank: number) => number,
    squaresOf: (rank: number) => Float32Array.of(squares?.(rank) as number),
  };
  expect(findApart(rows, { ...mesh, sharing: ['tp'] })).toEqual(found);
});

test('inputs of ranks that share nothing out are their own', () => {
  const rows = {
    inputsOf: (rank: number) => rank,
    lossOf: () => 1,
    squaresOf: () => Float32Array.of(2),
  };
  expect(findApart(rows, { ...mesh, sharing: [] })).toBeNull();
});
