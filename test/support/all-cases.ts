// Collects the cases of all *.cases.ts files for the GPU runner.
import { join, relative } from 'node:path';
import type { Case } from './case.js';
import { exportsOf, testFiles } from './test-files.js';

const tests = join(__dirname, '..');

/** Paths below test/, without ".cases.ts", in alphabetical order. */
export function caseFiles(): string[] {
  return testFiles(tests, '.cases').map((path) => relative(tests, path).replace(/\.cases$/, ''));
}

/** Throws if a file exports no `cases`. */
export function allCases(): Case[] {
  return caseFiles().flatMap((path) => {
    const { cases } = exportsOf<{ cases?: Case[] }>(join(tests, `${path}.cases`));
    if (!Array.isArray(cases)) throw new Error(`test/${path}.cases.ts: expected an export "cases"`);
    return cases;
  });
}
