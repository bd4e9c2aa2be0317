// Starts the longest test files first, because a long file at the end leaves all other cores idle.
// Jest does so if it has the times of an earlier run. Without them it sorts by file size, but these
// small files run many cases or ranks.
const { existsSync } = require('node:fs');
const { join } = require('node:path');
const Sequencer = require('@jest/test-sequencer').default;

const LONGEST = [
  'zero/stages',
  'comm/faults',
  'e2e/resumed',
  'e2e/offload',
  'trainer/train-command',
  'parallel/sequence',
  'zero/shapes',
  'native/matrix',
  'native/matrix-odd',
  'e2e/examples',
  'faults/disk',
  'pipe/pipeline-faults',
  'checkpoint/resume',
  'checkpoint/ranks',
  'inference/ranks',
  'checkpoint/asynchronous',
  'zero/whole-parameters',
  'parallel/language-over-data',
  'data/workers',
  'checkpoint/crash',
  'e2e/speculative-offload',
  'e2e/serving',
  'faults/scarcity',
  'launch/launcher',
  'comm/init',
  'comm/lost-link',
  'parallel/language-staged',
  'models/sharded-loading',
  'docs/snippets',
  'pipe/schedules',
  'comm/collectives',
  'inference/engine',
  'e2e/nvme',
  'e2e/resume',
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
