// Tests that every ZeRO stage on several ranks equals stage 0, and that several ranks equal one.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Precision } from '../e2e/tiny-training.js';
import type { Case } from '../support/case.js';
import { distances } from './distances.js';
import { type Arithmetic, type Family, FP16_STEPS, families } from './matrix.js';
import type { Setting, Trained, TrainJob } from './train-process.js';

async function trainOn(device: Device, ranks: number, job: Omit<TrainJob, 'device'>) {
  const fullTrainJob: TrainJob = { device: device.kind, ...job };
  return reportsOf<Trained[]>(
    await runRanks('../zero/train-process', ranks, { job: fullTrainJob }),
  );
}

/** Reports of each rank for each family; one job trains all families. */
async function trainFamilies(device: Device, ranks: number, all: Family[], weights = false) {
  const settings = all.flatMap((family) => family.settings);
  const reports = await trainOn(device, ranks, { settings, weights });
  let from = 0;
  return all.map((family) => {
    const to = from + family.settings.length;
    const results = reports.map((report) => report.slice(from, to));
    from = to;
    return { ...family, results };
  });
}

/**
 * All ranks and all settings of a family have the same weights; some steps are clipped, some
 * skipped in fp16.
 */
const stagesAgree =
  (ranks: number, arithmetics: readonly Arithmetic[]) =>
  async (device: Device): Promise<void> => {
    // On the CPU, a setting runs in one arithmetic of each precision; on GPUs, where transfers
    // overlap, in all.
    const all = families(arithmetics, device.kind === 'cpu');
    for (const { name, results } of await trainFamilies(device, ranks, all)) {
      const [reference] = (results[0] as Trained[]).map(({ hash }) => hash);
      for (const [rank, ofRank] of results.entries()) {
        for (const { name: setting, hash } of ofRank) {
          assert.equal(hash, reference, `${name}: ${setting} on rank ${rank}`);
        }
      }
      const first = (results[0] as Trained[])[0] as Trained;
      if (name.startsWith('fp16')) assert.ok(first.skipped > 0 && first.skipped < FP16_STEPS);
    }
  };

/**
 * With more than two ranks, the order of NCCL's sums depends on the collective: equal within
 * rounding.
 */
async function fourRanksAgree(device: Device): Promise<void> {
  const clips = [0, 1] as const;
  const all = families(clips.map((clip) => ({ precision: 'fp32', accumulation: 1, clip })));
  for (const { name, results } of await trainFamilies(device, 4, all, true)) {
    const [reference] = results[0] as Trained[];
    for (const [rank, ofRank] of results.entries()) {
      for (const result of ofRank) {
        const { worst } = distances(reference as Trained, result);
        assert.ok(worst < 1e-4, `${name}: ${result.name} on rank ${rank}: ${worst}`);
      }
    }
  }
}

/** Stage 3 that keeps no weights between uses. */
const nothingKept = {
  stage3_prefetch_bucket_size: 0,
  stage3_max_reuse_distance: 0,
  stage3_max_live_parameters: 0,
  stage3_param_persistence_threshold: 0,
};

const setting = (more: Partial<Setting>): Setting => ({
  name: 'run',
  steps: 10,
  precision: 'fp32',
  offload: false,
  ...more,
});

/** With accumulation 3, sums over ranks first or micro-batches first differ only by rounding. */
async function orderOfSums(device: Device): Promise<void> {
  const settings = [1, 2].map((stage) => setting({ accumulation: 3, zero: { stage: stage as 1 } }));
  const [reports] = await trainOn(device, 2, { settings, weights: true });
  const [late, early] = reports as [Trained, Trained];
  const { worst } = distances(late, early);
  assert.ok(worst < 1e-4, `${worst}`);
}

/**
 * The global batch of N ranks equals N accumulated micro-batches of one rank. In bf16, gradients
 * are rounded to 8 bits at other points of the sum, and Adam's step is near its rate if a gradient
 * is near zero. A few weights differ by steps of 3e-3, at most ten of them in both directions.
 */
