// Tests that optimizers with per-parameter or per-block state (LAMB, Muon, Adafactor, AdamW8bit,
// bf16 AdamW) equal stage 0 at stages 1 to 3, which split parameters between ranks.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Precision } from '../e2e/tiny-training.js';
import type { Case } from '../support/case.js';
import { distances } from './distances.js';
import type { Setting, Trained, TrainJob } from './train-process.js';

const STEPS = 5;
/** Steps until a loss scale that is too large at first has come down. */
const SCALED = 14;

const optimizers = {
  Lamb: { type: 'Lamb', params: { lr: 3e-3, weight_decay: 0.1, max_coeff: 2, min_coeff: 0.1 } },
  Muon: { type: 'Muon', params: { lr: 3e-3, weight_decay: 0.1 } },
  Adafactor: { type: 'Adafactor', params: { lr: 3e-3, weight_decay: 0.1, beta1: 0.8 } },
  AdamW8bit: { type: 'AdamW8bit', params: { lr: 3e-3, weight_decay: 0.1, min_8bit_size: 100 } },
  'AdamW with moments in bf16': { type: 'AdamW', params: { lr: 3e-3, weight_decay: 0.1 } },
} as const;

/**
 * Stage 3 that gathers and frees weights; stage 1 with one unit per bucket, without overlap.
 * Optimizer state in tiles; on the device, only its tables or one more block.
 */
const variants: Record<string, Partial<Setting>> = {
  'stage 1, units by themselves': {
    zero: {
      stage: 1,
      overlap_comm: false,
      reduce_bucket_size: 1,
      allgather_bucket_size: 2,
    },
  },
  'stage 3, nothing kept': {
    zero: { stage: 3, stage3_max_reuse_distance: 0, stage3_param_persistence_threshold: 0 },
  },
  'stage 3, weights and optimizer offloaded': {
    zero: { stage: 3, offload_param: { device: 'cpu' } },
    offload: true,
  },
  'stage 3, weights offloaded': { zero: { stage: 3, offload_param: { device: 'cpu' } } },
  'stage 2, offloaded in small tiles': { zero: { stage: 2, sub_group_size: 640 }, offload: true },
  'stage 3, all but the tables offloaded': { zero: { stage: 3 }, offload: true, ratio: 0.5 },
  'stage 3, a third offloaded': { zero: { stage: 3 }, offload: true, ratio: 0.35 },
};

type Type = keyof typeof optimizers;

/** The first is the reference. */
function settings(type: Type, precision: Precision): Setting[] {
  const steps = precision === 'fp16' ? SCALED : STEPS;
  const bf16States = type === 'AdamW with moments in bf16';
  const plain = { steps, precision, offload: false, optimizer: optimizers[type], bf16States };
  const stages = ([1, 2, 3] as const).flatMap((stage) =>
    [false, true].map((offload) => ({
      ...plain,
      name: `stage ${stage}, offload ${offload}`,
      zero: { stage },
      offload,
    })),
  );
  const others = Object.entries(variants).map(([name, more]) => ({ ...plain, name, ...more }));
  return [{ ...plain, name: 'stage 0', zero: { stage: 0 } }, ...stages, ...others];
}

/**
 * Sums of parts are added in f64, and the rounding to f32 hides their order: equal bits on the CPU.
 * On a GPU, the products of Muon may use other kernels.
 */
const equalsStage0 =
  (type: Type, precision: 'fp32' | 'bf16' | 'fp16', ranks: number) =>
  async (device: Device): Promise<void> => {
    const job: TrainJob = { device: device.kind, settings: settings(type, precision) };
    const exact = device.kind === 'cpu' || type !== 'Muon';
    const results = await runRanks('../zero/train-process', ranks, {
      job: { ...job, weights: !exact },
    });
    const reports = reportsOf<Trained[]>(results);
    const reference = (reports[0] as Trained[])[0] as Trained;
    const { losses, skipped } = reference;
    assert.ok((losses.at(-1) as number) < (losses[0] as number), `no learning: ${losses}`);
    if (precision === 'fp16') assert.ok(skipped > 0 && skipped < SCALED, `${skipped} skipped`);
    for (const [rank, all] of reports.entries()) {
      for (const trained of all) {
        const place = `${trained.name} on rank ${rank}`;
        if (exact) assert.equal(trained.hash, reference.hash, place);
        else if (precision !== 'fp16') {
          const { worst } = distances(reference, trained, precision);
          assert.ok(worst < (precision === 'fp32' ? 1e-4 : 2e-2), `${place}: ${worst}`);
        }
      }
    }
  };

const skipFor =
  (ranks: number) =>
  ({ kind }: Device): string | null =>
    kind === 'cpu' || ranks <= 2
      ? null
      : 'NCCL picks the order of three: no stage has the bits of another';

type Runs = readonly (readonly [ranks: number, precision: Precision])[];

const everywhere: Runs = [
  [2, 'fp32'],
  [2, 'bf16'],
  [2, 'fp16'],
  [3, 'fp32'],
  [3, 'bf16'],
];

const ranksAndPrecisions: Record<Type, Runs> = {
  Lamb: everywhere,
  Muon: everywhere,
  Adafactor: [
    [2, 'fp32'],
    [2, 'fp16'],
    [3, 'bf16'],
  ],
  AdamW8bit: [
    [2, 'bf16'],
    [3, 'fp32'],
  ],
  'AdamW with moments in bf16': [
    [2, 'bf16'],
    [2, 'fp16'],
    [3, 'fp32'],
  ],
};

export const cases: Case[] = (Object.keys(optimizers) as Type[]).flatMap((type) =>
  ranksAndPrecisions[type].map(([ranks, precision]) => ({
    name: `${type} on ${ranks} ranks, ${precision}: stages 1 to 3 equal stage 0`,
    run: equalsStage0(type, precision, ranks),
    gpus: ranks,
    skip: skipFor(ranks),
  })),
);
