// scripts/check-rooms.mjs finds a violation of each rule, in a temporary tree.
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

const script = join(__dirname, '../../scripts/check-rooms.mjs');

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'ds-rooms-'));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

/** The problems in a tree of these files; each opens with a sentence. */
function problemsIn(files: Record<string, string>): string[] {
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), `// A file of a test.\n${text}\n`);
  }
  const { status, stdout, stderr } = spawnSync('node', [script, root], { encoding: 'utf8' });
  const problems = stderr.split('\n').filter((line) => line !== '');
  expect(stdout).toContain(`${problems.length} problems`);
  expect(status).toBe(problems.length > 0 ? 1 : 0);
  return problems;
}

test('a tree without a fault', () => {
  const files = {
    'lib/nn/a.ts': "import { b } from '../tensor/b.js';\nexport const a = b;",
    'lib/tensor/b.ts': "import type { C } from './c.js';\nexport const b: C = 1;",
    'lib/tensor/c.ts': 'export type C = number;',
  };
  expect(problemsIn(files)).toEqual([]);
});

test.each<[string, Record<string, string>, RegExp]>([
  [
    'a circle of two files',
    {
      'lib/nn/a.ts': "import { b } from './b.js';\nexport const a = b;",
      'lib/nn/b.ts': "import { a } from './a.js';\nexport const b = a;",
    },
    /lib\/nn\/a\.ts -> lib\/nn\/b\.ts -> lib\/nn\/a\.ts/,
  ],
  [
    'a circle of types alone, over three files',
    {
      'lib/nn/a.ts': "import type { B } from './b.js';\nexport type A = B;",
      'lib/nn/b.ts': "export type { C as B } from './c.js';",
      'lib/nn/c.ts': "export type C = import('./a.js').A;",
    },
    /circle: .*a\.ts -> .*b\.ts -> .*c\.ts -> .*a\.ts/,
  ],
  [
    'an import against the order',
    {
      'lib/nn/a.ts': "import { b } from '../zero/b.js';",
      'lib/zero/b.ts': 'export const b = 1;',
    },
    /nn imports zero, against the order/,
  ],
  [
    'an include against the order',
    { 'csrc/core/a.h': '#include "../cpu/b.h"', 'csrc/cpu/b.h': '' },
    /csrc\/core includes csrc\/cpu\/b\.h/,
  ],
  ['a word that mechanism must not know', { 'csrc/core/a.h': 'int zero_stage;' }, /zero_stage/],
  ['a second home of tests', { 'test/unit/nn/a.test.ts': '' }, /test\/unit is no home/],
  ['a name without a subject', { 'lib/nn/utils.ts': '' }, /no subject/],
  ['a file without end', { 'lib/nn/a.ts': 'x;\n'.repeat(500) }, /at most 500/],
])('%s', (_name, files, message) => {
  const problems = problemsIn(files);
  expect(problems).toEqual([expect.stringMatching(message)]);
});

test('finds a file without an opening comment', () => {
  const path = join(root, 'lib/nn/a.ts');
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, 'export const a = 1;\n');
  expect(problemsIn({})).toEqual([expect.stringMatching(/a\.ts:1: open with one sentence/)]);
});
