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
 * other before that one has found a registry: where the only one has been collected itself in the
 * meantime, as those of a test file that has ended are, no finalizer ever runs again in the process
 * (V8 11.3 of Node 20). This one lives as long as the process and has an object that every
 * collection finds, so that the task never comes for nothing.
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
    // For what modules keep, which know of no hooks: it may be asked for at any time of the file.
    this.global.atEndOfFile = (body) => this.ends.push(body);
  }

  /** A failing test of random numbers is repeated with its seed. */
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
