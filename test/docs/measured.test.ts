// Measured numbers in tables of the documentation are values of the result files that their section
// names.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { pages, readPage } from './snippets.js';

type Quantity = 'time' | 'memory' | 'rate';

/** Units of pages, in seconds, bytes and events a second. */
const UNITS: Record<string, [Quantity, number]> = {
  ms: ['time', 1e-3],
  s: ['time', 1],
  GiB: ['memory', 2 ** 30],
  MiB: ['memory', 2 ** 20],
  'tokens/s': ['rate', 1],
  'samples/s': ['rate', 1],
};

/** Ends of keys in result files. The first that fits a key counts. */
const KEYS: [RegExp, Quantity, number][] = [
  [/per_s(econd)?(_each)?$/, 'rate', 1],
  [/(^|[_ ])ms$/, 'time', 1e-3],
  [/(^|[_ ])seconds$/, 'time', 1],
  [/(^|[_ ])gib$/i, 'memory', 2 ** 30],
  [/(^|[_ ])mib$/i, 'memory', 2 ** 20],
  [/(^|[_ ])bytes$/, 'memory', 1],
];

interface Value {
  quantity: Quantity | null;
  value: number;
}

/** A number of a table cell with its unit. */
interface Claim {
  line: number;
  text: string;
  quantity: Quantity;
  value: number;
  /** Half of the last printed digit. */
  slack: number;
}

const results = join(packageRoot(), 'bench', 'results');
const unit = Object.keys(UNITS).join('|');
/** Not "s", which is also a variable. */
const inHead = new RegExp(`(?:^|[ ,(])(${unit.replace('|s|', '|')})(?![\\w/])`);
const inCell = new RegExp(
  `(?<![\\w.,^])(\\d+(?:,\\d{3})*(?:\\.\\d+)?)(?: (${unit})(?![\\w/]))?(?![\\w^])`,
  'g',
);

/** All numbers of a result file. The nearest key with a unit decides about the quantity. */
function valuesOf(json: unknown, nearest: Value = { quantity: null, value: 1 }): Value[] {
  if (typeof json === 'number') return [{ ...nearest, value: json * nearest.value }];
  if (typeof json !== 'object' || json === null) return [];
  return Object.entries(json).flatMap(([key, item]) => {
    const known = KEYS.find(([end]) => end.test(key));
    return valuesOf(item, known ? { quantity: known[1], value: known[2] } : nearest);
  });
}

/** Claims of a table that begins at `line`. */
function claimsOf(table: readonly string[], line: number): Claim[] {
  const cells = table.map((row) =>
    row
      .replace(/`[^`]*`/g, '')
      .split(/(?<!\\)\|/)
      .slice(1, -1),
  );
  const [head = [], , ...rows] = cells;
  const isComputed = (cell = '') => /\b(predicted|computed|capped|published)\b/.test(cell);
  if (isComputed(head[0])) return [];
  const byRow = rows.map((row, i) =>
    row.flatMap((cell, column) => {
      if (column === 0 || isComputed(head[column])) return [];
      const common = inHead.exec(head[column] ?? '')?.[1];
      return Array.from(cell.matchAll(inCell)).flatMap(([, number = '', own]): Claim[] => {
        const found = UNITS[own ?? common ?? ''];
        if (!found) return [];
        const [quantity, scale] = found;
        const decimals = number.split('.')[1]?.length ?? 0;
        return [
          {
            line: line + 2 + i,
            text: `${number} ${own ?? common}`,
            quantity,
            value: Number(number.replaceAll(',', '')) * scale,
            slack: 0.5001 * 10 ** -decimals * scale,
          },
        ];
      });
    }),
  );
  // A limit with a unit, among options, is no measurement.
  const measured = byRow.filter((claims) => claims.length > 0).length;
  const isMeasured = head.slice(1).some((cell) => inHead.test(cell)) || measured * 2 > rows.length;
  return isMeasured ? byRow.flat() : [];
}

/**
 * Claims of a page, each with the result files that its section names. `npm run charts` makes the
 * tables between "<!-- table: NAME -->" and "<!-- end -->"; `scripts/check` compares them.
 */
function measuredOf(page: string): { claim: Claim; files: string[] }[] {
  const visible = page.replace(/^```.*?^```$|^<!-- table: .*?^<!-- end -->$/gms, (block) =>
    block.replace(/.*/g, ''),
  );
  let line = 1;
  return visible.split(/^(?=## )/m).flatMap((section) => {
    const names = section.matchAll(/bench\/results\/([\w-]+\.json)/g);
    const files = [...new Set(Array.from(names, ([, name = '']) => name))];
    const claims = Array.from(section.matchAll(/^\|.*\n\|[ :|-]+\n(?:\|.*\n?)+/gm), (match) => {
      const before = section.slice(0, match.index).split('\n').length - 1;
      return claimsOf(match[0].trimEnd().split('\n'), line + before);
    });
    line += section.split('\n').length - 1;
    return claims.flat().map((claim) => ({ claim, files }));
  });
}

const read = new Map<string, Value[]>();

function valuesIn(file: string): Value[] {
  const path = join(results, file);
  if (!existsSync(path)) return [];
  if (!read.has(file)) read.set(file, valuesOf(JSON.parse(readFileSync(path, 'utf8'))));
  return read.get(file) ?? [];
}

function hasSource({ claim, files }: { claim: Claim; files: string[] }): boolean {
  return files.flatMap(valuesIn).some(({ quantity, value }) => {
    const fits = quantity === claim.quantity || (quantity === null && claim.quantity === 'rate');
    return fits && Math.abs(value - claim.value) <= claim.slack;
  });
}

/** Claims of a page without a source, with the files that its section names. */
function unsourced(page: string): string[] {
  const left = measuredOf(page).filter((found) => !hasSource(found));
  return left.map(({ claim, files }) => {
    const where = files.length > 0 ? `not in ${files.join(', ')}` : 'no link to bench/results';
    return `${claim.line}: ${claim.text}: ${where}`;
  });
}

test.each(pages())('the measured numbers of %s are in result files', (page) => {
  // Other numbers: write "predicted", "computed" or "capped" into the head of their column or of
  // the table.
  expect(unsourced(readPage(page))).toEqual([]);
});

test('finds numbers without a source, and accepts numbers with one', () => {
  const page = (head: string, ...rows: string[]) =>
    ['# A', '[rows](bench/results/serve-8B-h200.json)', '', head, '| --- | --- |', ...rows].join(
      '\n',
    );
  expect(unsourced(page('| a | tokens/s |', '| b | 10,580 |'))).toEqual([]);
  expect(unsourced(page('| a | tokens/s |', '| b | 10,581 |'))).toEqual([
    '6: 10,581 tokens/s: not in serve-8B-h200.json',
  ]);
  expect(unsourced(page('| a | b |', '| c | 10,580 ms |'))).toHaveLength(1);
  expect(unsourced(page('| a | b |', '| c | `7 GiB` |', '| d | 8 bits |'))).toEqual([]);
  expect(unsourced(page('| a | predicted ms |', '| b | 7 |'))).toEqual([]);
  expect(unsourced('| a | ms |\n| --- | --- |\n| b | 7 |\n')).toEqual([
    '3: 7 ms: no link to bench/results',
  ]);
  expect(unsourced('```sh\n| a | ms |\n| --- | --- |\n| b | 7 |\n```\n')).toEqual([]);
});

test('the documentation has measured numbers', () => {
  const found = pages().flatMap((page) => measuredOf(readPage(page)));
  expect(found.length).toBeGreaterThan(60);
});
