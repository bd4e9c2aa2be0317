// Runs `ds train` as a user would: processes that turn a folder and rows into a trained folder.
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { nn, seed } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { runRanks } from '../comm/ranks.js';
import { DS, type Finished, Run } from '../launch/jobs.js';

/** Questions and answers that the tiny model memorizes. */
const FACTS = [
  ['Which stage shards gradients?', 'Stage 2.'],
  ['Who starts the ranks?', 'The launcher does.'],
];

let dir: string;
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-train-'));
  seed(1);
  const sizes = { layers: 1, heads: 2, kvHeads: 1, channels: 32, hidden: 64, maxSeq: 64 };
  const model = new nn.models.Llama({ vocabSize: 1007, ...sizes, tied: true });
  await nn.saveWeights(model, join(dir, 'model'), { format: 'hf' });
  cpSync(join(packageRoot(), 'examples', 'tokenizer'), join(dir, 'model'), { recursive: true });
  const rows = Array.from({ length: 24 }, (_, i) => FACTS[i % FACTS.length] as string[]);
  const lines = rows.map(([user, assistant]) =>
    JSON.stringify({
      messages: [
        { role: 'user', content: user },
        { role: 'assistant', content: assistant },
      ],
    }),
  );
  writeFileSync(join(dir, 'rows.jsonl'), lines.join('\n'));
});
afterAll(() => rmSync(dir, { recursive: true }));

const ds = (line: string, at = dir): Promise<Finished> =>
  new Run([...DS, ...line.split(' ')], at, { DS_NUM_THREADS: '1' }).finished;

/** Options of all runs; the rank itself reads rows, without threads. */
const COMMON =
  '--model model --data rows.jsonl --dataset_num_proc 0 --max_length 64 --per_device_train_batch_size 4';

function file(name: string, text: string): string {
  writeFileSync(join(dir, name), text);
  return name;
}

/** Losses of the logs in the folder of a run. */
function losses(folder: string): number[] {
  const text = readFileSync(join(dir, folder, 'trainer_state.json'), 'utf8');
  const { log_history: history } = JSON.parse(text) as { log_history: { loss?: number }[] };
  return history.flatMap(({ loss }) => loss ?? []);
}

test('a folder, rows and a file of arguments become a trained folder, plots and a sample', async () => {
  const run = file(
    'run.yaml',
    `
output_dir: elsewhere
learning-rate: 1e-2
lr_scheduler_type: cosine
assistant_only_loss: true
packing: true
logging_steps: 5
report_to: [csv, tensorboard]
`,
  );
  const line = `train ${COMMON} --config ${run} --output out --device cpu --max-steps 40 --eval_data rows.jsonl --eval_steps 20 --save_steps 20 --save_total_limit 1`;
  const { code, stdout, stderr } = await ds(line);
  expect([code, stderr.match(/Error|failed/)]).toEqual([0, null]);
  expect(stdout).toMatch(/^trains Llama of model: [\d,]+ parameters, one rank on cpu$/m);
  expect(stdout).toMatch(/^learns from rows\.jsonl: 24 rows, \d+ samples packed to 64 tokens; /m);
  expect(stdout).toMatch(/^step 20: evaluation loss \d\.\d+$/m);
  expect(stdout).toMatch(/^step 40: saved out\/checkpoint-40$/m);
  expect(stdout).toMatch(/^saved out$/m);
  expect(stdout).toMatch(/^sample: Which stage shards gradients\?\n {5}-> Stage 2\.$/m);
  expect(stderr).toMatch(/40\/40 {2}loss /);
  const [first = 0, ...rest] = losses('out');
  expect(rest.at(-1)).toBeLessThan(first / 4);
  expect(existsSync(join(dir, 'out', 'checkpoint-20'))).toBe(false);
  expect(existsSync(join(dir, 'out', 'runs', 'trainer', 'train_loss.csv'))).toBe(true);
  expect(existsSync(join(dir, 'elsewhere'))).toBe(false);
  const saved = await nn.models.fromPretrained(join(dir, 'out'));
  expect(saved.maxSeq).toBe(64);

  const more = await ds(
    `${line} --max_steps 44 --resume_from_checkpoint --sample Who? --sample_tokens 3`,
  );
  expect(more.code).toBe(0);
  expect(more.stdout).toMatch(/^continues from out\/checkpoint-40, step 40$/m);
  expect(more.stdout).toMatch(/^step 44: done$/m);
  expect(more.stdout).toMatch(/^sample: Who\?$/m);
});

