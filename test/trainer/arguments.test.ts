// Tests the arguments of `ds train`: spellings of transformers, argument files, their meaning for a
// Trainer, and errors.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { ALIASES, ARGUMENTS } from '../../lib/trainer/command/arguments.js';
import { NO_EFFECT, REFUSED } from '../../lib/trainer/command/foreign-arguments.js';
import { readArguments } from '../../lib/trainer/command/read-arguments.js';
import { readTextOptions } from '../../lib/trainer/command/text-part.js';
import { readTrainerPart } from '../../lib/trainer/command/trainer-options.js';

/** Splits words at spaces, like a shell. */
const read = (line: string) => readArguments(line.split(' ').filter(Boolean));

async function part(line: string) {
  return readTrainerPart((await read(line)).args, 'out');
}

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-arguments-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

function file(text: string, name = 'run.yaml'): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

describe('spellings', () => {
  test.each<[line: string, args: object]>([
    ['--learning_rate 1e-5', { learning_rate: 1e-5 }],
    ['--learning-rate 1e-5', { learning_rate: 1e-5 }],
    ['--learning-rate=1e-5', { learning_rate: 1e-5 }],
    ['--max_steps -1', { max_steps: -1 }],
    ['--bf16', { bf16: true }],
    ['--bf16 False', { bf16: false }],
    ['--bf16=yes --packing no', { bf16: true, packing: false }],
    ['--no_bf16 --no-packing', { bf16: false, packing: false }],
    ['--lora --lora_r 4', { use_peft: true, r: 4 }],
    ['--lr 1e-5 --epochs 2', { learning_rate: 1e-5, num_train_epochs: 2 }],
    ['--batch_size 4 --num-epochs 1', { per_device_train_batch_size: 4, num_train_epochs: 1 }],
    ['--lora --lora_rank 16', { use_peft: true, r: 16 }],
    ['--lora --use_dora', { use_peft: true, use_dora: true }],
    ['--model a --data b c --output d', modelDataOutput()],
    ['--target_modules q_proj v_proj --bf16', { target_modules: ['q_proj', 'v_proj'], bf16: true }],
    ['--layers_to_transform 0 2', { layers_to_transform: [0, 2] }],
    ['--lr_scheduler_kwargs {"min_lr":0.5}', { lr_scheduler_kwargs: { min_lr: 0.5 } }],
    ['--deepspeed ds.json', { deepspeed: 'ds.json' }],
    ['--deepspeed {"train_batch_size":2}', { deepspeed: { train_batch_size: 2 } }],
    ['--resume_from_checkpoint', { resume_from_checkpoint: true }],
    ['--resume_from_checkpoint a/checkpoint-3', { resume_from_checkpoint: 'a/checkpoint-3' }],
    ['--seed 1 --seed 2', { seed: 2 }],
    [
      '--data_path a --eval_data_path b --model_max_length 8 --use_lora --q_lora true',
      {
        train_file: ['a'],
        validation_file: ['b'],
        max_length: 8,
        use_peft: true,
        load_in_4bit: true,
      },
    ],
    ['--no_sample', { sample: false }],
  ])('%s', async (line, args) => {
    expect(await read(line)).toEqual({ args, notices: [] });
  });

  function modelDataOutput(): object {
    return { model_name_or_path: 'a', train_file: ['b', 'c'], output_dir: 'd' };
  }

  test('names are in one table each, and aliases lead to arguments', () => {
    const tables = [ARGUMENTS, ALIASES, NO_EFFECT, REFUSED].map((table) => Object.keys(table));
    const names = tables.flat();
    expect(names.toSorted()).toEqual([...new Set(names)].toSorted());
    for (const name of Object.values(ALIASES)) expect(ARGUMENTS).toHaveProperty(name);
  });
});

