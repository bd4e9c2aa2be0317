// Starts the longest test files first: one that starts last leaves all cores but one idle. Jest
// does so itself where it has kept the times of an earlier run; without them it goes by the size of
// the files, and these are small ones that run many cases or ranks.
const { existsSync } = require('node:fs');
const { join } = require('node:path');
const Sequencer = require('@jest/test-sequencer').default;

const LONGEST = [
  'zero/stages',
  'native/matrix',
  'native/matrix-odd',
  'zero/shapes',
  'zero/whole-parameters',
  'e2e/offload',
  'checkpoint/resume',
  'comm/faults',
  'comm/collectives',
  'e2e/examples',
  'inference/ranks',
  'inference/engine',
  'e2e/nvme',
  'e2e/resume',
  'e2e/speculative-offload',
].map((name) => join(__dirname, '..', `${name}.test.ts`));

for (const path of LONGEST) {
  if (!existsSync(path)) throw new Error(`${path} is gone: take it from the list of ${__filename}`);
}

module.exports = class LongestFirst extends Sequencer {
  sort(tests) {
    const rank = ({ path }) => (LONGEST.includes(path) ? LONGEST.indexOf(path) : LONGEST.length);
    return super.sort([...tests]).sort((a, b) => rank(a) - rank(b));
  }
};
