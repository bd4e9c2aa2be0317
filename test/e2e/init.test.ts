// Runs a project of `ds init` as its user would: npm start, with the package in a parent folder.
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const root = packageRoot();
let parent: string;
beforeAll(() => {
  parent = mkdtempSync(join(tmpdir(), 'ds-project-'));
  mkdirSync(join(parent, 'node_modules/@ds'), { recursive: true });
  mkdirSync(join(parent, 'node_modules/.bin'));
  symlinkSync(root, join(parent, 'node_modules/@ds/native'));
  symlinkSync('../@ds/native/dist/launch/cli.js', join(parent, 'node_modules/.bin/ds'));
});
afterAll(() => rmSync(parent, { recursive: true, force: true }));

function run(folder: string, command: string, words: string[], input = ''): string {
  const cwd = join(parent, folder);
  const done = spawnSync(command, words, { cwd, input, encoding: 'utf8', timeout: 500_000 });
  expect([done.status, done.status === 0 ? '' : done.stderr]).toEqual([0, '']);
  expect(done.stderr).not.toContain('DsNotice');
  return done.stdout;
}

test('a chat project trains, answers, and answers again without training', () => {
  const output = run('.', 'node_modules/.bin/ds', ['init', 'hello']);
  expect(output).toContain('  cd hello\n  npm start');
  const answers = run('hello', 'npm', ['start'], 'what is ZeRO?\n');
  expect(answers).toContain('> What is a token?\nA token is a piece of text with a number.\n');
  expect(answers).toContain('ZeRO divides weights, gradients and optimizer state among GPUs.\n');
  expect(run('hello', 'npm', ['run', 'chat'], 'Goodbye.\n')).toContain('Type /quit to leave.');
  const { vocab_size, hidden_size } = JSON.parse(
    readFileSync(join(parent, 'hello/model/config.json'), 'utf8'),
  );
  expect([vocab_size, hidden_size]).toEqual([1007, 64]);
});

test('the project "own-model" learns, and sorts notes from the command line', () => {
  run('.', 'node_modules/.bin/ds', ['init', 'sorter', '--template', 'own-model']);
  const sorted = run('sorter', 'npm', ['start', '--', 'rake the lawn', 'salt the soup']);
  expect(sorted).toContain('rake the lawn -> garden\nsalt the soup -> kitchen\n');
});