describe('files', () => {
  test('have the same names and values; the command line wins', async () => {
    const path = file(`
# of a recipe
model-name-or-path: models/tiny
learning_rate: 2e-5
packing: true
fp16: no
target_modules: [q_proj, v_proj]
layers_to_transform: [0, 1]
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs: { min_lr_rate: 0.1 }
train_file: rows.jsonl
run_name:
max_seq_length: null
num_train_epochs: 3.0
`);
    const { args } = await read(`--learning_rate 1e-4 --config ${path} --data other.jsonl`);
    expect(args).toEqual({
      model_name_or_path: 'models/tiny',
      learning_rate: 1e-4,
      packing: true,
      fp16: false,
      target_modules: ['q_proj', 'v_proj'],
      layers_to_transform: [0, 1],
      lr_scheduler_type: 'cosine_with_min_lr',
      lr_scheduler_kwargs: { min_lr_rate: 0.1 },
      train_file: ['other.jsonl'],
      num_train_epochs: 3,
    });
  });

  test('may be JSON', async () => {
    const path = file('{ "seed": 3,\n "deepspeed": { "bf16": { "enabled": true } } }', 'run.json');
    const { args } = await read(`--config ${path}`);
    expect(args).toEqual({ seed: 3, deepspeed: { bf16: { enabled: true } } });
    // Python's YAML reads these as true and false.
    const switches = file('packing: on\nstreaming: off\npush_to_hub: off\n', 'switches.yaml');
    const { args: switched } = await readArguments(['--config', switches]);
    expect(switched).toEqual({ packing: true, streaming: false });
  });

  test.each([
    [
      'seed: 1\nlearning_rte: 1e-5\n',
      /run\.yaml:2:1: learning_rte: .*Did you mean --learning_rate/,
    ],
    [
      'max_length: null\n',
      /run\.yaml:1:1: max_length: expected a number .*, got null\. The model's/,
    ],
    ['seed: 1\nmax-length:\n', /run\.yaml:2:1: max-length: .*, got null/],
    ['seed: one\n', /run\.yaml:1:1: seed: expected a whole number, got "one"/],
    ['seed: [1\n', /run\.yaml:2:1: expected YAML/],
    ['- seed\n', /run\.yaml: expected names and values.*got a list/],
    ['', /run\.yaml: expected names and values.*got an empty file/],
    ['label_smoothing_factor: 1\n', /1:1: label_smoothing_factor: expected .* below 1, got 1/],
    ['seed: { a: 1 }\n', /seed: expected a whole number, got \{"a":1\}/],
    [
      'bf16: auto\nlearning_rte: 1\nseed: one\n',
      /^ds train: .* got 3 errors:\n .*:2:1: learning_rte: .*unknown\. Did .*\n .*:1:1: bf16: expected .*\n .*:3:1: seed: .*\nds train --help/,
    ],
    ['bf16: auto\n', /bf16: expected true or false, got "auto"\. Leave it out: the DeepSpeed/],
    ['packing: [true]\n', /packing: expected true or false, got \[true\]/],
  ])('%j is refused with its place', async (text, message) => {
    await expect(read(`--config ${file(text)}`)).rejects.toThrow(message);
  });

  test('that are not there are DS_IO', async () => {
    const absent = read(`--config ${join(folder, 'absent.yaml')}`);
    await expect(absent).rejects.toMatchObject({ code: 'DS_IO' });
  });
});

