#!/usr/bin/env node
// Completes what the compiler leaves in dist/: makes the command executable, and writes index.mjs,
// through which `import` reaches the CommonJS build. It lists the names itself: Node would read
// every module behind `export *` once more to find them, which took as long as running them.
import { chmodSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const dist = join(dirname(fileURLToPath(import.meta.url)), '../dist');

/** What a module of the build exports, by what the compiler writes for it. */
function namesOf(file) {
  const text = readFileSync(file, 'utf8');
  const own = [
    ...text.matchAll(/\bexports\.(\w+) =/g),
    ...text.matchAll(/Object\.defineProperty\(exports, "(\w+)"/g),
  ].map(([, name]) => name);
  const others = [...text.matchAll(/__exportStar\(require\("(\.[^"]+)"\), exports\)/g)];
  const starred = others.flatMap(([, path]) => namesOf(join(dirname(file), path)));
  return [...own, ...starred].filter((name) => name !== '__esModule' && name !== 'default');
}

const names = [...new Set(namesOf(join(dist, 'index.js')))].sort();
// Some names, such as `var`, may be exported and not declared.
const door = `// The ESM door to the CommonJS build: both worlds share one class identity.
import { createRequire } from 'node:module';

const {
${names.map((name) => `  ${name}: $${name},`).join('\n')}
} = createRequire(import.meta.url)('./index.js');
export {
${names.map((name) => `  $${name} as ${name},`).join('\n')}
};
`;
writeFileSync(join(dist, 'index.mjs'), door);

// npm does so once, where it first links the command: a later build would not be executable.
chmodSync(join(dist, 'launch/cli.js'), 0o755);