const ranksEqualOne =
  (precision: 'fp32' | 'bf16', bound: { worst: number; mean: number }) =>
  async (device: Device): Promise<void> => {
    const run = (more: Partial<Setting>): Setting => setting({ precision, ...more });
    const [one] = (await trainOn(device, 1, {
      settings: [run({ accumulation: 4 })],
      weights: true,
    })) as [Trained[]];
    for (const [ranks, accumulation] of [
      [2, 2],
      [4, 1],
    ] as const) {
      const settings = [0, 1, 2, 3].map((stage) =>
        run({ accumulation, zero: { stage: stage as 0 } }),
      );
      const [several] = (await trainOn(device, ranks, { settings, weights: true })) as [Trained[]];
      for (const [stage, result] of several.entries()) {
        const { worst, mean } = distances(one[0] as Trained, result, precision);
        const place = `${ranks} ranks, stage ${stage}: worst ${worst}, mean ${mean}`;
        assert.ok(worst < bound.worst && mean < bound.mean, place);
      }
    }
  };

const relative = (a: number | null | undefined, b: number | null | undefined): number =>
  Math.abs((a ?? 0) / (b ?? 0) - 1);

/**
 * Division before the sum, after it or both, and a different communication dtype, change only the
 * rounding.
 */
async function waysOfAveraging(device: Device): Promise<void> {
  const settings = [
    {},
    { prescale_gradients: true },
    { gradient_predivide_factor: 2 },
    { communication_data_type: 'bf16' as const },
    { gradient_allreduce_op: 'sum' as const, gradient_clipping: 0 },
  ].map((more) => setting({ precision: 'fp32', clip: 0, zero: { stage: 1 }, more }));
  const [[plain, ...others]] = (await trainOn(device, 2, { settings, weights: true })) as [
    [Trained, Trained, Trained, Trained, Trained],
  ];
  const [prescaled, divided, rounded, summed] = others;
  // Powers of two divide without rounding.
  assert.equal(prescaled.hash, plain.hash);
  assert.equal(divided.hash, plain.hash);
  assert.notEqual(rounded.hash, plain.hash);
  assert.ok(relative(rounded.norms[0], plain.norms[0]) < 1e-2, `${rounded.norms}`);
  const ratios = summed.norms.map((norm, i) => (norm ?? 0) / (plain.norms[i] ?? 1));
  assert.ok(Math.abs((ratios[0] as number) - 2) < 1e-5, `${ratios}`);
}

/**
 * If all ranks have the same data, the largest usable loss scale is that of one rank, for every way
 * to sum.
 */
async function scalesAgree(device: Device): Promise<void> {
  const run = (stage: number, more: Setting['more'] = {}): Setting =>
    setting({ steps: 12, precision: 'fp16', sameBatches: true, zero: { stage: stage as 0 }, more });
  const settings = [
    ...[0, 1, 2, 3].map((stage) => run(stage)),
    ...[1, 3].map((stage) => run(stage, { communication_data_type: 'fp32' })),
    ...[1, 3].map((stage) => run(stage, { prescale_gradients: true })),
  ];
  const skip = async (ranks: number): Promise<number[]> => {
    const [results] = (await trainOn(device, ranks, { settings })) as [Trained[]];
    return results.map((result) => result.skipped);
  };
  const alone = await skip(1);
  assert.ok(
    alone.every((count) => count > 1 && count < 11 && count === alone[0]),
    `${alone}`,
  );
  for (const ranks of [2, 3]) assert.deepEqual(await skip(ranks), alone, `${ranks} ranks`);
}

/**
 * 16-bit gradients of 2 ranks and 4 micro-batches, summed in f32 at every stage. Each sum has the
 * norm of stage 0 to the precision of f32, which 16-bit sums do not reach. bf16 communication loses
 * precision in the sum over ranks.
 */
async function sumsAcrossRanks(device: Device): Promise<void> {
  const run = (stage: number, more: Partial<Setting>): Setting =>
    setting({ steps: 1, precision: 'bf16', accumulation: 4, zero: { stage: stage as 0 }, ...more });
  const narrowWire = { more: { communication_data_type: 'bf16' as const } };
  const settings = [
    ...[0, 1, 2, 3].map((stage) => run(stage, { gradients: 'fp32' })),
    ...[0, 1, 2, 3].map((stage) => run(stage, {})),
    ...[1, 2].map((stage) => run(stage, { gradients: 'fp32', ...narrowWire })),
  ];
  const [results] = (await trainOn(device, 2, { settings })) as [Trained[]];
  const norms = results.map((result) => result.norms[0] as number);
  const errors = norms.map((norm) => relative(norm, norms[0]));
  for (const error of errors.slice(0, 4)) assert.ok(error < 1e-6, `${errors}`);
  for (const error of errors.slice(4)) assert.ok(error > 2e-6 && error < 1e-2, `${errors}`);
}