describe('refused', () => {
  test.each([
    ['--constructor 1', /--constructor: .*got "constructor", which is unknown/],
    ['--toString', /--toString: .*which is unknown/],
    ['--learnin_rate 1', /--learnin_rate: .*unknown. Did you mean --learning_rate\?/],
    ['--zzz', /ds train --help lists them/],
    [
      '--zzz 1 --sed 2 --seed 3 --yyy',
      /^ds train: .* got 3 errors:\n {2}--zzz: .*\n {2}--sed: .* Did you mean --seed\?\n {2}--yyy: /,
    ],
    ['rows.jsonl', /ds train: expected arguments such as --model DIR, got "rows\.jsonl"/],
    ['-m x', /got "-m"/],
    ['--seed', /--seed: expected a whole number, got nothing/],
    ['--seed 1 2', /--seed: expected a whole number, got "1" "2"/],
    ['--seed 1.5', /expected a whole number, got "1.5"/],
    ['--learning_rate abc', /expected a number, got "abc"/],
    ['--bf16 maybe', /--bf16: expected true or false, got "maybe"/],
    ['--target_modules', /--target_modules: expected one word or several/],
    ['--lr_scheduler_kwargs [1]', /expected an object as JSON, got "\[1\]"/],
    ['--lr_scheduler_kwargs {', /expected an object as JSON, got "\{"/],
  ])('%s', async (line, message) => {
    await expect(read(line)).rejects.toMatchObject({ code: 'DS_ARGUMENT' });
    await expect(read(line)).rejects.toThrow(message);
  });

  test('unsupported arguments of transformers: all in one error, with the reasons', async () => {
    const line = '--push_to_hub --auto_find_batch_size true --fsdp full_shard --learning_rate 1';
    await expect(read(line)).rejects.toThrow(
      /3 errors:\n {2}--push_to_hub: .*\(uploads are not supported.*\)\. Remove it\.\n {2}--auto_find_batch_size: .*\n {2}--fsdp: .*\(set ZeRO stage 3.*\)/,
    );
  });

  test.each(['--push_to_hub false', '--fsdp=', '--average_tokens_across_devices'])(
    'the default value of %s is accepted',
    async (line) => {
      const { args } = await read(
        line === '--average_tokens_across_devices' ? `${line} true` : line,
      );
      expect(args).toEqual({});
    },
  );

  test('names of transformers 5.18 without effect are accepted', async () => {
    const ofTrackio = '--trackio_bucket_id a --trackio_static_space_id b';
    const ofLoaders = '--dataloader_multiprocessing_context fork --dataloader_in_order false';
    const { notices } = await read(`${ofTrackio} ${ofLoaders} --ddp_static_graph`);
    expect(notices).toHaveLength(5);
  });

  test('arguments without effect are reported', async () => {
    const { args, notices } = await read('--torch-compile --ddp_timeout 1800 --seed 1');
    expect(args).toEqual({ seed: 1 });
    expect(notices).toEqual([
      '--torch-compile has no effect: kernels are fused always.',
      '--ddp_timeout has no effect: the configuration sets the parallelism.',
    ]);
  });
});

test('the error explains a name of transformers', async () => {
  const { args, notices } = await read('--block_size 64');
  expect(args).toEqual({ max_length: 64 });
  expect(notices).toEqual([
    expect.stringMatching(/^--block_size is --max_length: each row is cut/),
  ]);
});

