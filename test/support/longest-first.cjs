// Starts the longest test files first, because a long file at the end leaves all other cores idle.
// Jest does so if it has the times of an earlier run. Without them it sorts by file size, but these
// small files run many cases or ranks.
const { existsSync } = require('node:fs');
const { join } = require('node:path');
const Sequencer = require('@jest/test-sequencer').default;

const LONGEST = [
  // Mostly waiting for processes, while the sanitizers of scripts/test use the cores.
  'engine/alone',
  'comm/faults',
  'faults/training',
  'pipe/pipeline-faults',
  'comm/store',
  'checkpoint/ranks',
  'faults/disk',
  'launch/launcher',
  'serve/lifetimes',
  'checkpoint/asynchronous',
  'comm/lost-link',
  'launch/serve-failure',
  'comm/init',
  'trainer/train-command',
  'e2e/resumed',
  'e2e/serving',
  // Mostly computing.
  'e2e/examples',
  'native/matrix',
  'native/matrix-odd',
  'native/matrix-empty',
  'zero/stages',
  'zero/shapes',
  'parallel/sequence',
  'zero/whole-parameters',
  'models/matrix',
  'inference/engine',
  'e2e/offload',
  'e2e/speculative-offload',
  'checkpoint/resume',
  'inference/ranks',
  'data/workers',
  'support/stream-order',
  'parallel/language-alone',
  'e2e/resume',
  'parallel/language-over-data',
  'pipe/pipeline',
  'e2e/nvme',
  'trainer/grpo-stealing',
  'e2e/gpu-share',
  'parallel/checkpoints',
  'plan/plan',
  'comm/collectives',
  'e2e/tutorial/programs',
  'e2e/guides',
  'plan/moving-keys',
  'zero/mesh',
  'models/head-matrix',
  'faults/scarcity',
  'parallel/language-staged',
  'docs/snippets',
  'pipe/schedules',
  'checkpoint/crash',
  'models/sharded-loading',
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
