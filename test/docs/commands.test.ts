// Every script, example and benchmark that a page names is run by scripts/test-commands, by
// scripts/test-tarball, or by scripts/test itself.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { pages, readPage } from './snippets.js';

const read = (file: string): string => readFileSync(join(packageRoot(), file), 'utf8');

/** Commands as pages write them, without their arguments. */
const NAMES = [
  /\b(?:scripts|examples)\/[\w-]+(?:\.[cm]?[jt]s|\.py)?\b(?!\/|\.\w)/g,
  /\bnpm run [\w:-]+(?: -- \w[\w-]*)?/g,
  /\bnpx ds [\w-]+/g,
];

function commandsOf(page: string): string[] {
  const text = readPage(page);
  return NAMES.flatMap((name) => text.match(name) ?? []).filter((name) => !name.endsWith('/index'));
}

/** As scripts/test-commands writes it. */
function runBy(command: string, lists: string): boolean {
  const words = command.replace(/^npm run bench -- /, 'bench ').replace(/^npm run /, '--silent ');
  return new RegExp(`(^|\\s|/)${words.replace(/[.*+?^$()|[\]\\]/g, '\\$&')}(\\s|$)`, 'm').test(
    lists,
  );
}

const lists = [
  ...['test-commands', 'test-tarball', 'test', 'check'].map((name) => read(`scripts/${name}`)),
  read('test/tarball/examples.sh'),
  read('.github/workflows/ci.yml'),
].join('');
const named = new Set(pages().flatMap(commandsOf));
named.delete('scripts/test'); // The list itself is run by it.

test('the pages name commands', () => {
  expect([...named]).toContain('scripts/quickstart');
  expect([...named]).toContain('npm run bench -- loader');
  expect(named.size).toBeGreaterThan(10);
});

test.each([...named])('%s is run by a script of CI', (command) => {
  const file = /^(scripts|examples)\//.test(command);
  if (file) expect(existsSync(join(packageRoot(), command))).toBe(true);
  expect(runBy(command, lists)).toBe(true);
});

test('finds a command that no script runs', () => {
  expect(runBy('npm run bench -- nothing', lists)).toBe(false);
  expect(runBy('scripts/quick', lists)).toBe(false);
});