describe('as options of a Trainer', () => {
  /** Removes undefined values. */
  const toPlain = (options: object): object => JSON.parse(JSON.stringify(options));

  test('the page of a run: at a port, at the usual port, or no recording', async () => {
    const watch = async (words: string) => (await part(words)).options.watch;
    expect(await watch('--watch 8080')).toEqual({ dir: 'out', port: 8080 });
    expect(await watch('--watch 0')).toEqual({ dir: 'out', port: 0 });
    expect(await watch('--watch')).toEqual({ dir: 'out', port: undefined });
    expect(await watch('--no_watch')).toBe(false);
    await expect(watch('--watch 70000')).rejects.toThrow(/--watch: expected a port/);
    await expect(watch('--watch here')).rejects.toThrow(/--watch: expected a whole number/);
  });

  test('omitted arguments keep the defaults', async () => {
    const { options, evaluation } = await part('');
    const watch = { dir: 'out', port: null };
    expect(toPlain(options)).toEqual({
      data: {},
      log: {},
      save: { dir: 'out' },
      report: [],
      watch,
    });
    expect(evaluation).toBeNull();
  });

  test.each<[line: string, options: object]>([
    ['--num_train_epochs 0.5 --max_steps -1', { epochs: 0.5 }],
    ['--max_steps 7', { maxSteps: 7 }],
    ['--per_device_train_batch_size 2 --gradient_accumulation_steps 4', sizes(2, 4)],
    ['--learning_rate 1e-3 --weight_decay 0.1', { lr: 1e-3, weightDecay: 0.1 }],
    ['--adam_beta2 0.95 --adam_epsilon 1e-6', { betas: [0.9, 0.95], eps: 1e-6 }],
    ['--max_grad_norm 0', { maxGradNorm: 0 }],
    ['--warmup_ratio 0.03', { warmup: 0.03 }],
    ['--warmup_steps 10 --warmup_ratio 0.03', { warmup: 10 }],
    ['--warmup_steps 0 --warmup_ratio 0.03', { warmup: 0.03 }],
    ['--bf16', { precision: 'bf16' }],
    ['--fp16_full_eval --deepspeed ds.json', { precision: 'fp16' }],
    ['--bf16 --bf16_full_eval', { precision: 'bf16' }],
    ['--bf16_full_eval false --fp16 false', { precision: 'fp32' }],
    ['--bf16 false', { precision: 'fp32' }],
    ['--lr_scheduler_type cosine', { schedule: 'cosine' }],
    [
      '--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs {"min_lr_rate":0.1} --learning_rate 1e-3',
      { schedule: { type: 'cosine_with_min_lr', minLrRate: 0.1 } },
    ],
    [
      '--lr_scheduler_type warmup_stable_decay --lr_scheduler_kwargs {"decay_type":"1-sqrt","num_stable_steps":3,"min_lr_ratio":0.1}',
      {
        schedule: {
          type: 'warmup_stable_decay',
          decayType: '1-sqrt',
          stable: 3,
          minLrRate: 0.1,
        },
      },
    ],
    [
      '--lr_scheduler_type cosine_warmup_with_min_lr --lr_scheduler_kwargs {"warmup_lr_rate":0.1,"min_lr":0}',
      { schedule: { type: 'cosine_warmup_with_min_lr', warmupLrRate: 0.1, minLr: 0 } },
    ],
    ['--max_length 512', { data: { sequenceLength: 512 } }],
    ['--group_by_length --data_seed 3', { data: { sampling: 'group_by_length', seed: 3 } }],
    ['--train_sampling_strategy sequential', { data: { sampling: 'sequential' } }],
    ['--streaming --train_sampling_strategy sequential --dataloader_drop_last', { data: {} }],
    ['--logging_steps 5 --logging_first_step', { log: { every: 5, first: true } }],
    ['--logging_strategy epoch', { log: { every: 'epoch' } }],
    ['--logging_strategy no', { log: { every: Number.MAX_SAFE_INTEGER } }],
    [
      '--save_strategy epoch --save_total_limit 2',
      { save: { dir: 'out', every: 'epoch', keep: 2 } },
    ],
    ['--report_to tensorboard csv', { report: ['tensorboard', 'csv'] }],
    ['--report_to none', { report: [] }],
    ['--report_to all --disable_tqdm', { report: ['tensorboard'], progress: false }],
    ['--use_cpu', { device: 'cpu' }],
    ['--optim paged_adamw_32bit --learning_rate 1e-4', { lr: 1e-4 }],
    ['--optim adamw_8bit', { optimizer: 'AdamW8bit' }],
    ['--optim paged_adamw_8bit', { optimizer: 'AdamW8bit' }],
    ['--load_best_model_at_end --eval_data e', { save: { best: { metric: 'loss', load: true } } }],
    [
      '--early_stopping_patience 2 --metric_for_best_model eval_loss --eval_data e',
      { earlyStop: { patience: 2 }, save: { best: { metric: 'eval_loss', load: false } } },
    ],
  ])('%s', async (line, options) => {
    expect(toPlain((await part(line)).options)).toMatchObject(options);
  });

  function sizes(batchSize: number, accumulation: number): object {
    return { batchSize, accumulation };
  }

  test('saving can be left out', async () => {
    for (const line of ['', '--metric_for_best_model loss']) {
      expect((await part(`${line} --save_strategy no`)).options.save).toBeUndefined();
    }
  });

  test.each<[line: string, evaluation: object | null]>([
    ['--eval_data e', {}],
    ['--eval_data e --eval_strategy no', null],
    ['--eval_data e --eval_strategy steps --logging_steps 3', { every: 3 }],
    ['--eval_data e --eval_strategy steps --eval_steps 0.1', { every: 0.1 }],
    ['--eval_data e --evaluation_strategy epoch', { every: 'epoch' }],
    [
      '--eval_data e --per_device_eval_batch_size 3 --eval_on_start',
      { batchSize: 3, atStart: true },
    ],
  ])('%s', async (line, evaluation) => {
    const { evaluation: got } = await part(line);
    if (evaluation === null) expect(got).toBeNull();
    else expect(toPlain(got as object)).toEqual(evaluation);
  });

  test.each([
    ['--bf16_full_eval', /--bf16_full_eval: expected --bf16 together with it, got no --bf16/],
    ['--fp16_full_eval --fp16 false', /--fp16_full_eval: expected --fp16 together with it/],
    ['--fp16 --bf16', /either --fp16 or --bf16, got both/],
    ['--warmup_ratio 1', /--warmup_ratio: expected a fraction .*, got 1\. Use --warmup_steps/],
    ['--warmup_ratio 30', /--warmup_ratio: .*, got 30/],
    ['--warmup_ratio -0.1 --warmup_steps 5', /--warmup_ratio: .*, got -0\.1/],
    ['--optim adamw_4bit', /paged_adamw_8bit, got "adamw_4bit"/],
    ['--optim adafactor', /Set other optimizers as "optimizer" in the DeepSpeed configuration/],
    ['--streaming --group_by_length', /group_by_length: expected no --streaming/],
    ['--streaming --dataloader_num_workers 2', /got 2\. Use --dataset_num_proc for the threads/],
    ['--streaming --dataloader_drop_last false', /expected true, or no --streaming/],
    [
      '--eval_steps 2',
      /--eval_steps: expected --eval_data FILE together with it, got no --eval_data/,
    ],
    [
      '--eval_data e --eval_on_start --eval_strategy no',
      /--eval_on_start: expected an --eval_strategy other than "no"/,
    ],
    [
      '--eval_on_start --eval_steps 2',
      /--eval_on_start: expected --eval_data FILE together with it/,
    ],
    ['--eval_strategy steps', /--eval_data FILE together with it/],
    ['--logging_strategy sometimes', /"no", "steps" or "epoch"/],
    ['--lr_scheduler_kwargs {"timescale":3}', /--lr_scheduler_kwargs timescale: expected min_lr/],
    [
      '--lr_scheduler_kwargs {"power":"3"}',
      /--lr_scheduler_kwargs power: expected a finite number of at least 0/,
    ],
    [
      '--lr_scheduler_kwargs {"decay_type":3}',
      /--lr_scheduler_kwargs decay_type: expected "linear", "cosine", "1-sqrt"/,
    ],
    ['--lr_scheduler_kwargs {"lr_end":0,"min_lr":1}', /kwargs min_lr: expected one value/],
    ['--early_stopping_threshold 1', /--early_stopping_patience together with it/],
    [
      '--load_best_model_at_end',
      /--load_best_model_at_end: expected --eval_data FILE together with it/,
    ],
    [
      '--eval_data e --eval_strategy no --save_strategy best',
      /--save_strategy best: .*--eval_strat/,
    ],
    [
      '--eval_data e --load_best_model_at_end --save_strategy no',
      /--save_strategy other than "no"/,
    ],
    ['--eval_data e --early_stopping_patience 2 --save_strategy no', /patience: .*--save_strategy/],
    [
      '--eval_data e --metric_for_best_model accuracy',
      /"loss", with "eval_" or without, got "accuracy"/,
    ],
    ['--save_strategy no --report_to csv', /--save_strategy other than "no"/],
  ])('%s is refused', async (line, message) => {
    await expect(part(line)).rejects.toThrow(message);
  });
});

