// Lets a plain Node process run the TypeScript sources: node -r test/support/run-typescript.cjs
// file.ts
const { createHash } = require('node:crypto');
const { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } = require('node:fs');
const Module = require('node:module');
const { join } = require('node:path');
const { isMainThread } = require('node:worker_threads');

/**
 * Compiled sources by what they were compiled from: a process otherwise spends half its start here.
 */
const KEPT = join(__dirname, '../../build/typescript');
const OPTIONS = {
  swcrc: false,
  jsc: { parser: { syntax: 'typescript' }, target: 'es2022' },
  module: { type: 'commonjs', ignoreDynamic: true },
};
const compiler = require('@swc/core/package.json').version;

/** The program of the process that compiles for a worker. */
const COMPILE = 'require(process.argv[1]).compileFile(process.argv[2])';

/**
 * A dynamic import of a source of ours; what a program names, such as a URL, is Node's to import.
 */
const OWN_IMPORT = /\bimport\(\s*(['"]\.[^'"]*['"])\s*\)/g;

const resolve = Module._resolveFilename;
Module._resolveFilename = (request, parent, ...rest) => {
  if (request.startsWith('.') && request.endsWith('.js') && parent?.filename?.endsWith('.ts')) {
    const source = `${request.slice(0, -3)}.ts`;
    if (existsSync(new URL(source, `file://${parent.filename}`))) {
      return resolve(source, parent, ...rest);
    }
  }
  return resolve(request, parent, ...rest);
};

function compiled(source, filename) {
  const { transformSync } = require('@swc/core');
  const { code } = transformSync(source, { filename, ...OPTIONS });
  return code.replace(OWN_IMPORT, 'Promise.resolve().then(() => require($1))');
}

/** Of what another process has compiled, or for the next ones. */
function compiledOnce(source, filename) {
  const key = JSON.stringify([compiler, OPTIONS, OWN_IMPORT.source, source]);
  const path = join(KEPT, `${createHash('sha1').update(key).digest('hex')}.js`);
  if (existsSync(path)) return readFileSync(path, 'utf8');
  if (!isMainThread) {
    // The compiler's addon crashes or hangs when its worker is terminated while it loads.
    const { execFileSync } = require('node:child_process');
    execFileSync(process.execPath, ['-e', COMPILE, __filename, filename]);
    return readFileSync(path, 'utf8');
  }
  const code = compiled(source, filename);
  mkdirSync(KEPT, { recursive: true });
  const own = `${path}.${process.pid}`;
  writeFileSync(own, code);
  renameSync(own, path);
  return code;
}

const compileFile = (filename) => compiledOnce(readFileSync(filename, 'utf8'), filename);

require.extensions['.ts'] = (module, filename) => {
  module._compile(compileFile(filename), filename);
};

module.exports = { compileFile };
