// Compiles files of the library so that each one loads its imports on first use, as in the package
// (scripts/complete-dist.mjs). An import of lib/index.ts then reads 100 files, not 1,100. Most test
// files, and the processes that tests start, need no more.
const { readFileSync } = require('node:fs');
const { join, relative, sep } = require('node:path');

const LIBRARY = join(__dirname, '../../lib');

/** Rooms that load at once: every program needs them, and every op calls their functions. */
const AT_ONCE = /^(\.\.|tensor\/|runtime\/)/;

const SOURCE = /\bfrom\s+(['"])(\.{1,2}\/[^'"]+)\1/g;

/** The imports of a file that load late, for the compiler's option `module.lazy`. */
function lateImports(source, filename) {
  if (AT_ONCE.test(relative(LIBRARY, filename).split(sep).join('/'))) return [];
  return [...new Set(Array.from(source.matchAll(SOURCE), ([, , name]) => name))];
}

/** The compiler exports the loader of a late `export * as name`: exports its module instead. */
const loadNamespaces = (code) =>
  code.replace(/^(\s+return )(_\w+);$/gm, (line, start, name) =>
    code.includes(`\nfunction ${name}() {\n    const data = `) ? `${start}${name}();` : line,
  );

/** Changes the keys of compiled files when this file changes. */
const VERSION = readFileSync(__filename, 'utf8');

/** Makes jest's transformer: @swc/jest, with late imports in the library. */
function createTransformer(options) {
  const swc = require('@swc/jest');
  const plain = swc.createTransformer(options);
  return {
    canInstrument: plain.canInstrument,
    getCacheKey: (source, ...rest) => plain.getCacheKey(VERSION + source, ...rest),
    process(source, filename, more) {
      const lazy = lateImports(source, filename);
      if (lazy.length === 0) return plain.process(source, filename, more);
      const late = swc.createTransformer({ ...options, module: { ...options.module, lazy } });
      const { code, ...rest } = late.process(source, filename, more);
      return { ...rest, code: loadNamespaces(code) };
    },
  };
}

module.exports = { createTransformer, lateImports, loadNamespaces, VERSION };
