// Consumer of the installed package, as one of two ranks: sums over Gloo, which must come from the
// package.
const assert = require('node:assert/strict');
const { readFileSync } = require('node:fs');
const { cpu, initDistributed, Tensor } = require('@ds/native');

async function main() {
  const job = await initDistributed({ device: cpu() });
  assert.equal(job.worldSize, 2);
  const x = Tensor.from([1, 2, 3 + job.rank], { device: cpu() });
  job.world.allReduce(x).wait();
  assert.deepEqual([...x.toArray()], [2, 4, 7]);
  const mapped = readFileSync('/proc/self/maps', 'utf8');
  for (const library of ['libds_gloo', 'libgloo', 'libhiredis', 'libibverbs', 'libnl-3']) {
    const paths = mapped.match(new RegExp(`/\\S*/${library}\\.so\\S*`, 'g')) ?? [];
    assert.ok(paths.length > 0, `${library} is not loaded`);
    for (const path of paths) assert.match(path, /node_modules\/@ds\/native-linux-/);
  }
  x.dispose();
  await job.destroy();
  console.log('summed over the Gloo of the package');
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
