// Lets a plain Node process run the TypeScript sources: node -r test/support/run-typescript.cjs
// file.ts
const { existsSync, readFileSync } = require('node:fs');
const Module = require('node:module');
const { transformSync } = require('@swc/core');

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

require.extensions['.ts'] = (module, filename) => {
  const { code } = transformSync(readFileSync(filename, 'utf8'), {
    filename,
    swcrc: false,
    jsc: { parser: { syntax: 'typescript' }, target: 'es2022' },
    module: { type: 'commonjs', ignoreDynamic: true },
  });
  module._compile(code.replace(OWN_IMPORT, 'Promise.resolve().then(() => require($1))'), filename);
};