test('the files next to the weights describe the whole run, for any best checkpoint', async () => {
  const line = `train ${COMMON} --output judged --device cpu --max_steps 6 --eval_data rows.jsonl --eval_steps 2 --logging_steps 1 --save_strategy best --metric_for_best_model eval_loss --greater_is_better true --learning_rate 1e-2 --no_sample`;
  expect((await ds(line)).code).toBe(0);
  const state = JSON.parse(readFileSync(join(dir, 'judged', 'trainer_state.json'), 'utf8'));
  expect(state).toMatchObject({ global_step: 6, best_global_step: 2, max_steps: 6 });
  expect(losses('judged')).toHaveLength(6);
});

test.each([
  ['--save_strategy no', 'no checkpoint to continue from'],
  ['--save_only_model', 'no checkpoint to continue from'],
  ['--save_steps 100000', '--resume_from_checkpoint continues'],
])('a signal ends training; with %s, %s', async (words, label) => {
  const line = `train ${COMMON} --output signal --device cpu --max_steps 100000 --logging_steps 1 --disable_tqdm ${words}`;
  const run = new Run([...DS, ...line.split(' ')], dir, { DS_NUM_THREADS: '1' });
  await run.whenPrinted('step 1: loss');
  run.signalGroup('SIGINT');
  const { stdout } = await run.finished;
  expect(stdout).toMatch(new RegExp(`^step \\d+: stopped; ${label}$`, 'm'));
  rmSync(join(dir, 'signal'), { recursive: true, force: true });
});

test('a search leaves nothing of its experiments in the folder of the run', async () => {
  const autotuning = { enabled: true, start_step: 0, end_step: 1, num_tuning_micro_batch_sizes: 1 };
  const limits = { max_train_micro_batch_size_per_gpu: 4 };
  const settings = {
    train_micro_batch_size_per_gpu: 'auto',
    autotuning: { ...autotuning, ...limits },
  };
  const config = file('tuned.json', JSON.stringify(settings));
  const writing =
    '--save_steps 1 --eval_data rows.jsonl --eval_on_start --eval_steps 1 --report_to csv --logging_steps 1';
  const line = `--autotuning tune --num_procs 1 train ${COMMON} --deepspeed ${config} --output tuned --device cpu ${writing}`;
  const found = await ds(`${line} --max_steps 9`);
  expect([found.code, found.stdout]).toEqual([0, expect.stringMatching(/tmbspg4: [\d.]+ samples/)]);
  const short = await ds(`${line} --max_steps 1`);
  expect(short.stdout).toContain('tmbspg4: nothing: it ended before step 2');
  expect(readdirSync(join(dir, 'tuned'))).toEqual([]);
});

test('a search changes values of the file of --config', async () => {
  const autotuning = { start_step: 0, end_step: 0, max_train_micro_batch_size_per_gpu: 4 };
  const config = file(
    'open.json',
    JSON.stringify({ autotuning: { enabled: true, ...autotuning } }),
  );
  const keys = {
    deepspeed: config,
    per_device_train_batch_size: 2,
    gradient_accumulation_steps: 2,
  };
  const named = file('keys.json', JSON.stringify(keys));
  const common = COMMON.replace('--per_device_train_batch_size 4', '');
  const { stdout, stderr } = await ds(
    `--autotuning tune --num_procs 1 train ${common.trim()} --config ${named} --output open --device cpu --max_steps 9`,
  );
  expect(stderr).toBe('');
  expect(stdout).toMatch(
    /^autotuning: z0_gas2_tmbspg4: [\d.]+ samples.*\n.*z0_gas2_tmbspg2: [\d.]+ samples/,
  );
});

