// scripts/format-comments.mjs wraps comments that are too wide and changes nothing else.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const root = packageRoot();
const words = 'a sentence of twenty-four, '.repeat(5).trim();
const wide = `const x = ${'1 + '.repeat(30)}1;`;

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-format-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

interface Outcome {
  text: string;
  problems: string[];
}

function run(name: string, text: string, ...options: string[]): Outcome {
  const path = join(folder, name);
  writeFileSync(path, text);
  const args = [join(root, 'scripts/format-comments.mjs'), ...options, relative(root, path)];
  const { status, stderr } = spawnSync('node', args, { encoding: 'utf8' });
  const problems = stderr.split('\n').filter((line) => line !== '');
  expect(status).toBe(problems.length > 0 ? 1 : 0);
  return { text: readFileSync(path, 'utf8'), problems };
}

test.each([
  [
    'a line comment',
    'a.ts',
    `  // ${words}\n  x;\n`,
    /^ {2}\/\/ a .{60,95}\n {2}\/\/ .*\n {2}x;\n$/,
  ],
  [
    'a doc comment',
    'a.ts',
    `/** ${words} */\nx;\n`,
    /^\/\*\*\n \* a .{60,95}\n \* .*\n \*\/\nx;\n$/,
  ],
  ['a comment of C++', 'a.h', `/// ${words}\nint x;\n`, /^\/\/\/ a .{60,95}\n\/\/\/ .*\nint x;\n$/],
  [
    'a comment of a shell',
    'a.sh',
    `#!/bin/sh\n# ${words}\n`,
    /^#!\/bin\/sh\n# a .{60,95}\n# .*\n$/,
  ],
])('%s is wrapped, once and for all', (_name, file, text, expected) => {
  expect(run(file, text).problems).toEqual([expect.stringMatching(/more than 100 columns/)]);
  const once = run(file, text, '--write');
  expect(once.problems).toEqual([]);
  expect(once.text).toMatch(expected);
  expect(run(file, once.text, '--write').text).toBe(once.text);
});

test('keeps paragraphs, and lines that fit', () => {
  const text = `/**\n * Short\n * lines.\n *\n * ${words}\n * its end\n *\n *   table   row\n */\n`;
  const { text: next } = run('a.ts', text, '--write');
  expect(next).toMatch(/^\/\*\*\n \* Short\n \* lines\.\n \*\n \* a .*\n \* .* its end\n \*\n/);
  expect(next).toContain(' *   table   row\n');
});

test.each([
  ['code', `${wide}\n`, 1],
  ['a comment behind code', `x; // ${words}\n`, 1],
  ['a table', `// ${'column   '.repeat(12)}end\n`, 1],
  ['one long text', `const x = '${words}';\n`, 0],
  ['a line of a template', `const x = \`\n${words}\n\`;\n`, 0],
])('%s that is too wide', (_name, text, count) => {
  const outcome = run('a.ts', text, '--write');
  expect(outcome.problems).toHaveLength(count);
  expect(outcome.text).toBe(text);
});
