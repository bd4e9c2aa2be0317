// A node environment that shares the outer realm's constructors, since native objects belong to it.
const { TestEnvironment } = require('jest-environment-node');

const NATIVE = [
  'Error',
  'TypeError',
  'RangeError',
  'Promise',
  'ArrayBuffer',
  'DataView',
  'Uint8Array',
  'Int8Array',
  'Uint16Array',
  'Int16Array',
  'Uint32Array',
  'Int32Array',
  'BigInt64Array',
  'BigUint64Array',
  'Float32Array',
  'Float64Array',
];

/**
 * Keeps finalizers running. V8 posts one task for all registries with something to finalize, and no
 * further task before that one has found a registry. If the only registry has been collected
 * itself, no finalizer ever runs again in the process (V8 11.3 of Node 20). This happens with
 * registries of finished test files. This registry lives as long as the process and has an object
 * for every collection, so that the task always finds one.
 */
const everlasting = new FinalizationRegistry(() => everlasting.register({}, null));
everlasting.register({}, null);

/** Makes `instanceof` true in tests for errors, promises and arrays that the addon creates. */
module.exports = class NativeRealmEnvironment extends TestEnvironment {
  static everlasting = everlasting;
  ends = [];

  constructor(...args) {
    super(...args);
    for (const name of NATIVE) this.global[name] = globalThis[name];
    // For modules with global state, which have no test hooks: callable at any time in the file.
    this.global.atEndOfFile = (body) => this.ends.push(body);
  }

  /** Prints the seed of a failing test with random numbers. */
  async handleTestEvent({ name, test }) {
    if (name !== 'test_done' || test.errors.length === 0) return;
    const seed = this.global.seedOfTests;
    if (seed !== undefined) process.stderr.write(`DS_TEST_SEED=${seed} repeats: ${test.name}\n`);
  }

  async teardown() {
    for (const end of this.ends) end();
    await super.teardown();
  }
};
