// Writes a program of a page to a file that runs on the sources of the library.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const support = (name: string): string => join(packageRoot(), 'test', 'support', name);

/** Returns the file in `dir`. The program may await at its top; its import is one line of names. */
export function writeProgram(dir: string, code: string): string {
  const library = JSON.stringify(join(packageRoot(), 'lib', 'index.ts'));
  const body = code.replace(
    /import (\{.*\}) from '@ds\/native';/,
    `const $1 = require(${library});`,
  );
  const hooks = [support('run-typescript.cjs'), support('threads.ts')];
  const all = hooks.map((hook) => `require(${JSON.stringify(hook)});`).join('');
  const file = join(dir, 'program.cjs');
  writeFileSync(file, `${all}(async () => {${body}})();`);
  return file;
}