test('an error of one rank ends ds train at once, although the other rank waits for it', async () => {
  const hook = `const { _load: load } = require('node:module');
    require('node:module')._load = function (...words) {
      const loaded = load.apply(this, words);
      const state = process.env.RANK === '1' && loaded?.OptimizerState;
      if (state) state.prototype.writeMaster = () => { throw new Error('damaged weights'); };
      return loaded;
    };`;
  const preload = join(dir, file('fail-on-rank-1.cjs', hook));
  const config = file('three.json', JSON.stringify({ zero_optimization: { stage: 3 } }));
  const line = `--num_procs 2 train ${COMMON} --deepspeed ${config} --output failed --max_steps 2`;
  const environment = { DS_NUM_THREADS: '1', NODE_OPTIONS: `--require ${preload}` };
  const { code, stderr } = await new Run([...DS, ...line.split(' ')], dir, environment).finished;
  expect(code).toBe(1);
  expect(stderr).toMatch(/rank 1 failed first: exit code 1/);
  expect(stderr).toMatch(/damaged weights/);
}, 120_000);

test('two ranks at stage 3 fill "auto", and only the first one prints', async () => {
  const config = file(
    'ds_config.json',
    JSON.stringify({
      train_batch_size: 'auto',
      train_micro_batch_size_per_gpu: 'auto',
      gradient_accumulation_steps: 'auto',
      optimizer: { type: 'AdamW', params: { lr: 'auto', weight_decay: 'auto' } },
      scheduler: {
        type: 'WarmupDecayLR',
        params: { warmup_max_lr: 'auto', warmup_num_steps: 'auto', total_num_steps: 'auto' },
      },
      zero_optimization: { stage: 3, stage3_prefetch_bucket_size: 'auto' },
    }),
  );
  const line = `--num_procs 2 train ${COMMON} --deepspeed ${config} --output two --max_steps 12 --learning_rate 1e-2 --logging_steps 4 --disable_tqdm`;
  const { code, stdout, stderr } = await ds(line);
  expect([code, stderr]).toEqual([0, expect.not.stringMatching(/Error|failed/)]);
  expect(stdout.match(/trains Llama/g)).toHaveLength(1);
  expect(stdout).toMatch(/2 ranks on cpu$/m);
  expect(stdout).toMatch(/step 4: loss \d\.\d+, rate \S+, grad norm \S+, \d+ tokens\/s$/m);
  const found = losses('two');
  expect(found).toHaveLength(3);
  expect(found[2]).toBeLessThan(found[0] as number);
  await nn.models.fromPretrained(join(dir, 'two'));
});

test.each([
  ['tensor_parallel', { tensor_parallel: { autotp_size: 2 } }],
  ['sequence_parallel_size', { sequence_parallel_size: 2 }],
])(
  'two ranks that divide the model by %s learn the same as one rank, with "auto" keys',
  async (name, cut) => {
    // Rows with an odd number of tokens, which two ranks cannot split evenly.
    const rows = ['one', 'one two', 'one two three'].map((text) => JSON.stringify({ text }));
    const data = file('short.jsonl', rows.join('\n'));
    const run = (out: string, more: object): Promise<Finished> => {
      const config = file(
        `${out}.json`,
        JSON.stringify({
          train_batch_size: 'auto',
          train_micro_batch_size_per_gpu: 'auto',
          ...more,
          optimizer: { type: 'AdamW', params: { lr: 'auto' } },
          zero_optimization: { stage: 'auto' },
        }),
      );
      const procs = out === 'whole' ? 1 : 2;
      return ds(
        `--num_procs ${procs} train ${COMMON.replace('rows.jsonl', data)} --deepspeed ${config} --output ${out} --per_device_train_batch_size 1 --max_steps 6 --learning_rate 1e-2 --logging_steps 1 --no_sample`,
      );
    };
    const [whole, shared] = [await run('whole', {}), await run(name, cut)];
    expect([whole.code, shared.code, shared.stderr]).toEqual([
      0,
      0,
      expect.not.stringMatching(/Error|failed/),
    ]);
    const [one, two] = [losses('whole'), losses(name)];
    expect(one).toHaveLength(6);
    two.forEach((loss, i) => {
      expect(loss).toBeCloseTo(one[i] as number, 3);
    });
    await nn.models.fromPretrained(join(dir, name));
    rmSync(join(dir, 'whole'), { recursive: true });
  },
);

