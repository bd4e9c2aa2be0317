// Finds files of tests by the ending of their names, as this file is run: from the sources, or
// compiled under build/js.
import { existsSync, readdirSync } from 'node:fs';
import { extname, join, relative } from 'node:path';

const tests = join(__dirname, '..');
/**
 * Where the sources lie beside what was compiled from them; a bundle has golden files there, and no
 * sources.
 */
const sources = join(tests, '..', '..', '..', 'test');
const isCompiled = extname(__filename) === '.js';
const hasSources = existsSync(join(sources, 'gpu.ts'));

/** What was compiled from a file that is gone. */
const isStale = (path: string): boolean =>
  isCompiled && hasSources && !existsSync(join(sources, `${relative(tests, path)}.ts`));

/**
 * Paths of the files in and below `folder` whose names end in `ending`, without their extension, in
 * alphabetical order.
 */
export function testFiles(folder: string, ending = ''): string[] {
  const whole = `${ending}${extname(__filename)}`;
  return (readdirSync(folder, { recursive: true }) as string[])
    .filter((name) => name.endsWith(whole) && !name.endsWith('.d.ts'))
    .map((name) => join(folder, name.slice(0, -extname(__filename).length)))
    .filter((path) => !isStale(path))
    .sort();
}

/** What the file exports that testFiles() gives as `path`. */
export function exportsOf<Exports>(path: string): Exports {
  return require(`${path}${extname(__filename)}`) as Exports;
}
