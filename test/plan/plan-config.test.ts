// Tests that `ds plan --config` prints the plan's result for the settings of a ds_config.json.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { plan } from '../../lib/launch/plan.js';
import type { PlanFlags } from '../../lib/launch/plan-options.js';

const GIB = 2 ** 30;
const home = mkdtempSync(join(tmpdir(), 'ds-plan-'));
afterAll(() => rmSync(home, { recursive: true }));
const flags: PlanFlags = {
  model: '124M',
  batch: 1,
  gpuMemory: 24 * GIB,
  hostMemory: 64 * GIB,
  nvmeRate: 2,
  tp: 1,
  pp: 1,
  gpus: 4,
  nodes: 1,
  cores: 16,
  link: 50,
  precision: 'bf16',
};
const predict = (config: object, more: object = {}) => {
  const file = join(home, 'ds_config.json');
  writeFileSync(file, JSON.stringify(config));
  return plan({ ...flags, config: file, ...more });
};

test("prints the plan's values for every candidate", () => {
  const machine = { nvmeSpace: 64 * GIB, json: true } as const;
  const weighed = JSON.parse(plan({ ...flags, ...machine, tp: 2, pp: 2 }).output);
  expect(weighed.candidates.length).toBeGreaterThan(100);
  // A sample of candidates, from the fastest to ones that do not fit.
  const some = weighed.candidates.filter((_: unknown, i: number) => i % 4 === 0);
  for (const { config, ...one } of some) {
    const { checkpointing } = one.setup;
    const { fits, output } = predict(config, { ...machine, checkpointing });
    const { candidates } = JSON.parse(output);
    const [got] = candidates;
    // With one rank there is no communication to overlap.
    const { overlap } = got.setup;
    expect(one.setup.ranks === 1 || overlap).toBe(true);
    expect(got).toEqual({ ...one, setup: { ...one.setup, overlap } });
    expect([fits, candidates.length]).toEqual([one.fits, 1]);
  }
});

test('prints whether it fits, the bytes by part and the time', () => {
  const config = {
    train_micro_batch_size_per_gpu: 4,
    bf16: { enabled: true },
    optimizer: { type: 'AdamW', params: { lr: 1e-4 } },
    zero_optimization: { stage: 2 },
  };
  const { fits, output } = predict(config);
  expect(fits).toBe(true);
  expect(output).toMatch(
    /^ +GPU +host +step +tokens\/s +way\nfits .*stage 2, micro-batch 4\n\nFits: /,
  );
  expect(output).toMatch(/\nEach GPU: weights 0\.2 GiB, gradients/);
  const none = predict(config, { gpuMemory: GIB });
  expect(none.fits).toBe(false);
  expect(none.output).toMatch(/Does not fit: it needs \d\.\d GiB of the 1\.0 GiB of each GPU\./);
});

test('weighs what "auto" leaves open', () => {
  const zero_optimization = { stage: 'auto', offload_optimizer: 'auto' };
  const optimizer = { type: 'AdamW', params: { lr: 1e-4 } };
  const config = { train_micro_batch_size_per_gpu: 1, optimizer, zero_optimization };
  const { best, candidates } = JSON.parse(predict(config, { json: true }).output);
  expect(candidates.length).toBeGreaterThan(4);
  expect(candidates).toContainEqual(best);
});

test('counts all ranks of a machine if several groups have a state each', () => {
  const zero = { stage: 3, offload_optimizer: { device: 'cpu' } };
  const config = { train_micro_batch_size_per_gpu: 1, bf16: { enabled: true } };
  const weighShards = (mics_shard_size: number) =>
    JSON.parse(
      predict({ ...config, zero_optimization: { ...zero, mics_shard_size } }, { json: true })
        .output,
    ).best;
  const [whole, halves] = [weighShards(4), weighShards(2)];
  expect(halves.setup).toMatchObject({ ranks: 2, copies: 2 });
  expect(halves.host).toBeGreaterThan(1.3 * whole.host);
});

test('weights on a disk need its space, and reading them takes time', () => {
  const offload_param = { device: 'nvme', nvme_path: home, max_in_cpu: 0, buffer_count: 2 };
  const zero = (param: object) => ({
    train_micro_batch_size_per_gpu: 1,
    bf16: { enabled: true },
    zero_optimization: { stage: 3, offload_param: param },
  });
  const best = (param: object, nvmeSpace = 64 * GIB) => {
    const { output } = predict(zero(param), { json: true, nvmeSpace });
    return JSON.parse(output).candidates[0];
  };
  const [memory, disk] = [best({ device: 'cpu' }), best(offload_param)];
  expect(disk.disk).toBeGreaterThan(0.2 * GIB);
  expect(disk.host).toBeLessThan(memory.host);
  expect(disk.time.step).toBeGreaterThan(memory.time.step);
  expect([disk.fits, best(offload_param, 0.1 * GIB).fits]).toEqual([true, false]);
  expect(predict(zero(offload_param), { nvmeSpace: GIB }).output).toContain('weights on disk');
});

test('refuses unsupported values', () => {
  const config = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'Lamb' } };
  expect(() => predict(config)).toThrow(/optimizer.type: expected AdamW, Adam, .*got Lamb/);
  const cut = { ...config, tensor_parallel: { autotp_size: 3 } };
  expect(() => predict(cut)).toThrow(/plan --gpus: expected a multiple of 3,.*got 4/);
  expect(() => predict({ train_micro_batch_size_per_gpu: 0 })).toThrow(
    /train_micro_batch_size_per_gpu: expected .*got 0/,
  );
  const staged = { train_micro_batch_size_per_gpu: 1, pipeline: { stages: 2 } };
  expect(() => predict({ ...staged, zero_optimization: { stage: 2 } })).toThrow(
    /zero_optimization.stage: expected 0 or 1 with pipeline.stages, got 2/,
  );
  expect(() => predict({ ...staged, pipeline: { stages: 16 } }, { gpus: 16 })).toThrow(
    /pipeline.stages: expected at most 12, the number of layers, got 16/,
  );
  expect(() => plan({ ...flags, checkpointing: true })).toThrow(
    /--checkpointing: expected --config/,
  );
});

test('fills "auto" of a file for Hugging Face\'s Trainer from --batch and --precision', () => {
  const config = {
    train_batch_size: 'auto',
    train_micro_batch_size_per_gpu: 'auto',
    gradient_accumulation_steps: 'auto',
    gradient_clipping: 'auto',
    bf16: { enabled: 'auto' },
    optimizer: {
      type: 'AdamW',
      params: { lr: 'auto', betas: 'auto', eps: 'auto', weight_decay: 'auto' },
    },
    scheduler: {
      type: 'WarmupDecayLR',
      params: {
        warmup_min_lr: 'auto',
        warmup_max_lr: 'auto',
        warmup_num_steps: 'auto',
        total_num_steps: 'auto',
      },
    },
    zero_optimization: {
      stage: 3,
      reduce_bucket_size: 'auto',
      stage3_prefetch_bucket_size: 'auto',
    },
  };
  const predictSetup = (more: object) =>
    JSON.parse(predict(config, { json: true, ...more }).output).best.setup;
  expect(predictSetup({ batch: 4 })).toMatchObject({ stage: 3, microBatch: 4, accumulation: 1 });
  const bytes = (precision: string) => predict(config, { precision }).output;
  expect(bytes('fp32')).not.toBe(bytes('bf16'));
});
