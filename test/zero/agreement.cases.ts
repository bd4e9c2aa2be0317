// Tests that ranks with different configurations, models or optimizers throw an error with the
// difference on every rank.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { AgreementJob, AgreementReport, Gift } from './agreement-process.js';

/** Settings of ranks 0 and 1, and the expected error on every rank; null if they train. */
interface Attempt {
  name: string;
  gifts: [Gift, Gift];
  error: { code: string; op: string; message: RegExp } | null;
}

const adamW = (lr: number) => ({ type: 'AdamW', params: { lr } }) as const;

const configurations: Attempt[] = [
  {
    name: 'rates',
    gifts: [{}, { config: { optimizer: adamW(1e-3) } }],
    error: {
      code: 'DS_CONFIG',
      op: 'optimizer.params.lr',
      message: /the same on every rank: 0\.01 as on rank 0, got 0\.001 on rank 1\. Give every rank/,
    },
  },
  {
    name: 'stages',
    gifts: [{}, { config: { zero_optimization: { stage: 2 } } }],
    error: {
      code: 'DS_CONFIG',
      op: 'zero_optimization.stage',
      message: /1 as on rank 0, got 2 on/,
    },
  },
  {
    name: 'accumulation steps',
    gifts: [{ config: { gradient_accumulation_steps: 4 } }, {}],
    error: {
      code: 'DS_CONFIG',
      op: 'gradient_accumulation_steps',
      message: /4 as on rank 0, got 1 on rank 1\..* Also different: train_batch_size\.$/,
    },
  },
  {
    name: 'optimizers',
    gifts: [{}, { config: { optimizer: { type: 'SGD', params: { lr: 1e-2 } } } }],
    error: { code: 'DS_CONFIG', op: 'optimizer.type', message: /"AdamW" as on.*got "SGD" on/ },
  },
  {
    name: 'a schedule on one rank',
    gifts: [{}, { config: { scheduler: { type: 'WarmupLR', params: { warmup_num_steps: 9 } } } }],
    error: { code: 'DS_CONFIG', op: 'scheduler', message: /null as on rank 0, got none on rank 1/ },
  },
];

const models: Attempt[] = [
  {
    name: 'shapes',
    gifts: [{}, { model: 'wide' }],
    error: {
      code: 'DS_ARGUMENT',
      op: 'initialize, parameter 0',
      message: /first\.weight \[6, 4\].* as on rank 0, got first\.weight \[8, 4\].* on rank 1/,
    },
  },
  {
    name: 'orders',
    gifts: [{}, { model: 'reordered' }],
    error: {
      code: 'DS_ARGUMENT',
      op: 'initialize, parameter 0',
      message: /first\.weight .* as on rank 0, got last\.weight .* on rank 1/,
    },
  },
  {
    name: 'a frozen parameter',
    gifts: [{ model: 'frozen' }, {}],
    error: {
      code: 'DS_ARGUMENT',
      op: 'initialize, parameter 1',
      message:
        /first\.bias \[6\], frozen, in no group as .*\[6\], requires a gradient, in group 0 on/,
    },
  },
  {
    name: 'a layer more',
    gifts: [{ model: 'longer' }, {}],
    error: {
      code: 'DS_ARGUMENT',
      op: 'initialize, parameter 4',
      message: /spare\.weight \[2, 2\].* got none on rank 1/,
    },
  },
  {
    name: 'a buffer more',
    gifts: [{}, { model: 'buffered' }],
    error: { code: 'DS_ARGUMENT', op: 'initialize, buffer 0', message: /none as.*table \[3\] on/ },
  },
  {
    name: "decays of the caller's groups",
    gifts: [{ decays: [0, 0.1] }, { decays: [0, 0.2] }],
    error: {
      code: 'DS_ARGUMENT',
      op: 'initialize, optimizer group 1 weightDecay',
      message: /0\.1 as on rank 0, got 0\.2 on rank 1/,
    },
  },
];

const agreeing: Attempt[] = [
  { name: 'nothing', gifts: [{}, {}], error: null },
  {
    name: 'printed keys and the order of keys may differ',
    gifts: [
      { config: { steps_per_print: 7, gradient_clipping: 1, seed: 3 } },
      { config: { seed: 3, gradient_clipping: 1, wall_clock_breakdown: true } },
    ],
    error: null,
  },
];

const batches: Attempt[] = [
  { name: 'another batch', gifts: [{ batch: 8 }, { batch: 8 }], error: null },
  {
    name: 'another batch on one rank',
    gifts: [{}, { batch: 8 }],
    error: {
      code: 'DS_ARGUMENT',
      op: 'engine.step',
      message: /1 micro-batches in a step, as on rank 0, got 2 on rank 1\. .*setTrainBatchSize/,
    },
  },
];

/** A refused attempt leaves the ranks in step: the next attempts run in the same processes. */
async function everyRankSays(device: Device): Promise<void> {
  const attempts = [...agreeing, ...configurations, ...models, ...batches, ...agreeing];
  const job: AgreementJob = { device: device.kind, attempts: attempts.map(({ gifts }) => gifts) };
  const results = await runRanks('../zero/agreement-process', 2, { job });
  for (const [rank, { errors, warnings }] of reportsOf<AgreementReport>(results).entries()) {
    assert.deepEqual(warnings, []);
    assert.equal(errors.length, attempts.length);
    for (const [index, { name, error: expected }] of attempts.entries()) {
      const error = errors[index];
      const place = `${name} on rank ${rank}: ${error?.message ?? 'trained'}`;
      assert.equal(error?.code, expected?.code, place);
      assert.equal(error?.op, expected?.op, place);
      if (expected) assert.match(error?.message ?? '', expected.message, place);
    }
  }
}

/** If a rank fails before the comparison, the other rank throws that it has ended. */
async function oneRankFails(device: Device): Promise<void> {
  const bad: Gift = { config: { optimizer: adamW(-1) } };
  for (const culprit of [0, 1] as const) {
    const gifts: [Gift, Gift] = culprit === 0 ? [bad, {}] : [{}, bad];
    const job: AgreementJob = { device: device.kind, attempts: [gifts] };
    const results = await runRanks('../zero/agreement-process', 2, { job });
    const errors = reportsOf<AgreementReport>(results).map((report) => report.errors[0]);
    assert.equal(errors[culprit]?.code, 'DS_CONFIG');
    const other = errors[1 - culprit];
    assert.equal(other?.code, 'DS_COMM', other?.message ?? 'trained');
    assert.match(other?.message ?? '', new RegExp(`rank ${culprit}`));
  }
}

export const cases: Case[] = [
  { name: '2 ranks: each error names the settings of the other rank', run: everyRankSays, gpus: 2 },
  { name: '2 ranks: one that fails before the comparison', run: oneRankFails, gpus: 2 },
];
