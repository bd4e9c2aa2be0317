// Lets a plain Node process run the TypeScript sources: node -r test/support/run-typescript.cjs
// file.ts
const { createHash } = require('node:crypto');
const {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  writeFileSync,
} = require('node:fs');
const Module = require('node:module');
const { dirname, join } = require('node:path');
const { Script } = require('node:vm');
const { isMainThread, threadId } = require('node:worker_threads');
const { lateImports, loadNamespaces, VERSION } = require('./late-imports.cjs');

/** Cache of compiled sources, by source text: without it a process spends half its start here. */
const KEPT = join(__dirname, '../../build/typescript');
const LIBRARY = join(__dirname, '../../lib');
const OPTIONS = {
  swcrc: false,
  jsc: { parser: { syntax: 'typescript' }, target: 'es2022' },
  module: { type: 'commonjs', ignoreDynamic: true },
};
const compiler = require('@swc/core/package.json').version;

/** The program of the process that compiles for a worker. */
const COMPILE = 'require(process.argv[1]).compileWithLibrary(process.argv[2])';

/** A dynamic import of a source of this project; other specifiers, such as URLs, go to Node. */
const OWN_IMPORT = /\bimport\(\s*(['"]\.[^'"]*['"])\s*\)/g;

const COMPILED_BY = JSON.stringify([compiler, OPTIONS, OWN_IMPORT.source, VERSION]);

const resolve = Module._resolveFilename;
Module._resolveFilename = (request, parent, ...rest) => {
  if (request.startsWith('.') && request.endsWith('.js') && parent?.filename?.endsWith('.ts')) {
    const source = join(dirname(parent.filename), `${request.slice(0, -3)}.ts`);
    if (existsSync(source)) return source;
  }
  return resolve(request, parent, ...rest);
};

function compiled(source, filename) {
  const { transformSync } = require('@swc/core');
  const lazy = lateImports(source, filename);
  const options = { ...OPTIONS, module: { ...OPTIONS.module, lazy } };
  const code = loadNamespaces(transformSync(source, { filename, ...options }).code);
  return code.replace(OWN_IMPORT, 'Promise.resolve().then(() => require($1))');
}

/** The cache path for `source`. */
function placeOf(source) {
  const hash = createHash('sha1').update(COMPILED_BY).update(source);
  return join(KEPT, `${hash.digest('hex')}.js`);
}

/** Other processes may read or write the same file: it exists whole, or not at all. */
function keep(path, content) {
  mkdirSync(KEPT, { recursive: true });
  const own = `${path}.${process.pid}.${threadId}`;
  writeFileSync(own, content);
  renameSync(own, path);
}

/** Reads the cache, or compiles and fills it. */
function compiledOnce(source, filename, path) {
  if (existsSync(path)) return readFileSync(path, 'utf8');
  if (!isMainThread) {
    // The compiler's addon crashes or hangs when its worker is terminated while it loads.
    const { execFileSync } = require('node:child_process');
    execFileSync(process.execPath, ['-e', COMPILE, __filename, filename]);
    return readFileSync(path, 'utf8');
  }
  const code = compiled(source, filename);
  keep(path, code);
  return code;
}

function compileFile(filename) {
  const source = readFileSync(filename, 'utf8');
  return compiledOnce(source, filename, placeOf(source));
}

/**
 * Compiles a file and the whole library, which takes a second. A worker needs hundreds of these
 * files next, and a process for each one takes a minute in all.
 */
function compileWithLibrary(filename) {
  compileFile(filename);
  for (const name of readdirSync(LIBRARY, { recursive: true })) {
    if (name.endsWith('.ts')) compileFile(join(LIBRARY, name));
  }
}

/** Runs a module from V8's code cache, because compiling is half of the start time. */
function run(module, filename, code, kept) {
  const cachedData = existsSync(kept) ? readFileSync(kept) : undefined;
  const script = new Script(Module.wrap(code), { filename, cachedData });
  const require = (request) => module.require(request);
  require.resolve = (request) => Module._resolveFilename(request, module);
  require.cache = Module._cache;
  require.main = process.mainModule;
  const body = script.runInThisContext();
  body.call(module.exports, module.exports, require, module, filename, dirname(filename));
  if (cachedData) return;
  try {
    keep(kept, script.createCachedData());
  } catch {
    // Where nothing can be written the next process makes it again.
  }
}

require.extensions['.ts'] = (module, filename) => {
  const source = readFileSync(filename, 'utf8');
  const path = placeOf(source);
  const code = compiledOnce(source, filename, path);
  // vm.Script supports neither import() nor a shebang here.
  if (/^#!|\bimport\(/.test(code)) module._compile(code, filename);
  else run(module, filename, code, `${path}.${process.version}`);
};

module.exports = { compileFile, compileWithLibrary };
