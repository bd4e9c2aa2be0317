// Every device-independent case, for the GPU runner: those of all files called *.cases.ts, so that
// none is forgotten.
import { existsSync, readdirSync } from 'node:fs';
import { extname, join } from 'node:path';
import type { Case } from './case.js';

/** test/, as this file is run: from the sources, or compiled under build/js. */
const tests = join(__dirname, '..');
/**
 * Where the sources lie beside what was compiled from them; a bundle has golden files there, and no
 * sources.
 */
const sources = join(tests, '..', '..', '..', 'test');
const hasSources = existsSync(join(sources, 'gpu.ts'));

/**
 * Paths below test/, without the extension, in alphabetical order. What was compiled from a file
 * that is gone is none.
 */
export function caseFiles(): string[] {
  const ending = `.cases${extname(__filename)}`;
  const isStale = (path: string): boolean =>
    ending.endsWith('.js') && hasSources && !existsSync(join(sources, `${path}.cases.ts`));
  return (readdirSync(tests, { recursive: true }) as string[])
    .filter((name) => name.endsWith(ending))
    .map((name) => name.slice(0, -ending.length))
    .filter((path) => !isStale(path))
    .sort();
}

/** Throws where a file exports no `cases`. */
export function allCases(): Case[] {
  return caseFiles().flatMap((path) => {
    const { cases } = require(join(tests, `${path}.cases${extname(__filename)}`));
    if (!Array.isArray(cases)) throw new Error(`test/${path}.cases.ts: expected an export "cases"`);
    return cases as Case[];
  });
}
