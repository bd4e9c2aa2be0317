#!/usr/bin/env node
// Completes what the compiler leaves in dist/: lets an import read only the files that every
// program needs, writes index.mjs, through which `import` reaches the CommonJS build, and makes the
// command executable. Usage: complete-dist.mjs [FOLDER]
import { chmodSync, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { filesBehind, importsLate, namesOf, reExportsLate } from './late-imports.mjs';

const dist = process.argv[2] ?? join(dirname(fileURLToPath(import.meta.url)), '../dist');
const door = join(dist, 'index.js');

/** Rooms of which every program needs about everything, and whose functions run for every op. */
const AT_ONCE = /^(tensor|runtime)\//;

/**
 * The other rooms are read when a name of theirs is first used. `import` needs the value of every
 * name of the door, so that it reads the files which have them: these read what they import later.
 */
function readLate() {
  const files = readdirSync(dist, { recursive: true }).filter((name) => name.endsWith('.js'));
  const later = files.filter((name) => !AT_ONCE.test(name)).map((name) => join(dist, name));
  const behind = filesBehind(door);
  const texts = later.map((file) => {
    const text = reExportsLate(file, readFileSync(file, 'utf8'));
    return [file, behind.has(file) ? importsLate(text) : text];
  });
  for (const [file, text] of texts) writeFileSync(file, text);
}

/**
 * It lists the names itself: Node would read every module behind `export *` once more to find them,
 * which took as long as running them.
 */
function writeDoor() {
  const names = namesOf(door).sort();
  // Some names, such as `var`, may be exported and not declared.
  const text = `// The ESM door to the CommonJS build: both worlds share one class identity.
import { createRequire } from 'node:module';

const {
${names.map((name) => `  ${name}: $${name},`).join('\n')}
} = createRequire(import.meta.url)('./index.js');
export {
${names.map((name) => `  $${name} as ${name},`).join('\n')}
};
`;
  writeFileSync(join(dist, 'index.mjs'), text);
}

writeDoor();
readLate();
// npm does so once, where it first links the command: a later build would not be executable.
const command = join(dist, 'launch/cli.js');
if (existsSync(command)) chmodSync(command, 0o755);
