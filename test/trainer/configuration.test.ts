// Tests a Trainer with a ds_config.json: which value wins, the values of "auto", and the notices.
import { Trainer, type TrainerOptions } from '../../lib/index.js';
import type { OwnSchedule } from '../../lib/trainer/own-schedule.js';
import {
  destroyTrainers,
  noteTrainer,
  samples,
  tinyModel,
  tinyTrainer,
  type Window,
} from './tiny.js';

type Options = Partial<TrainerOptions<Window>>;

afterEach(destroyTrainers);

test('values of the file win, "auto" is filled, and differences from options are one error', async () => {
  const deepspeed = {
    train_micro_batch_size_per_gpu: 5,
    gradient_accumulation_steps: 'auto',
    gradient_clipping: 0.5,
    optimizer: { type: 'AdamW', params: { lr: 0.25, weight_decay: 'auto' } },
    scheduler: {
      type: 'WarmupDecayLR',
      params: { total_num_steps: 'auto', warmup_num_steps: 'auto', warmup_max_lr: 'auto' },
    },
    bf16: { enabled: 'auto' },
  } as const;
  const options = { model: tinyModel(), train: samples(20), device: 'cpu', progress: false };
  const localTrainer = noteTrainer(
    new Trainer({
      ...options,
      deepspeed,
      warmup: 0.5,
      weightDecay: 0.1,
      stopSignals: [],
    }),
  );
  const { config } = await localTrainer.engine();
  expect(config).toMatchObject({
    train_batch_size: 5,
    gradient_clipping: 0.5,
    gradient_accumulation_steps: 1,
    optimizer: { params: { lr: 0.25, weight_decay: 0.1 } },
    scheduler: { params: { total_num_steps: 12, warmup_num_steps: 6, warmup_max_lr: 0.25 } },
    bf16: { enabled: false },
  });
  const other = tinyTrainer({ deepspeed, batchSize: 2, lr: 1e-3, maxGradNorm: 1 });
  const error = await other.train().then(
    () => null,
    (failure: unknown) => failure as Error,
  );
  expect(error).toMatchObject({ code: 'DS_CONFIG' });
  for (const key of ['per_gpu', 'gradient_clipping', 'optimizer.params.lr']) {
    expect(error?.message).toContain(key);
  }
});

test('numbers of the file that are written as strings fill "auto" as numbers', async () => {
  const params = { warmup_max_lr: 'auto', warmup_num_steps: '3', total_num_steps: 'auto' };
  const deepspeed = {
    train_batch_size: 'auto',
    train_micro_batch_size_per_gpu: '5',
    gradient_accumulation_steps: '2',
    gradient_clipping: '0.5',
    optimizer: { type: 'adamw', params: { lr: '1e-3', eps: '1e-6', weight_decay: '0.1' } },
    scheduler: { type: 'WarmupDecayLR', params },
  } as unknown as Options['deepspeed'];
  const options = { train: samples(20), batchSize: undefined, lr: undefined, epochs: 3 };
  const { config } = await tinyTrainer({ ...options, deepspeed }).engine();
  expect(config).toMatchObject({
    train_batch_size: 10,
    gradient_accumulation_steps: 2,
    gradient_clipping: 0.5,
    optimizer: { params: { lr: 1e-3, eps: 1e-6, weight_decay: 0.1 } },
    scheduler: { params: { warmup_max_lr: 1e-3, warmup_num_steps: 3, total_num_steps: 6 } },
  });
});

test.each<[Options['schedule'], string, number]>([
  ['cosine', 'WarmupDecayLR', 1],
  [{ type: 'cosine', minLr: 1e-5 }, 'WarmupLR', 1],
  ['linear', 'WarmupDecayLR', 0], // The same schedule by the name of transformers.
  ['constant_with_warmup', 'WarmupLR', 0],
  [undefined, 'WarmupDecayLR', 0],
])('schedule %j beside %s of the configuration: %i notices', async (schedule, type, notices) => {
  const spy = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  const params = { warmup_num_steps: 'auto', warmup_max_lr: 'auto' };
  const total = type === 'WarmupDecayLR' ? { total_num_steps: 'auto' } : {};
  const scheduler = { type, params: { ...params, ...total } };
  const deepspeed = { train_micro_batch_size_per_gpu: 'auto', scheduler } as Options['deepspeed'];
  const { lrScheduler } = await tinyTrainer({ deepspeed, schedule }).engine();
  const reported = spy.mock.calls.map(([text]) => String(text));
  spy.mockRestore();
  expect(lrScheduler.schedules[0]?.name).toBe(type);
  expect(reported).toHaveLength(notices);
  for (const text of reported) {
    expect(text).toContain(`${type}, drives the rate: schedule "cosine" (--lr_scheduler_type) has`);
  }
});

test.each<[Options, string | null]>([
  [{ schedule: 'constant', warmup: 0.5 }, '0.5 (--warmup_steps, --warmup_ratio) has no effect'],
  [{ schedule: 'constant' }, null],
  [{ schedule: 'constant_with_warmup', warmup: 2 }, null],
])('%j and its notice', async (options, expected) => {
  const spy = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  const engine = await tinyTrainer(options).engine();
  const reported = spy.mock.calls.map(([text]) => String(text));
  spy.mockRestore();
  expect(reported).toEqual(expected ? [expect.stringContaining(expected)] : []);
  expect(engine.getLr()[0]).toBe(options.warmup === 2 ? 0 : 3e-3);
});

test('minLrRate is a share of the learning rate in the configuration', async () => {
  const optimizer = { type: 'AdamW', params: { lr: 1e-3 } };
  const deepspeed = { train_micro_batch_size_per_gpu: 'auto', optimizer } as Options['deepspeed'];
  const schedule = { type: 'cosine_with_min_lr', minLrRate: 0.1 } as const;
  const { lrScheduler } = await tinyTrainer({ deepspeed, schedule, lr: undefined }).engine();
  const localOwnSchedule = lrScheduler.schedules[0] as unknown as OwnSchedule;
  expect(localOwnSchedule.lr(1e6)).toBeCloseTo(1e-4, 12);
});

test('an optimizer by name is used if the file has none', async () => {
  const named = tinyTrainer({ optimizer: 'AdamW8bit' });
  const { optimizer: built } = await named.engine();
  expect(built).toMatchObject({ name: 'AdamW8bit' });
  const optimizer = (type: string) => ({ deepspeed: { optimizer: { type } } }) as Options;
  const same = tinyTrainer({ optimizer: 'AdamW8bit', ...optimizer('AdamW8bit') });
  await same.engine();
  const other = tinyTrainer({ optimizer: 'AdamW8bit', ...optimizer('Adam') });
  await expect(other.engine()).rejects.toThrow(
    /Trainer optimizer: expected "Adam", the optimizer.type of the configuration, got "AdamW8bit"/,
  );
  expect(() => tinyTrainer({ optimizer: 'AdamW4bit' as never })).toThrow(/"AdamW", "AdamW8bit"/);
});
