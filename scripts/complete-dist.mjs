#!/usr/bin/env node
// Completes the compiler's output in dist/. Usage: complete-dist.mjs [FOLDER]
//
// - An import of the package reads only the files that every program needs.
// - index.mjs exports the CommonJS build to `import`.
// - The command `ds` is executable.
// - The files of the watch page and of the chat page are copied.
import { chmodSync, cpSync, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { filesBehind, importsLate, namesOf, reExportsLate } from './late-imports.mjs';

const dist = process.argv[2] ?? join(dirname(fileURLToPath(import.meta.url)), '../dist');
const door = join(dist, 'index.js');

/** Rooms that load at once: every program needs most of their files, and every op calls them. */
const AT_ONCE = /^(tensor|runtime)\/(?!timed-algorithms\.)/;

/**
 * The exported options of the trainer hold functions of further files, so these files load at an
 * import too. The device loads the file of timed products, whose writes only GPUs need.
 */
const LATE_TOO = /^(trainer\/|runtime\/timed-algorithms\.)/;

/**
 * The other rooms load when a program first uses one of their names. `import` needs the value of
 * every exported name, so it reads the files of these names; their own imports load later.
 */
function readLate() {
  const files = readdirSync(dist, { recursive: true }).filter((name) => name.endsWith('.js'));
  const later = files.filter((name) => !AT_ONCE.test(name)).map((name) => join(dist, name));
  const behind = filesBehind(door);
  const texts = later.map((file) => {
    const text = reExportsLate(file, readFileSync(file, 'utf8'));
    const isLate = behind.has(file) || LATE_TOO.test(relative(dist, file));
    return [file, isLate ? importsLate(text) : text];
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

/** Files that the compiler does not read: scripts, styles and markup of pages. */
function copyPages() {
  for (const room of ['watch', 'serve']) {
    const page = join(dirname(fileURLToPath(import.meta.url)), '../lib', room, 'page');
    if (existsSync(join(dist, room))) {
      cpSync(page, join(dist, room, 'page'), { recursive: true });
    }
  }
}

writeDoor();
readLate();
copyPages();
// npm does so once, where it first links the command: a later build would not be executable.
const command = join(dist, 'launch/cli.js');
if (existsSync(command)) chmodSync(command, 0o755);