describe('as options of rows', () => {
  const rows = async (line: string, use: 'training' | 'evaluation' = 'training') =>
    readTextOptions((await read(line)).args, 256, use);

  test('follow TRL', async () => {
    expect(await rows('')).toMatchObject({ length: 256, packing: false, overlong: 'cut' });
    const line = '--packing --no_eval_packing --max_seq_length 64 --packing_strategy bfd_split';
    expect(await rows(line)).toMatchObject({ length: 64, packing: true, overlong: 'split' });
    expect(await rows(line, 'evaluation')).toMatchObject({ packing: false });
    expect(await rows('--assistant_only_loss')).toMatchObject({ loss: 'assistant' });
    expect(await rows('--completion_only_loss')).toMatchObject({ loss: 'completion' });
    expect(await rows('--no_completion_only_loss')).toMatchObject({ loss: 'all' });
  });

  test.each([
    ['--max_length 257', /2 to 256, which the model takes, got 257/],
    ['--packing_strategy wrapped', /bfd, bfd_split, got "wrapped"/],
    [
      '--assistant_only_loss --completion_only_loss',
      /expected either --assistant_only_loss or --completion_only_loss, got both/,
    ],
  ])('%s is refused', async (line, message) => {
    await expect(rows(line)).rejects.toThrow(message);
  });
});
