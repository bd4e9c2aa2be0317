// Tests "auto" as the Trainer of Hugging Face fills it, and its errors, on ds_config files of
// public repositories.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  type AutoSources,
  checkConfig,
  type DsConfig,
  resolveConfig,
} from '../../lib/config/index.js';
import wild from '../golden/auto-in-the-wild.json';

type Keys = Partial<Record<string, unknown>>;
type File = { repository: string; keys: Keys; differ: string[]; refused?: string[] };
type Training = Omit<NonNullable<AutoSources['training']>, 'sequenceLength' | 'fp8' | 'fp8Recipe'>;

const files = wild.files as unknown as File[];
const HIDDEN = 768;

/** The defaults of TrainingArguments. */
const DEFAULTS: Required<Training> = {
  lr: 5e-5,
  minLr: 0,
  betas: [0.9, 0.999],
  eps: 1e-8,
  weightDecay: 0,
  warmupSteps: 0,
  totalSteps: 1000,
  maxGradNorm: 1,
  perDeviceBatchSize: 8,
  accumulationSteps: 1,
  fp16: false,
  bf16: false,
};

/** Sections of dotted keys. */
function nestKeys(keys: Keys): DsConfig {
  const config: Record<string, unknown> = {};
  for (const [path, value] of Object.entries(keys)) {
    const parts = path.split('.');
    const last = parts.pop() as string;
    let section = config;
    for (const part of parts) {
      section[part] ??= {};
      section = section[part] as Record<string, unknown>;
    }
    section[last] = value;
  }
  return config as DsConfig;
}

/** `config`'s value at a dotted path. */
function at(config: unknown, path: string): unknown {
  const keys = path.replace('bfloat16', 'bf16').split('.');
  return keys.reduce<unknown>((section, key) => (section as Keys)[key], config);
}

/** Training arguments for this file: its own values, and different ones for other keys. */
function argumentsFor(keys: Keys): { training: Required<Training>; worldSize: number } {
  const valueOr = <Value>(path: string, otherwise: Value): Value => {
    const value = keys[path];
    return value === undefined || value === 'auto' ? otherwise : (value as Value);
  };
  const total = valueOr('train_batch_size', 0);
  const steps = valueOr('gradient_accumulation_steps', total > 0 ? 1 : 3);
  const samples = valueOr('train_micro_batch_size_per_gpu', 2);
  const isOpen = keys.gradient_accumulation_steps === 'auto';
  const worldSize = total === 0 || isOpen ? 2 : Math.max(1, total / samples / steps);
  const training = {
    lr: valueOr('optimizer.params.lr', valueOr('scheduler.params.warmup_max_lr', 3e-4)),
    minLr: 0,
    betas: valueOr<readonly [number, number]>('optimizer.params.betas', [0.8, 0.98]),
    eps: valueOr('optimizer.params.eps', 1e-7),
    weightDecay: valueOr('optimizer.params.weight_decay', 0.2),
    warmupSteps: valueOr('scheduler.params.warmup_num_steps', 30),
    totalSteps: valueOr('scheduler.params.total_num_steps', 900),
    maxGradNorm: valueOr('gradient_clipping', 0.7),
    perDeviceBatchSize: samples,
    accumulationSteps: total > 0 && isOpen ? total / samples / worldSize : steps,
    fp16: valueOr('fp16.enabled', false),
    bf16: valueOr('bf16.enabled', keys['fp16.enabled'] !== true),
  };
  return { training, worldSize: Math.round(worldSize) };
}

/** The table in integrations/deepspeed.py of Transformers, with its names. */
function table(training: Required<Training>, worldSize: number, stage: unknown): Keys {
  const samples = training.perDeviceBatchSize;
  const sizes = {
    'zero_optimization.stage3_prefetch_bucket_size': Math.floor(0.9 * HIDDEN * HIDDEN),
    'zero_optimization.stage3_param_persistence_threshold': 10 * HIDDEN,
  };
  return {
    train_micro_batch_size_per_gpu: samples,
    gradient_accumulation_steps: training.accumulationSteps,
    train_batch_size: worldSize * samples * training.accumulationSteps,
    gradient_clipping: training.maxGradNorm,
    'optimizer.params.lr': training.lr,
    'optimizer.params.betas': training.betas,
    'optimizer.params.eps': training.eps,
    'optimizer.params.weight_decay': training.weightDecay,
    'scheduler.params.warmup_min_lr': 0,
    'scheduler.params.warmup_max_lr': training.lr,
    'scheduler.params.warmup_num_steps': training.warmupSteps,
    'scheduler.params.total_num_steps': training.totalSteps,
    'fp16.enabled': training.fp16,
    'bf16.enabled': training.bf16,
    'bfloat16.enabled': training.bf16,
    'zero_optimization.reduce_bucket_size': HIDDEN * HIDDEN,
    ...(stage === 3 ? sizes : {}),
    // The Trainer does not fill these; DeepSpeed uses its defaults.
    'zero_optimization.sub_group_size': 1e9,
    'zero_optimization.allgather_bucket_size': 5e8,
  };
}

function check(keys: Keys, training: Training, worldSize: number) {
  const auto = { model: { hiddenSize: HIDDEN }, training, mustMatch: true };
  return checkConfig(nestKeys(keys), { worldSize, auto });
}

const isMismatch = ({ expected }: { expected: string }) =>
  expected === 'the values of the training options';

test('the collection has many files with "auto"', () => {
  const auto = files.filter(({ keys }) => Object.values(keys).includes('auto'));
  expect(auto.length).toBeGreaterThanOrEqual(30);
});

