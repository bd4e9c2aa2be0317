// Runs test files in the order of the environment variable MUTATE_ORDER: the shortest first.
const Sequencer = require('@jest/test-sequencer').default;

const order = (process.env.MUTATE_ORDER ?? '').split(':');

module.exports = class GivenOrder extends Sequencer {
  sort(tests) {
    return [...tests].sort((a, b) => order.indexOf(a.path) - order.indexOf(b.path));
  }
};
