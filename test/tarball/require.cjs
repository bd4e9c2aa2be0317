// Consumer of the installed package: CommonJS, the editors' schema, and that both module systems
// share one set of classes.
const assert = require('node:assert/strict');
const required = require('@ds/native');

async function main() {
  const imported = await import('@ds/native');
  const missing = Object.keys(required).filter((name) => !(name in imported));
  assert.deepEqual(missing, [], 'names that import lacks');
  assert.equal(imported.DsError, required.DsError);
  assert.equal(imported.Tensor, required.Tensor);
  const schema = require('@ds/native/ds_config.schema.json');
  assert.equal(schema.properties.train_batch_size.anyOf[1].const, 'auto');
  assert.throws(() => required.device('cpu:1'), imported.DsError);
}

main();