/** Bytes after the first of 2 micro-batches: weights of each stage, and gradients summed in f32. */
async function bytesByStage(device: Device): Promise<void> {
  const settings = [0, 1, 2, 3].map((stage) =>
    setting({
      steps: 1,
      precision: 'bf16',
      gradients: 'fp32',
      accumulation: 2,
      zero: { stage: stage as 0, ...nothingKept },
    }),
  );
  const [results] = (await trainOn(device, 2, { settings })) as [Trained[]];
  const [{ elements }] = results as [Trained];
  const shares = results.map(({ firstMicroBatch: { weights, gradients } }) => [
    weights / elements,
    gradients / elements,
  ]);
  assert.deepEqual(shares, [
    [2, 4],
    [2, 4],
    [2, 2],
    [1, 2],
  ]);
}

/**
 * Each accumulation with each clip in one precision, because their combination does not depend on
 * the dtype. The order alternates: see families().
 */
const arithmetics: Record<Precision, readonly Arithmetic[]> = {
  fp32: [
    { precision: 'fp32', accumulation: 1, clip: 0 },
    { precision: 'fp32', accumulation: 3, clip: 1 },
  ],
  bf16: [
    { precision: 'bf16', accumulation: 3, clip: 0 },
    { precision: 'bf16', accumulation: 1, clip: 1 },
  ],
  fp16: [
    { precision: 'fp16', accumulation: 1, clip: 1 },
    { precision: 'fp16', accumulation: 3, clip: 1 },
  ],
};

export const cases: Case[] = [
  ...(Object.keys(arithmetics) as Precision[]).map((precision) => ({
    name: `2 ranks: stages 0 to 3 agree bit for bit, ${precision}`,
    run: stagesAgree(2, arithmetics[precision]),
    gpus: 2,
  })),
  {
    name: '2 ranks: stages 0 to 3 agree bit for bit, bf16 and fp16 with gradients summed in fp32',
    run: stagesAgree(2, [
      { precision: 'bf16', gradients: 'fp32', accumulation: 2, clip: 0 },
      { precision: 'fp16', gradients: 'fp32', accumulation: 2, clip: 1 },
    ]),
    gpus: 2,
  },
  {
    name: '4 ranks: stages 0 to 3 agree bit for bit',
    run: stagesAgree(4, [{ precision: 'bf16', accumulation: 1, clip: 1 }]),
    skip: ({ kind }) =>
      kind === 'cpu' ? null : 'NCCL picks the order of four: see within rounding',
  },
  {
    name: '4 ranks: stages 0 to 3 agree within rounding',
    run: fourRanksAgree,
    gpus: 4,
    skip: ({ kind }) => (kind === 'cpu' ? 'they agree bit for bit' : null),
  },
  {
    name: 'the order of ranks and micro-batches changes only the rounding',
    run: orderOfSums,
    gpus: 2,
  },
  {
    name: '2 and 4 ranks equal one rank with the same global batch',
    run: ranksEqualOne('fp32', { worst: 1e-4, mean: 1e-5 }),
    gpus: 4,
  },
  {
    name: '2 and 4 ranks equal one rank with the same global batch, bf16',
    run: ranksEqualOne('bf16', { worst: 0.05, mean: 2e-4 }),
    gpus: 4,
  },
  {
    name: 'gradients summed in f32 over ranks and micro-batches',
    run: sumsAcrossRanks,
    gpus: 2,
  },
  { name: 'bytes of weights and gradients by stage', run: bytesByStage, gpus: 2 },
  { name: 'ways of averaging', run: waysOfAveraging, gpus: 2 },
  {
    name: 'fp16 on 1, 2 and 3 ranks skips the same steps',
    run: scalesAgree,
    gpus: 3,
  },
];
