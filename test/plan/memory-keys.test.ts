// Compares the plan's bytes with a run on two CPU ranks, for each memory key of
// "zero_optimization".
import { type DsConfig, nn, resolveConfig } from '../../lib/index.js';
import {
  configuredFacts,
  predictMemory,
  setupOfConfig,
  sizesOf,
  totalBytes,
} from '../../lib/plan/index.js';
import { runRanks } from '../comm/ranks.js';
import type { MemoryKeysJob } from './memory-keys-process.js';

const [RANKS, ROWS, SEQ] = [2, 1, 16];
const shape = { vocabSize: 256, maxSeq: SEQ, layers: 12, heads: 4, channels: 164 };
const BLOCK = 12 * 164 * 164;

type Zero = Exclude<DsConfig['zero_optimization'], boolean | undefined>;
interface Run {
  name: string;
  zero: Zero;
  accumulation: number;
}

const FRUGAL: Zero = {
  stage: 3,
  reduce_bucket_size: 0,
  stage3_prefetch_bucket_size: 0,
  overlap_comm: true,
  stage3_max_live_parameters: 0,
  stage3_max_reuse_distance: 0,
  stage3_param_persistence_threshold: 0,
};
const ROOMY = 1e9;
/** Largest difference between the predicted and the measured change, as a fraction of it. */
const TOGETHER = 0.15;
const run = (name: string, zero: Zero, accumulation = 1): Run => ({ name, zero, accumulation });

const runs: readonly Run[] = [
  run('no bucket, stage 2', { ...FRUGAL, stage: 2 }),
  run('reduce_bucket_size, stage 2', { ...FRUGAL, stage: 2, reduce_bucket_size: 3 * BLOCK }),
  run('reduce_bucket_size, no overlap', {
    ...FRUGAL,
    stage: 2,
    reduce_bucket_size: 5 * BLOCK,
    overlap_comm: false,
  }),
  run('small allgather_bucket_size', { ...FRUGAL, stage: 2, allgather_bucket_size: 0 }),
  run('reduce_bucket_size, stage 1', { ...FRUGAL, stage: 1, reduce_bucket_size: 3 * BLOCK }),
  run('no bucket, stage 1', { ...FRUGAL, stage: 1 }),
  run('stage 0', { ...FRUGAL, stage: 0 }),
  run('nothing gathered ahead', FRUGAL),
  run('reduce_bucket_size, stage 3', { ...FRUGAL, reduce_bucket_size: 4 * BLOCK }),
  run('stage3_prefetch_bucket_size', {
    ...FRUGAL,
    stage3_prefetch_bucket_size: 4 * BLOCK,
    stage3_max_live_parameters: ROOMY,
  }),
  run('prefetch within stage3_max_live_parameters', {
    ...FRUGAL,
    stage3_prefetch_bucket_size: 6 * BLOCK,
    stage3_max_live_parameters: 3 * BLOCK,
  }),
  run('stage3_max_reuse_distance', {
    ...FRUGAL,
    stage3_max_reuse_distance: 12 * BLOCK,
    stage3_max_live_parameters: ROOMY,
  }),
  run('reuse within stage3_max_live_parameters', {
    ...FRUGAL,
    stage3_max_reuse_distance: ROOMY,
    stage3_max_live_parameters: 7 * BLOCK,
  }),
  run('stage3_param_persistence_threshold', {
    ...FRUGAL,
    stage3_param_persistence_threshold: 2 * BLOCK,
  }),
  run('stage3_model_persistence_threshold', {
    ...FRUGAL,
    stage3_param_persistence_threshold: 2 * BLOCK,
    stage3_model_persistence_threshold: 5 * BLOCK,
  }),
  run('zero_hpz_partition_size', { ...FRUGAL, zero_hpz_partition_size: 2 }),
  run('zero_quantized_weights', { ...FRUGAL, zero_quantized_weights: true }),
  run('zero_quantized_weights ahead', {
    ...FRUGAL,
    zero_quantized_weights: true,
    stage3_prefetch_bucket_size: 4 * BLOCK,
    stage3_max_live_parameters: ROOMY,
  }),
  run('zero_quantized_gradients', { ...FRUGAL, zero_quantized_gradients: true }),
  run('no reduce_scatter', { ...FRUGAL, stage: 2, reduce_scatter: false }),
  run('defaults of all keys', { stage: 3 }),
  run(
    'reuse between micro-batches',
    {
      ...FRUGAL,
      stage3_max_reuse_distance: 8 * BLOCK,
      stage3_max_live_parameters: ROOMY,
    },
    3,
  ),
];

function planRun({ zero, accumulation }: Run): number {
  const config = resolveConfig(
    {
      train_micro_batch_size_per_gpu: ROWS,
      gradient_accumulation_steps: accumulation,
      bf16: { enabled: true },
      optimizer: { type: 'AdamW', params: { lr: 1e-4 } },
      zero_optimization: zero,
    },
    { worldSize: RANKS },
  );
  const setup = setupOfConfig(config, {
    optimizer: configuredFacts(config),
    mesh: { data: RANKS, tokens: 1, layers: 1, stages: 1 },
    isHost: true,
    seq: SEQ,
    checkpointing: false,
  });
  return totalBytes(predictMemory(sizesOf(new nn.models.GPT2(shape)), setup).device);
}

let measured: readonly number[];

beforeAll(async () => {
  const job: MemoryKeysJob = { shape, rows: ROWS, seq: SEQ, runs: [...runs] };
  const results = await runRanks('../plan/memory-keys-process', RANKS, { job });
  for (const { code, stderr } of results) expect([code, stderr]).toEqual([0, expect.anything()]);
  measured = results[0]?.report as number[];
});

test.each(runs.map((run, i) => [run.name, i] as const))('%s', (_, i) => {
  const [got, predicted] = [measured[i] as number, planRun(runs[i] as Run)];
  expect(Math.abs(predicted / got - 1)).toBeLessThan(0.02);
});

test.each([
  ['stage 0', 'no bucket, stage 1'],
  ['no bucket, stage 1', 'no bucket, stage 2'],
  ['no bucket, stage 2', 'nothing gathered ahead'],
  ['no bucket, stage 2', 'reduce_bucket_size, stage 2'],
  ['nothing gathered ahead', 'reduce_bucket_size, stage 3'],
  ['nothing gathered ahead', 'stage3_prefetch_bucket_size'],
  ['stage3_max_reuse_distance', 'reuse within stage3_max_live_parameters'],
  ['nothing gathered ahead', 'stage3_param_persistence_threshold'],
  ['stage3_param_persistence_threshold', 'stage3_model_persistence_threshold'],
  ['nothing gathered ahead', 'zero_hpz_partition_size'],
  ['nothing gathered ahead', 'zero_quantized_gradients'],
])('from "%s" to "%s" both move', (from, to) => {
  const [a, b] = [from, to].map((name) => runs.findIndex((run) => run.name === name)) as [
    number,
    number,
  ];
  const got = (measured[b] as number) - (measured[a] as number);
  const predicted = planRun(runs[b] as Run) - planRun(runs[a] as Run);
  expect(Math.abs(got)).toBeGreaterThan(0.01 * (measured[a] as number));
  expect([
    from,
    to,
    Math.abs(predicted / got - 1) < TOGETHER ? 'together' : [predicted, got],
  ]).toEqual([from, to, 'together']);
});
