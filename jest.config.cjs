// Jest runs test/**/*.test.ts through swc; imports of './x.js' find the TypeScript source.
const compiled = (syntax) => [
  require.resolve('./test/support/late-imports.cjs'),
  {
    jsc: { parser: { syntax }, target: 'es2022' },
    module: { type: 'commonjs' },
    sourceMaps: true, // a file of its own: what is compiled for each test file is a third as long
  },
];

// Node imports ES modules from CommonJS; jest's own require does not, so it gets them compiled.
const esModules = 'hyparquet';

// Tests run in a sandbox, where each look-up of a global is a call. What computes, and the
// references that it is held to, get these as variables: two to three times as fast.
const computing = [
  ...['Math', 'Number', 'BigInt', 'Infinity', 'Object', 'Array', 'Map', 'Set', 'WeakMap'],
  ...['ArrayBuffer', 'DataView', 'Uint8Array', 'Int8Array', 'Uint16Array', 'Int16Array'],
  ...['Uint32Array', 'Int32Array', 'BigInt64Array', 'Float32Array', 'Float64Array'],
];

// No test reaches the network. Tests of the hub name a server of their own.
process.env.HF_HUB_OFFLINE ??= '1';

module.exports = {
  rootDir: __dirname,
  roots: ['<rootDir>/test', '<rootDir>/lib'],
  testMatch: ['<rootDir>/test/**/*.test.ts'],
  // As many as there are cores, where jest would leave one to itself: tests wait for processes of
  // their own more than they compute.
  maxWorkers: '100%',
  // A process whose heap has grown is replaced between two files: tests that count what is alive
  // collect all of it.
  workerIdleMemoryLimit: '900MB',
  testSequencer: '<rootDir>/test/support/longest-first.cjs',
  testEnvironment: '<rootDir>/test/support/jest-environment.cjs',
  sandboxInjectedGlobals: computing,
  setupFiles: ['<rootDir>/test/support/threads.ts'],
  // Several times what the slowest needs on busy cores: other work on the machine is no failure. A
  // rank that hangs is named sooner.
  testTimeout: 600_000,
  transform: {
    '^.+\\.ts$': compiled('typescript'),
    [`/node_modules/${esModules}/.+\\.js$`]: compiled('ecmascript'),
  },
  transformIgnorePatterns: [`/node_modules/(?!${esModules}/)`],
  // Most are found at the first look.
  moduleFileExtensions: ['ts', 'js', 'cjs', 'mjs', 'mts', 'json', 'node'],
  resolver: '<rootDir>/test/support/kept-resolver.cjs',
  moduleNameMapper: {
    '^@ds/native$': '<rootDir>/lib/index.ts',
    '^(\\.{1,2}/.*)\\.js$': '$1',
  },
};
