// Tests that random numbers of tests come from one generator, and that its seed repeats them.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { commandFor } from '../comm/rank-child.js';
import { seededRandom } from './random.js';
import { testFiles } from './test-files.js';

const tests = join(__dirname, '..');

test('a seed repeats its numbers, seeds differ, and all numbers are in [0, 1)', () => {
  const numbers = (seed: number) => {
    const next = seededRandom(seed);
    return Array.from({ length: 1000 }, next);
  };
  expect(numbers(5)).toEqual(numbers(5));
  expect(numbers(6)).not.toEqual(numbers(5));
  expect(numbers(5).every((x) => x >= 0 && x < 1)).toBe(true);
  const mean = numbers(5).reduce((a, b) => a + b) / 1000;
  expect(Math.abs(mean - 0.5)).toBeLessThan(0.05);
});

test('a process outside jest prints its seed, and DS_TEST_SEED repeats its numbers', () => {
  const run = (seed?: string) =>
    execFileSync(process.execPath, commandFor('../support/random-process'), {
      encoding: 'utf8',
      env: { ...process.env, ...(seed === undefined ? {} : { DS_TEST_SEED: seed }) },
    });
  const first = run();
  const [, seed = ''] = /^DS_TEST_SEED=(\d+)$/m.exec(first) ?? [];
  expect(run(seed)).toBe(first);
  expect(() => run('x')).toThrow(/DS_TEST_SEED: expected a whole number/);
});

/** A random free port is no input of a test. */
const FREE = ['comm/ranks'];

test('no other file of tests draws numbers without a seed', () => {
  const drawing = testFiles(tests)
    .filter((path) => /Math\.random\b/.test(readFileSync(`${path}.ts`, 'utf8')))
    .map((path) => relative(tests, path));
  expect(drawing).toEqual(FREE);
});
