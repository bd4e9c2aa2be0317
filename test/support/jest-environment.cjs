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

/** Makes `instanceof` true in tests for errors, promises and arrays that the addon creates. */
module.exports = class NativeRealmEnvironment extends TestEnvironment {
  constructor(...args) {
    super(...args);
    for (const name of NATIVE) this.global[name] = globalThis[name];
  }
};
