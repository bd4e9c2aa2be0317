// Consumer of the installed package: CommonJS, and that both module systems share one set of classes.
const assert = require('node:assert/strict');
const required = require('@ds/native');

async function main() {
  const imported = await import('@ds/native');
  const missing = Object.keys(required).filter((name) => !(name in imported));
  assert.deepEqual(missing, [], 'names that import lacks');
  assert.equal(imported.DsError, required.DsError);
  assert.equal(imported.Tensor, required.Tensor);
  assert.throws(() => required.device('cpu:1'), imported.DsError);
}

main();
