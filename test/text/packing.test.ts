// Packing: no token is lost or doubled, best fit, long documents.
import { cutPieces, packBestFit } from '../../lib/text/packing.js';
import { buildSample, cumulativeLengths, documentLengths } from '../../lib/text/sample.js';

/** A small generator of repeatable numbers. */
function numbers(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/**
 * The expected packing, by a search of every open sample. Of equal samples it takes the one used
 * last.
 */
function plainBestFit(lengths: readonly number[], capacity: number): number[][] {
  const samples: { room: number; used: number; lengths: number[] }[] = [];
  let now = 0;
  for (const length of [...lengths].sort((a, b) => b - a)) {
    const fits = samples.filter(({ room }) => room >= length);
    const best = fits.sort((a, b) => a.room - b.room || b.used - a.used)[0];
    const sample = best ?? { room: capacity, used: 0, lengths: [] };
    if (!best) samples.push(sample);
    sample.room -= length;
    sample.used = ++now;
    sample.lengths.push(length);
  }
  return samples.map((sample) => sample.lengths);
}

test.each([1, 2, 7, 64, 100, 777])(
  'pieces fill samples of %d as the plain search does',
  (capacity) => {
    for (let seed = 1; seed < 20; ++seed) {
      const below = numbers(seed);
      const lengths = Array.from({ length: below(150) }, () => 1 + below(capacity));
      const { pieces } = cutPieces(lengths, capacity, 'cut');
      const samples = packBestFit(pieces, capacity);
      const shape = (list: number[][]): string =>
        JSON.stringify(list.map((l) => l.join('+')).sort());
      const found = samples.map((sample) => sample.map(({ length }) => length));
      expect(shape(found)).toBe(shape(plainBestFit(lengths, capacity)));
      const starts = samples.flat().map(({ start }) => start);
      expect(new Set(starts).size).toBe(lengths.length);
      for (const list of found)
        expect(list.reduce((a, b) => a + b, 0)).toBeLessThanOrEqual(capacity);
    }
  },
);

test('too long documents are cut, split or dropped, and lost tokens are counted', () => {
  const lengths = [3, 10, 4];
  expect(cutPieces(lengths, 4, 'cut')).toEqual({
    pieces: [
      { start: 0, length: 3 },
      { start: 3, length: 4 },
      { start: 13, length: 4 },
    ],
    cutRows: 1,
    cutTokens: 6,
  });
  const split = cutPieces(lengths, 4, 'split');
  expect(split.pieces.map(({ length }) => length)).toEqual([3, 4, 4, 2, 4]);
  expect([split.cutRows, split.cutTokens]).toEqual([0, 0]);
  const dropped = cutPieces(lengths, 4, 'drop');
  expect(dropped.pieces.map(({ start }) => start)).toEqual([0, 13]);
  expect([dropped.cutRows, dropped.cutTokens]).toEqual([1, 10]);
});

test('a sample has positions that restart, documents by number, and learns no first token', () => {
  const ids = Int32Array.from([10, 11, 12, 20, 21, 30, 31, 32]);
  const pieces = [
    { start: 5, length: 3 },
    { start: 3, length: 2 },
  ];
  const sample = buildSample({ ids, labels: ids }, pieces, 8, 0);
  expect([...sample.ids]).toEqual([30, 31, 32, 20, 21, 0, 0, 0]);
  expect([...sample.labels]).toEqual([-100, 31, 32, -100, 21, -100, -100, -100]);
  expect([...sample.positions]).toEqual([0, 1, 2, 0, 1, 0, 1, 2]);
  expect([...sample.documents]).toEqual([0, 0, 0, 1, 1, -1, -1, -1]);
  const two = [...sample.documents, ...sample.documents];
  expect([...documentLengths(two, 8)]).toEqual([3, 2, 3, 3, 2, 3]);
  expect([...cumulativeLengths(two, 8)]).toEqual([0, 3, 5, 8, 11, 13, 16]);
  expect([...documentLengths([0, 0, 0, 0], 2)]).toEqual([2, 2]);
});