test.each([
  ['--eval_data rows.jsonl --eval_steps 0', /Trainer eval\.every: .*got 0/],
  ['--deepspeed {"train_batch_size":7}', /train_batch_size: .*got 7/],
])(
  'options that a Trainer refuses are refused before rows are read: %s',
  async (words, message) => {
    const line = `train ${COMMON} --output refused --device cpu --max_steps 1 ${words}`;
    const { code, stdout, stderr } = await ds(line);
    expect([code, stdout]).toEqual([1, expect.not.stringContaining('learns from')]);
    expect(stderr).toMatch(message);
  },
);

test('--lora trains only adapters, on two ranks, and writes the files of PEFT', async () => {
  const stage3 = file('stage3.json', '{ "zero_optimization": { "stage": 3 } }');
  const line = `train --num-procs 2 ${COMMON} --deepspeed ${stage3} --output adapter --lora --lora-r 4 --target_modules all-linear --max_steps 12 --learning_rate 3e-2 --logging_steps 4 --save_steps 12`;
  const { code, stdout } = await ds(line);
  expect(code).toBe(0);
  expect(stdout).toMatch(
    /^\[0\] trains Llama of model: [\d,]+ parameters, [\d,]+ of them trained, 2 ranks on cpu$/m,
  );
  const found = losses('adapter');
  expect(found.at(-1)).toBeLessThan(found[0] as number);
  for (const folder of ['adapter', 'adapter/checkpoint-12']) {
    const path = join(dir, folder, 'adapter_config.json');
    expect(JSON.parse(readFileSync(path, 'utf8'))).toMatchObject({
      peft_type: 'LORA',
      r: 4,
      base_model_name_or_path: 'model',
    });
    expect(existsSync(join(dir, folder, 'adapter_model.safetensors'))).toBe(true);
    expect(existsSync(join(dir, folder, 'model.safetensors'))).toBe(false);
  }
  expect(stdout).toMatch(/^\[0\] sample: Which stage shards gradients\?$/m);
});

test('--lora is refused where the output would load as the model in it', async () => {
  cpSync(join(dir, 'model'), join(dir, 'whole'), { recursive: true });
  const { code, stdout, stderr } = await ds(`train ${COMMON} --output whole --lora --device cpu`);
  expect([code, stdout]).toEqual([2, '']);
  expect(stderr).toMatch(/whole: expected a folder without the weights of a model.*got one with/);
});

test('a configuration without weights makes a new model', async () => {
  const line = `train --config_name model --tokenizer_name model ${COMMON.replace('--model model ', '')} --output new --device cpu --max_steps 2`;
  const { code, stdout } = await ds(line);
  expect(code).toBe(0);
  expect(stdout).toMatch(/^trains Llama of model: /m);
  await nn.models.fromPretrained(join(dir, 'new'));
});

