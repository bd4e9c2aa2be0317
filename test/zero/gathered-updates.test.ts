// How the parameters that an optimizer transforms are spread over batches and ranks.

import { layoutUnit } from '../../lib/zero/layout.js';
import type { Partition } from '../../lib/zero/partition.js';
import { makeBatches } from '../../lib/zero/schedule/gathered-updates.js';

/** Units of matrices (group 0) and vectors (group 1), by size, in halves. */
function partitionsOf(units: readonly { matrices: number[]; vectors: number[] }[]): Partition[] {
  return units.map(({ matrices, vectors }, u) => {
    const shapes = [matrices, vectors].flatMap((sizes, group) =>
      sizes.map((size, i) => ({ name: `${u}.${group}.${i}`, shape: [size], group })),
    );
    const layout = layoutUnit(shapes, { shards: 2 });
    return { unit: { layout, gradient: {} }, numel: layout.numel / 2 } as unknown as Partition;
  });
}

const isMatrix = ({ group }: { group: number }): boolean => group === 0;

const units = [
  { matrices: [], vectors: [1000] },
  { matrices: [100, 400], vectors: [64] },
  { matrices: [300], vectors: [] },
  { matrices: [0, 70], vectors: [] },
  { matrices: [], vectors: [5] },
];

test('a batch has a matrix for every rank, and every partition is in one batch, in order', () => {
  const partitions = partitionsOf(units);
  const batches = makeBatches(partitions, isMatrix, 3);
  expect(batches.flat().map(({ partition }) => partition)).toEqual(partitions);
  expect(batches.map((batch) => batch.length)).toEqual([3, 2]);
});

test('the largest matrices come first, each to the rank with the least work', () => {
  const [batch] = makeBatches(partitionsOf(units), isMatrix, 3);
  const owners = (batch ?? []).flatMap(({ assignments }) =>
    assignments.map(({ entry, owner }) => [entry.numel, owner]),
  );
  expect(owners).toEqual([
    [100, 2],
    [400, 0],
    [300, 1],
  ]);
  const [all] = makeBatches(
    partitionsOf([{ matrices: [5, 4, 3, 3, 3], vectors: [] }]),
    isMatrix,
    2,
  );
  expect((all ?? []).flatMap(({ assignments }) => assignments.map(({ owner }) => owner))).toEqual([
    0, 1, 1, 0, 1,
  ]);
});

test('shards without matrices take no scratch memory, the others follow each other', () => {
  const [batch, rest] = makeBatches(partitionsOf(units), isMatrix, 3);
  expect((batch ?? []).map(({ directions }) => [directions.offset, directions.numel])).toEqual([
    [0, 0],
    [0, 320],
    [320, 192],
  ]);
  expect((rest ?? []).map(({ assignments }) => assignments.length)).toEqual([1, 0]);
});