test.each(files)('$repository resolves as in the table', ({ keys, refused }) => {
  const { training, worldSize } = argumentsFor(keys);
  const { config, errors } = check(keys, training, worldSize);
  expect(errors.map(({ path }) => path)).toEqual(refused ?? []);
  if (refused) return;
  const filled = table(training, worldSize, keys['zero_optimization.stage']);
  for (const [path, value] of Object.entries(keys)) {
    const expectedValue = value === 'auto' ? filled[path] : value;
    const expected =
      typeof value === 'string' && value !== 'auto' ? String(expectedValue) : expectedValue;
    const got = at(config, path);
    expect([path, typeof expected === 'string' ? String(got) : got]).toEqual([path, expected]);
  }
  expect(config).toMatchObject({
    train_micro_batch_size_per_gpu: training.perDeviceBatchSize,
    gradient_accumulation_steps: training.accumulationSteps,
  });
});

test.each(files)(
  '$repository beside the default arguments: one error with all that differ',
  (file) => {
    const { errors } = check(file.keys, DEFAULTS, 2);
    const mismatches = errors.filter(isMismatch);
    expect(mismatches).toHaveLength(file.differ.length > 0 ? 1 : 0);
    const lines =
      mismatches[0]?.got
        .replace(/^(a different value: |\d+ different values:\n {2})/, '')
        .split('\n  ') ?? [];
    expect(lines.map((line) => line.split(':')[0]).toSorted()).toEqual(file.differ.toSorted());
  },
);

describe('a configuration that must match', () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'ds-match-'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  test('errors name the file, the place, both spellings of the argument, and the value', () => {
    const file = join(folder, 'ds_config.json');
    writeFileSync(
      file,
      `{
  "train_batch_size": 64,
  "gradient_accumulation_steps": "4",
  "optimizer": {
    "type": "AdamW",
    "params": { "lr": "auto", "betas": [0.9, 0.95], "weight_decay": 0 }
  },
  "scheduler": { "type": "WarmupLR", "params": { "warmup_min_lr": 1e-7, "warmup_max_lr": 1e-3 } },
  "bfloat16": { "enabled": true }
}`,
    );
    const auto = { training: DEFAULTS, mustMatch: true };
    expect(() => resolveConfig(file, { worldSize: 2, auto })).toThrow(
      expect.objectContaining({
        code: 'DS_CONFIG',
        op: `${file}:2:3: train_batch_size`,
        expected: 'the values of the training options',
        got:
          '5 different values:\n  ' +
          'train_batch_size at 2:3: expected 16 (batchSize x accumulation x world size, --per_device_train_batch_size x --gradient_accumulation_steps x world size), got 64\n  ' +
          'gradient_accumulation_steps at 3:3: expected 1 (accumulation, --gradient_accumulation_steps), got "4"\n  ' +
          'optimizer.params.betas at 6:31: expected [0.9, 0.999] (betas, --adam_beta1 and --adam_beta2), got [0.9, 0.95]\n  ' +
          'scheduler.params.warmup_max_lr at 8:73: expected 0.00005 (lr, --learning_rate), got 0.001\n  ' +
          'bfloat16.enabled at 9:17: expected false (precision, --bf16), got true',
        hint: 'Write "auto" for these keys, or set the same values in both.',
      }),
    );
    expect(() => resolveConfig(file, { worldSize: 2, auto: { training: DEFAULTS } })).not.toThrow();
  });

  test('fills missing batch sizes, clipping and an enabled precision from the training', () => {
    const training = { ...DEFAULTS, bf16: true, accumulationSteps: 4 };
    const { config, errors, origins } = check({ 'fp16.loss_scale': 0 }, training, 2);
    expect(errors).toEqual([]);
    expect(config).toMatchObject({
      train_batch_size: 64,
      train_micro_batch_size_per_gpu: 8,
      gradient_accumulation_steps: 4,
      gradient_clipping: 1,
      bf16: { enabled: true },
      fp16: { enabled: false },
    });
    expect(origins?.gradient_clipping).toEqual({ from: 'auto', of: 'training.maxGradNorm' });
  });

  test('compares only the given values of the training', () => {
    const keys = { 'optimizer.type': 'AdamW', 'optimizer.params.lr': 1, train_batch_size: 6 };
    const { config } = check(keys, { eps: 1e-8, perDeviceBatchSize: 3 }, 2);
    expect(config).toMatchObject({ train_batch_size: 6, optimizer: { params: { lr: 1 } } });
    expect(check({ train_batch_size: 6 }, { accumulationSteps: 3 }, 2).errors).toEqual([]);
  });
});

test.each([0, 1, 2, 3])('"auto" keys of stage 3, at stage %i', (stage) => {
  const keys = {
    train_micro_batch_size_per_gpu: 1,
    'zero_optimization.stage': stage,
    'zero_optimization.stage3_prefetch_bucket_size': 'auto',
    'zero_optimization.stage3_param_persistence_threshold': 'auto',
  };
  const { config } = check(keys, {}, 2);
  expect(config?.zero_optimization).toMatchObject({
    stage3_prefetch_bucket_size: stage === 3 ? Math.floor(0.9 * HIDDEN * HIDDEN) : 5e7,
    stage3_param_persistence_threshold: stage === 3 ? 10 * HIDDEN : 1e5,
  });
});

test('"auto" of apex is off', () => {
  const { errors } = check({ train_batch_size: 2, 'amp.enabled': 'auto' }, {}, 2);
  expect(errors).toEqual([]);
});
