// scripts/mutate.mjs on a small project: several jobs, and a call that goes on after a stop.
import { execFileSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

interface Result {
  id: string;
  place: string;
  original: string;
  replacement: string;
  verdict: string;
}

const root = packageRoot();
const project = mkdtempSync(join(tmpdir(), 'ds-mutate-'));
afterAll(() => rmSync(project, { recursive: true, force: true }));

const FILES = {
  'lib/room/sum.ts': `
export const sum = (a: number, b: number): number => a + b;
export const isLong = (text: string): boolean => text.length > 9;
export const unused = (a: number): number => a * 2;
`,
  'lib/room/limits.ts': `
export const LIMITS: Record<string, number> = { most: 9 };
export const isOpen = (): boolean => true;
`,
  'lib/room/half.ts': 'export const half = (a: number): number => a / 2;\n',
  'test/room/sum.test.ts': `
import { isLong, sum } from '../../lib/room/sum.js';
test('adds', () => expect(sum(2, 3)).toBe(5));
test('a short text', () => expect(isLong('text')).toBe(false));
`,
  // The first test loads the module; the second one sees its constant.
  'test/room/limits.test.ts': `
const limits = () => require('../../lib/room/limits.js');
test('is open', () => expect(limits().isOpen()).toBe(true));
test('has a limit', () => expect(limits().LIMITS.most).toBe(9));
`,
  'test/room/half.test.ts': `
import { half } from '../../lib/room/half.js';
test('halves', () => expect(half(6)).toBe(3));
`,
  'jest.config.cjs': `
const { transform, moduleNameMapper } = require(${JSON.stringify(join(root, 'jest.config.cjs'))});
module.exports = { rootDir: __dirname, roots: ['<rootDir>/test', '<rootDir>/lib'], transform, moduleNameMapper };
`,
};

for (const [path, text] of Object.entries(FILES)) {
  mkdirSync(dirname(join(project, path)), { recursive: true });
  writeFileSync(join(project, path), text);
}
const environment = 'test/support/jest-environment.cjs';
cpSync(join(root, environment), join(project, environment));
mkdirSync(join(project, 'build'));
for (const name of ['node_modules', 'build/Release'])
  symlinkSync(join(root, name), join(project, name));

const folder = join(project, 'build/mutate/room');
const resultsOf = (lines: string[]): Result[] => lines.map((line) => JSON.parse(line));
const linesOf = (name: string): string[] =>
  readFileSync(join(project, 'build/mutate', name, 'results.jsonl'), 'utf8')
    .trim()
    .split('\n');

function mutate(...args: string[]): string {
  const script = join(root, 'scripts/mutate.mjs');
  return execFileSync(process.execPath, [script, 'lib/room', ...args], {
    cwd: project,
    encoding: 'utf8',
  });
}

/** What a mutant changes, with its result; sorted, since jobs end in any order. */
const formatResults = (results: Result[]): string[] =>
  results
    .map(
      (result) => `${result.place} ${result.original} -> ${result.replacement}: ${result.verdict}`,
    )
    .sort();

test('two jobs try each mutant once, and a later call continues', () => {
  const printed = mutate('--jobs', '2');
  expect(printed).toContain('test/room/half.test.ts');
  expect(existsSync(join(folder, 'tree-2/lib/room/sum.ts'))).toBe(true);
  const lines = linesOf('room');
  const results = resultsOf(lines);
  expect(new Set(results.map(({ id }) => id)).size).toBe(results.length);
  expect(formatResults(results)).toEqual(
    expect.arrayContaining([
      'lib/room/half.ts:1 a / 2 -> a * 2: killed',
      'lib/room/limits.ts:2 { most: 9 } -> {}: killed',
      'lib/room/sum.ts:2 a + b -> a - b: killed',
      'lib/room/sum.ts:3 text.length > 9 -> text.length >= 9: survived',
      'lib/room/sum.ts:4 a * 2 -> a / 2: unreached',
    ]),
  );
  for (const tree of ['tree', 'tree-2'])
    for (const path of ['lib/room/half.ts', 'lib/room/sum.ts'] as const)
      expect(readFileSync(join(folder, tree, path), 'utf8')).toBe(FILES[path]);

  const kept = lines.slice(0, 2);
  writeFileSync(join(folder, 'results.jsonl'), `${kept.join('\n')}\n`);
  mutate('--jobs', '3');
  expect(linesOf('room').slice(0, 2)).toEqual(kept);
  expect(formatResults(resultsOf(linesOf('room')))).toEqual(formatResults(results));
});

test('a call that runs out of time keeps its results', () => {
  const printed = mutate('--jobs', '2', '--minutes', '0', '--out', 'late');
  expect(printed).toContain('0 % seen of 0');
  expect(existsSync(join(project, 'build/mutate/late/results.jsonl'))).toBe(false);
});