describe('is refused by the launcher, once, before a rank runs', () => {
  test.each([
    ['train', /^ds: --model: expected a value, got none\. Add --model to the command\.$/m],
    ['train --model m --data d', /^ds: --output: expected a value/m],
    [`train ${COMMON} --output model`, /--output: expected a folder other than that of --model/],
    [`train ${COMMON} --output o --learning_rate -1`, /--learning_rate: .*of at least 0, got -1/],
    [`train ${COMMON} --output o --learning_rte 1`, /Did you mean --learning_rate\?/],
    [`train ${COMMON} --output o --push_to_hub`, /--push_to_hub: .* \(uploads are not supported/],
    [`train ${COMMON} --output o --num_gpus 1 --device cpu`, /no "cpu" with --num_gpus/],
    [`train ${COMMON} --output o --r 4`, /--r: expected --lora together with it/],
    [`train ${COMMON} --output o --lora --bnb_4bit_quant_type fp4`, /expected "nf4"/],
    [`train ${COMMON} --output o --config_name model`, /expected either --config_name or --model/],
    [`train ${COMMON} --output o --fp16 --bf16`, /--fp16: expected either --fp16 or --bf16/],
    [`train ${COMMON} --output o --device cuda:1`, /--device: .*--include localhost:0,1/],
    [`train ${COMMON} --output o --num_procs many`, /Expected an integer of at least 1/],
    [
      `--num_procs 2 train ${COMMON} --output o --deepspeed {"pipeline":{"stages":2}}`,
      /pipeline\.stages: expected 1, because a Trainer does not support pipeline stages, got 2\. .*tensor_parallel/,
    ],
    [`--num_procs 2 train ${COMMON} --output o --seed x`, /--seed: expected a whole number/],
  ])('%s', async (line, message) => {
    const { code, stdout, stderr } = await ds(line);
    expect([code, stdout]).toEqual([2, '']);
    expect(stderr).toMatch(message);
  });

  test.each([
    [
      '--deepspeed config.json',
      '{ "train_batch_size": 4 }',
      /a folder other than that of --deepspeed/,
    ],
    [
      '--config config.json',
      '{ "seed": 3 }',
      /config\.json: expected nothing .*, got a file with the keys seed\./,
    ],
    ['--max_steps 1', '# of a run\nseed: 3\n', /config\.json: expected .*, got other contents\./],
  ])('an output that would replace files other than a model: %s', async (words, text, message) => {
    const folder = join(dir, 'mine');
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, 'config.json'), text);
    const line = `train --model ../model --data ../rows.jsonl --output . ${words}`;
    const { code, stderr } = await ds(line, folder);
    expect(code).toBe(2);
    expect(stderr).toMatch(message);
    expect(readFileSync(join(folder, 'config.json'), 'utf8')).toBe(text);
  });

  test('an output that is the folder of the configuration', async () => {
    const line = COMMON.replace('--model', '--config_name');
    const { code, stderr } = await ds(`train ${line} --output model`);
    expect([code, stderr]).toEqual([2, expect.stringMatching(/than that of --config_name/)]);
  });

  test('a folder with only an adapter', async () => {
    mkdirSync(join(dir, 'tuned-adapter'));
    writeFileSync(join(dir, 'tuned-adapter', 'adapter_config.json'), '{}');
    const line = `train ${COMMON.replace('--model model', '--model tuned-adapter')} --output o`;
    const { code, stderr } = await ds(line);
    expect(code).toBe(2);
    expect(stderr).toMatch(
      /^ds: --model: expected .*tuned-adapter, an adapter of PEFT\. Pass the/m,
    );
  });
});

test('differences between configuration and arguments are listed in one error', async () => {
  const config = file(
    'other.json',
    '{ "gradient_clipping": 0.5,\n  "gradient_accumulation_steps": 4,\n  "bf16": { "enabled": true } }',
  );
  const line = `train ${COMMON} --deepspeed ${config} --output none --device cpu --max_steps 1 --gradient_accumulation_steps 2 --max_grad_norm 1 --bf16 false`;
  const { code, stderr } = await ds(line);
  expect(code).toBe(1);
  expect(stderr).toMatch(
    /other\.json:1:3: gradient_clipping: expected the values of the training options, got 3 different values:\n {2}gradient_clipping at 1:3: expected 1 \(maxGradNorm, --max_grad_norm\), got 0\.5\n {2}gradient_accumulation_steps at 2:3: .*\n {2}bf16\.enabled at 3:13: expected false .*\nWrite "auto"/,
  );
});

test('an unwritable output is refused before anything is read', async () => {
  const line = `train ${COMMON} --output /proc/none --device cpu --save_strategy no`;
  const { code, stdout, stderr } = await ds(line);
  expect([code, stdout]).toEqual([1, '']);
  expect(stderr).toMatch(/mkdir \/proc\/none: expected success, got ENOENT/);
});

test('non-finite weights are a failure, and skipped updates are reported', async () => {
  const line = `train ${COMMON} --device cpu --disable_tqdm --save_strategy no`;
  // The only update is infinite, and no rank computes a loss after it.
  for (const how of ['', ' --lora']) {
    const output = `--output broken${how.trim()}`;
    const broken = await ds(`${line}${how} ${output} --max_steps 1 --learning_rate 1e39`);
    expect([broken.code, broken.stdout.match(/^sample:/m)]).toEqual([1, null]);
    expect(broken.stderr).toMatch(
      /^ds train: broken(--lora)?: expected finite weights after step 1, got NaN or infinity in \S+\./m,
    );
  }
  // Norms hide large weights from the loss, but not from gradients.
  const { code, stdout } = await ds(`${line} --output large --max_steps 3 --learning_rate 1e30`);
  expect(code).toBe(0);
  const warnings =
    /^step 2: warning: Update 2 was left out: .* not finite, its loss was 6\.\d+\.$/gm;
  expect(stdout.match(/warning/g)).toHaveLength(1);
  expect(stdout).toMatch(warnings);
  expect(stdout).toMatch(/^left out 2 of 3 updates, the last one as well: /m);
});

