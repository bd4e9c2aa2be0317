// Finds test files by the ending of their names, in the sources or compiled under build/js.
import { existsSync, readdirSync } from 'node:fs';
import { extname, join, relative } from 'node:path';

const tests = join(__dirname, '..');
/** The folder of the sources of compiled files; a bundle has only golden files there. */
const sources = join(tests, '..', '..', '..', 'test');
const isCompiled = extname(__filename) === '.js';
const hasSources = existsSync(join(sources, 'gpu.ts'));

/** Whether the source of a compiled file is gone. */
const isStale = (path: string): boolean =>
  isCompiled && hasSources && !existsSync(join(sources, `${relative(tests, path)}.ts`));

/**
 * Paths of files in and below `folder` with names that end in `ending`, without extension, in
 * alphabetical order.
 */
export function testFiles(folder: string, ending = ''): string[] {
  const fullText = `${ending}${extname(__filename)}`;
  return (readdirSync(folder, { recursive: true }) as string[])
    .filter((name) => name.endsWith(fullText) && !name.endsWith('.d.ts'))
    .map((name) => join(folder, name.slice(0, -extname(__filename).length)))
    .filter((path) => !isStale(path))
    .sort();
}

/** The exports of a file from testFiles(). */
export function exportsOf<Exports>(path: string): Exports {
  return require(`${path}${extname(__filename)}`) as Exports;
}
