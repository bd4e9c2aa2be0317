// Tests that sequence parallelism (Ulysses) trains like one rank with whole samples: models,
// engines at every ZeRO stage, and checkpoints of any mesh.

import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import type { Case } from '../support/case.js';
import { everywhere } from './checkpoints.cases.js';
import { equal, run } from './engine.cases.js';
import type { Leg } from './engine-process.js';
import { requireReports } from './layers.cases.js';

const STAGES = [0, 1, 2, 3] as const;

/** Each leg on sp 2, and the error on both ranks. */
const REFUSED: readonly [Leg, RegExp][] = [
  [
    { model: 'gpt2', stage: 0, misled: { rank: 1 } },
    /^DS_COMM engine\.step: .*the same batches on ranks that differ only on sp, got other inputs on rank 1 than on rank 0 in step 1\./,
  ],
  [
    { model: 'gpt2', stage: 0, optimizer: { type: 'OneBitAdam', params: { lr: 1e-3 } } },
    /^DS_CONFIG sequence_parallel_size: expected 1 with an optimizer that keeps local gradients on each rank/,
  ],
];

async function checkRefusals(device: Device): Promise<void> {
  const legs = REFUSED.map(([leg]) => leg);
  const reports = await run(device, 2, { mesh: { sp: 2 }, legs });
  for (const [i, [, message]] of REFUSED.entries()) {
    for (const localReports of reports) assert.match(String(localReports[i]?.error), message);
  }
}

const models: Case[] = [2, 4].map((ranks) => ({
  name: `GPT-2, Llama, Phi-3 and Qwen3 with tokens on ${ranks} ranks`,
  run: (device) => requireReports('sequence-process', ranks, { kind: device.kind }),
  gpus: ranks,
}));

const engines: Case[] = [
  {
    name: 'sp 2, offloaded and in 16 bits, equals one rank',
    run: (device) =>
      equal(device, {
        mesh: { sp: 2 },
        ranks: 2,
        legs: [
          { model: 'gpt2', stage: 0, steps: 3 },
          { model: 'llama', stage: 3, steps: 3 },
          { model: 'qwen3', stage: 1, steps: 3 },
          { model: 'gpt2', stage: 2, offload: true, steps: 3 },
          { model: 'llama', stage: 1, precision: 'bf16', wide: true, steps: 3 },
          { model: 'gpt2', stage: 3, precision: 'fp16', steps: 3 },
        ],
      }),
    gpus: 2,
  },
  {
    name: 'sp 2 x dp 2 at ZeRO 0 to 3 equals dp 2',
    run: (device) =>
      equal(device, {
        mesh: { sp: 2 },
        ranks: 4,
        legs: [
          ...STAGES.map((stage): Leg => ({ model: 'gpt2', stage, steps: 3 })),
          { model: 'llama', stage: 3, micros: 1, steps: 3 },
        ],
      }),
    gpus: 4,
  },
  {
    name: 'sp 4 with shared heads of keys equals one rank',
    run: (device) =>
      equal(device, {
        mesh: { sp: 4 },
        ranks: 4,
        legs: [
          { model: 'llama', stage: 0, steps: 3 },
          { model: 'qwen3', stage: 3, steps: 3 },
        ],
      }),
    gpus: 4,
  },
  {
    name: 'sp 2 x tp 2 equals one rank',
    run: (device) =>
      equal(device, {
        mesh: { sp: 2, tp: 2 },
        ranks: 4,
        legs: [
          { model: 'gpt2', stage: 1, steps: 2 },
          { model: 'llama', stage: 3, steps: 2 },
        ],
      }),
    gpus: 4,
  },
  { name: 'unsupported uses are errors on both ranks', run: checkRefusals, gpus: 2 },
];

const checkpoints: Case[] = [
  {
    name: 'saved on 1 and sp 2 x dp 2, resumed on each of them',
    run: (device) =>
      everywhere(
        device,
        [
          { name: 'alone', ranks: 1, mesh: {}, stage: 0 },
          { name: 'sp2dp2', ranks: 4, mesh: { sp: 2 }, stage: 3 },
        ],
        'gpt2',
      ),
    gpus: 4,
  },
];

export const cases: Case[] = [...models, ...engines, ...checkpoints];