test('an error on one rank also ends the others, without a launcher', async () => {
  const at = (name: string): string => join(dir, name);
  const localText = `--model ${at('model')} --data ${at('rows.jsonl')} --dataset_num_proc 0 --max_length 64`;
  const words =
    `${localText} --per_device_train_batch_size 4 --output /proc/none --device cpu`.split(' ');
  const ranks = await runRanks('../trainer/train-process', 2, { job: words });
  const reason = 'mkdir /proc/none: expected success, got ENOENT';
  expect(ranks.map(({ report }) => report)).toEqual([
    expect.stringMatching(`^${reason}`),
    expect.stringMatching(`^preparing to train on rank 0: ${reason}`),
  ]);
});

test('the error of a rank that does not join the preparation names it, with the fix', async () => {
  const localText = `--model ${join(dir, 'model')} --data ${join(dir, 'rows.jsonl')}`;
  const words = `${localText} --dataset_num_proc 0 --output ${join(dir, 'alone')} --device cpu`;
  const environment = { DEEPSPEED_TIMEOUT: '0.2', DS_TEST_ABSENT: '1' };
  const job = { job: words.split(' '), environment };
  const [first] = await runRanks('../trainer/train-process', 2, job);
  expect(first?.report).toMatch(
    /^preparing to train: expected every rank within 12 s, got no message from rank 1\. All ranks of ds train/,
  );
  expect(first?.report).not.toMatch(/saveCheckpoint/);
});

test('samples get longer if the configuration has a curriculum', async () => {
  const config = file(
    'curriculum.json',
    JSON.stringify({
      curriculum_learning: {
        enabled: true,
        min_difficulty: 8,
        max_difficulty: 64,
        schedule_type: 'fixed_linear',
        schedule_config: { total_curriculum_step: 4, difficulty_step: 8 },
      },
    }),
  );
  const line = `train ${COMMON} --deepspeed ${config} --output longer --device cpu --max_steps 5 --packing --logging_steps 1 --no_sample`;
  const { code, stderr } = await ds(line);
  expect([code, stderr.match(/Error|failed/)]).toEqual([0, null]);
  const text = readFileSync(join(dir, 'longer', 'trainer_state.json'), 'utf8');
  const { log_history: history } = JSON.parse(text) as { log_history: { num_tokens?: number }[] };
  const tokens = history.flatMap(({ num_tokens: count }) => count ?? []);
  // 8 + 14 step, rounded down to multiples of 8, for four samples with 44 tokens that are no
  // padding.
  const lengths = [16, 32, 44, 44, 44];
  let sum = 0;
  expect(tokens).toEqual(lengths.map((length) => (sum += 4 * length)));
});

test('--help lists the arguments and their other names', async () => {
  const { code, stdout } = await ds('train --help');
  expect(code).toBe(0);
  expect(stdout).toMatch(/^ {2}--learning_rate <x> {2,}[^-]*; also --lr\s+\(default: 5e-5\)$/m);
  expect(stdout).toMatch(
    /^ {2}--model_name_or_path <text> .*\n +Qwen\/Qwen3-0\.6B; also --model$/m,
  );
  expect((await ds('--help')).stdout).toMatch(/^ {2}ds train {2,}train or fine-tune/m);
});

test('settings without effect are reported once', async () => {
  const line = `--num_procs 2 train ${COMMON} --output quiet --max_steps 1 --no_sample --torch_compile --no_cuda false`;
  const { code, stdout, stderr } = await ds(line);
  expect(code).toBe(0);
  expect(stderr.match(/--torch_compile has no effect/g)).toHaveLength(1);
  expect(stdout).not.toMatch(/sample:/);
});
