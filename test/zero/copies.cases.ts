// Compares ZeRO++ (quantized weights and gradients, hierarchical partitions) and MiCS with a
// simulation and with plain stage 3.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import { tinyEngine, trainTiny, weightBits } from '../e2e/tiny-training.js';
import { everywhere } from '../parallel/checkpoints.cases.js';
import type { Case } from '../support/case.js';
import type { CodesJob, CodesReport } from './codes-process.js';
import { distances } from './distances.js';
import type { Setting, Trained, TrainJob } from './train-process.js';

/** Stage 3 that keeps no weights between uses: the backward gathers again. */
const NOTHING_KEPT = {
  stage: 3 as const,
  stage3_prefetch_bucket_size: 0,
  stage3_max_reuse_distance: 0,
  stage3_max_live_parameters: 0,
  stage3_param_persistence_threshold: 0,
};

const setting = (name: string, zero: Setting['zero'], more: Partial<Setting> = {}): Setting => ({
  name,
  steps: 4,
  precision: 'fp32',
  offload: false,
  accumulation: 2,
  ...more,
  zero: { ...NOTHING_KEPT, ...(zero as object) },
});

async function train(device: Device, ranks: number, settings: Setting[]): Promise<Trained[][]> {
  const job: TrainJob = { device: device.kind, settings, weights: true };
  const reports = reportsOf<Trained[]>(await runRanks('../zero/train-process', ranks, { job }));
  for (const [i, { name }] of settings.entries()) {
    const hashes = new Set(reports.map((report) => report[i]?.hash));
    assert.equal(hashes.size, 1, `${name}: ranks have different weights`);
  }
  return reports;
}

/** A second copy changes no bit. MiCS with two ranks per copy changes the order of sums. */
async function copiesAgree(device: Device): Promise<void> {
  const [first] = await train(device, 4, [
    setting('stage 3', {}),
    setting('hpZ', { zero_hpz_partition_size: 2 }),
    setting('hpZ, fetched ahead, offloaded', {
      zero_hpz_partition_size: 2,
      overlap_comm: true,
      stage3_prefetch_bucket_size: 1e6,
      stage3_max_live_parameters: 1e6,
      offload_param: { device: 'cpu' },
    }),
    setting('hpZ in one group', { zero_hpz_partition_size: 4 }),
    setting('MiCS', { mics_shard_size: 2 }),
    setting('MiCS of one copy', { mics_shard_size: 4 }),
    setting('MiCS of whole copies', { mics_shard_size: 1 }),
  ]);
  const [plain, ...others] = first as [Trained, ...Trained[]];
  for (const one of others) {
    if (!/MiCS$|whole/.test(one.name)) assert.equal(one.hash, plain.hash, one.name);
    const { gathers } = one;
    // With four units and two micro-batches, only the first forward gathers over all ranks.
    if (gathers) assert.ok(gathers.near >= 2 * gathers.shards, JSON.stringify(gathers));
    const { worst } = distances(plain, one);
    assert.ok(worst < 1e-5, `${one.name}: ${worst}`);
    one.norms.forEach((norm, i) => {
      const other = plain.norms[i] as number;
      assert.ok(
        Math.abs((norm as number) - other) < 1e-5 * other,
        `${one.name}: ${norm}, ${other}`,
      );
    });
  }
}

/** With two ranks each sum has two terms, so their order does not matter. */
async function wholeCopies(device: Device): Promise<void> {
  const [first] = await train(device, 2, [
    setting('stage 3', {}, { clip: 0 }),
    setting('MiCS of whole copies', { mics_shard_size: 1 }, { clip: 0 }),
    setting('8 bits', { zero_quantized_weights: true }, { precision: 'bf16' }),
    setting('8 bits, offloaded', {
      zero_quantized_weights: true,
      zero_quantized_gradients: true,
      offload_param: { device: 'cpu' },
    }),
    setting('4 bits, second copies', {
      zero_quantized_gradients: true,
      zero_hpz_partition_size: 2,
    }),
  ]);
  const [plain, whole, ...narrow] = first as [Trained, Trained, ...Trained[]];
  assert.equal(whole.hash, plain.hash);
  for (const { name, losses, skipped } of narrow) {
    assert.equal(skipped, 0, name);
    losses.forEach((loss, i) => {
      const other = plain.losses[i] as number;
      assert.ok(Math.abs(loss - other) < 0.03 * other, `${name}, loss ${i}: ${loss} for ${other}`);
    });
    assert.notDeepEqual(losses, plain.losses, `${name} changes nothing`);
  }
}

/** Without overlap of compute, one stream writes the codes and another reads them. */
async function codesAlone(device: Device): Promise<void> {
  const runs = [];
  for (const overlap_comm of [false, true]) {
    const zero = {
      stage: 3 as const,
      overlap_comm,
      zero_quantized_weights: true,
      offload_param: { device: 'cpu' as const },
    };
    const engine = await tinyEngine({ precision: 'bf16', offload: true, zero }, device);
    const losses = trainTiny(engine, 0, 50);
    runs.push({ losses, weights: weightBits(engine) });
    engine.destroy();
  }
  assert.deepEqual(runs[1], runs[0]);
}

const checkpoints = (device: Device): Promise<void> =>
  everywhere(device, [
    { name: 'alone', ranks: 1, mesh: {}, stage: 0 },
    { name: 'mics', ranks: 4, mesh: {}, stage: 3, zero: { mics_shard_size: 2 } },
  ]);

const simulate =
  (ranks: number) =>
  async ({ kind }: Device): Promise<void> => {
    const job: CodesJob = { kind };
    const reports = reportsOf<CodesReport>(await runRanks('../zero/codes-process', ranks, { job }));
    for (const { failures, compared, logged, formula } of reports) {
      assert.deepEqual(failures, []);
      assert.ok(compared > 2000, `${compared}`);
      assert.deepEqual(logged, formula);
    }
  };

export const cases: Case[] = [
  ...[2, 3].map((ranks) => ({
    name: `weights in 8 bits and gradients in 4 on ${ranks} ranks equal a simulation bit for bit`,
    run: simulate(ranks),
    gpus: ranks,
  })),
  {
    name: 'second copies of weights, and copies of everything, train as stage 3',
    run: copiesAgree,
    gpus: 4,
  },
  { name: 'weights in 8 bits on one rank, beside compute or not', run: codesAlone },
  { name: 'whole copies and codes on 2 ranks', run: wholeCopies, gpus: 2 },
  { name: 'saved on 1 and copies of 2 ranks, resumed on each', run: checkpoints, gpus: 4 },
];
