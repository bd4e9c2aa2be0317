// Jest runs test/**/*.test.ts through swc; imports of './x.js' find the TypeScript source.
module.exports = {
  rootDir: __dirname,
  roots: ['<rootDir>/test', '<rootDir>/lib'],
  testMatch: ['<rootDir>/test/**/*.test.ts'],
  // A process whose heap has grown is replaced between two files: tests that count what is alive
  // collect all of it.
  workerIdleMemoryLimit: '400MB',
  testEnvironment: '<rootDir>/test/support/jest-environment.cjs',
  setupFiles: ['<rootDir>/test/support/threads.ts'],
  // Several times what the slowest needs on busy cores: other work on the machine is no failure. A
  // rank that hangs is named sooner.
  testTimeout: 600_000,
  transform: {
    '^.+\\.ts$': [
      '@swc/jest',
      {
        jsc: { parser: { syntax: 'typescript' }, target: 'es2022' },
        module: { type: 'commonjs' },
        sourceMaps: 'inline',
      },
    ],
  },
  moduleNameMapper: {
    '^@ds/native$': '<rootDir>/lib/index.ts',
    '^(\\.{1,2}/.*)\\.js$': '$1',
  },
};
