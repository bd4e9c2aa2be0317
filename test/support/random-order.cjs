// Runs test files in an order drawn from a seed, with `npx jest --randomize --testSequencer
// ./test/support/random-order.cjs`: tests that need one another's leftovers show themselves.
const { createHash } = require('node:crypto');
const Sequencer = require('@jest/test-sequencer').default;

const keyOf = (seed, path) => createHash('sha256').update(`${seed}:${path}`).digest('hex');

module.exports = class RandomOrder extends Sequencer {
  sort(tests) {
    const seed = process.env.DS_TEST_SEED ?? String(Date.now());
    process.stderr.write(`Order of files: DS_TEST_SEED=${seed}\n`);
    const { rootDir } = tests[0]?.context.config ?? { rootDir: '' };
    const keys = new Map(tests.map(({ path }) => [path, keyOf(seed, path.slice(rootDir.length))]));
    return [...tests].sort((a, b) => (keys.get(a.path) < keys.get(b.path) ? -1 : 1));
  }
};
