// Tests layouts of sparse attention: against DeepSpeed's classes, and random ones by their
// statistics.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { DsError } from '../../lib/errors.js';
import { readSparsity, type SparsityOptions, sparseLayout } from '../../lib/nn/index.js';
import type { BlockLayout } from '../../lib/tensor/index.js';

interface Recorded {
  mode: SparsityOptions['mode'];
  blocks: number;
  options: object;
  refused?: true;
  /** Rows of each head as hexadecimal numbers; bit j stands for block j. */
  layout?: string[][];
}

const { heads, cases } = JSON.parse(
  readFileSync(join(__dirname, '../golden/sparse-layouts.json'), 'utf8'),
) as { heads: number; cases: Recorded[] };

function rowsOf(layout: BlockLayout): string[][] {
  const blocks = Array.from({ length: layout.blocks }, (_, i) => i);
  return Array.from({ length: layout.heads }, (_, head) =>
    blocks.map((row) => {
      const bits = blocks.map((key) => (layout.sees(head, row, key) ? 1n << BigInt(key) : 0n));
      return bits.reduce((sum, bit) => sum + bit, 0n).toString(16);
    }),
  );
}

const titled = cases.map((recorded) => [
  `${recorded.mode} ${recorded.blocks} ${JSON.stringify(recorded.options)}`,
  recorded,
]);

test("every layout is that of DeepSpeed's classes, or refused as there", () => {
  expect(cases.length).toBeGreaterThan(250);
  for (const [title, { mode, blocks, options, refused, layout }] of titled as [
    string,
    Recorded,
  ][]) {
    const make = () => {
      const sparsity = readSparsity({ mode, maxTokens: 16 * blocks, ...options });
      return sparseLayout(sparsity, heads, 16 * blocks);
    };
    if (refused) {
      expect(make).toThrow(DsError);
      continue;
    }
    const got = rowsOf(make());
    if (JSON.stringify(got) !== JSON.stringify(layout))
      expect({ title, got }).toEqual({ title, got: layout });
  }
});

test('a shorter text has the corner of the layout of the longest, its last block short', () => {
  const sparsity = readSparsity({ mode: 'fixed', numLocalBlocks: 5, maxTokens: 16 * 33 });
  const fullTexts = rowsOf(sparseLayout(sparsity, 1, 16 * 33))[0] as string[];
  const part = rowsOf(sparseLayout(sparsity, 1, 16 * 12 + 1))[0] as string[];
  expect(part).toHaveLength(13);
  const corner = (1n << 13n) - 1n;
  expect(part).toEqual(
    fullTexts.slice(0, 13).map((row) => (BigInt(`0x${row}`) & corner).toString(16)),
  );
});

const bits = (row: string): number => BigInt(`0x${row}`).toString(2).replace(/0/g, '').length;

test('random blocks are distinct and as many per row as configured, determined by seed, head and row', () => {
  const options: SparsityOptions = {
    mode: 'variable',
    numRandomBlocks: 6,
    localWindowBlocks: [1],
    globalBlockIndices: [99],
    differentLayoutPerHead: true,
    maxTokens: 16 * 64,
  };
  const layout = (more: SparsityOptions = {}) =>
    rowsOf(sparseLayout(readSparsity({ ...options, ...more }), 3, 16 * 64));
  const first = layout();
  expect(layout()).toEqual(first);
  expect(layout({ seed: 1 })).not.toEqual(first);
  expect(new Set(first.flat()).size).toBeGreaterThan(185);
  // The row's own block may be one of the six.
  for (const row of first.flat()) expect([6, 7]).toContain(bits(row));
  const columns = Array.from({ length: 64 }, (_, j) =>
    first.flat().reduce((sum, row) => sum + Number((BigInt(`0x${row}`) >> BigInt(j)) & 1n), 0),
  );
  // 192 rows by 6 of 64 blocks: 18 a column, with a standard deviation of about 4, and 3 diagonals.
  expect(Math.min(...columns)).toBeGreaterThan(3);
  expect(Math.max(...columns)).toBeLessThan(42);
});

test('one direction draws among the existing blocks, or takes all of them', () => {
  const sparsity = readSparsity({
    mode: 'bigbird',
    attention: 'unidirectional',
    numRandomBlocks: 4,
    maxTokens: 16 * 20,
    numSlidingWindowBlocks: 1,
    numGlobalBlocks: 0,
  });
  const rows = rowsOf(sparseLayout(sparsity, 1, 16 * 20))[0] as string[];
  rows.forEach((row, i) => {
    expect(BigInt(`0x${row}`) < 1n << BigInt(i + 1)).toBe(true);
    expect([Math.min(4, i + 1), Math.min(5, i + 1)]).toContain(bits(row));
  });
});
