// The flags of Megatron-LM's scripts, as DeepSpeed's ZeRO tutorials print them, on the main
// example.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../../lib/runtime/package-root.js';

const root = packageRoot();
const script = join(root, 'examples/gpt2-offload.js');

/** The flags that the ZeRO-Offload tutorial prints for 10 billion parameters. */
const TEN_BILLION =
  '--model-parallel-size 1 --num-layers 50 --hidden-size 4096 --num-attention-heads 32 ' +
  '--batch-size 10 --deepspeed_config ds_zero_offload.config --checkpoint-activations';

/** The other flags of the script that the tutorial starts. */
const OF_THE_SCRIPT =
  '--seq-length 1024 --max-position-embeddings 1024 --train-iters 100 --resume-dataloader ' +
  '--lazy-loader --tokenizer-type GPT2BPETokenizer --split 949,50,1 --distributed-backend nccl ' +
  '--lr 0.00015 --no-load-optim --lr-decay-style cosine --weight-decay 1e-2 --clip-grad 1.0 ' +
  '--warmup .01 --deepspeed-activation-checkpointing --fp16 --log-interval 1 --cpu-optimizer ' +
  '--deepspeed';

/** A flag that is given twice has its last value. */
const SMALL =
  '--num-layers 2 --hidden-size 64 --num-attention-heads 2 --batch-size 2 --seq-length 32 ' +
  '--max-position-embeddings 32 --train-iters 4';

/** The configuration of that page, without two of its commas, as it stands there. */
const CONFIG = `{
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {
            "device": "cpu",
        }
        "contiguous_gradients": true,
        "overlap_comm": true
    }
}
`;

/** Preloaded, it makes the machine one of 24 GiB that is no virtual machine. */
const SMALL_MACHINE = `
const fs = require('node:fs');
const { readFileSync } = fs;
const files = {
  '/proc/meminfo': 'MemTotal: 25165824 kB\\nMemFree: 20971520 kB\\nMemAvailable: 20971520 kB\\n',
  '/proc/cpuinfo': 'flags : fpu\\n',
};
fs.readFileSync = (path, ...rest) => files[String(path)] ?? readFileSync(path, ...rest);
`;

let folder: string;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-megatron-'));
  writeFileSync(join(folder, 'ds_zero_offload.config'), CONFIG);
  writeFileSync(join(folder, 'small.cjs'), SMALL_MACHINE);
  const text = readFileSync(join(root, 'docs/training-loop.md'), 'utf8');
  writeFileSync(join(folder, 'text.txt'), text.repeat(2));
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

const words = (...lines: string[]): string[] =>
  lines.flatMap((line) => line.split(/\s+/).filter(Boolean));

function node(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, args, {
    encoding: 'utf8',
    cwd: folder,
    timeout: 300_000,
  });
  return { status, stdout, stderr };
}

const run = (...lines: string[]) =>
  node(script, ...words(...lines), '--train-data', 'text.txt', '--device', 'cpu');

const together = (...lines: string[]) => {
  const ds = [join(root, 'dist/launch/cli.js'), '--num_procs', '2', script];
  return node(...ds, ...words(...lines), '--train-data', 'text.txt', '--device', 'cpu');
};

test.each([
  ['of the page', [TEN_BILLION]],
  ['of its script', [TEN_BILLION, OF_THE_SCRIPT]],
])('the flags %s are parsed, and 24 GiB refuse 10 billion parameters', (_, lines) => {
  const small = ['-r', join(folder, 'small.cjs'), script];
  const texts = [...words(...lines), '--train-data', 'text.txt', '--device', 'cpu'];
  const { status, stderr } = node(...small, ...texts);
  const message = stderr.split('\n').find((line) => line.startsWith('DS_')) ?? stderr;
  expect(message).toMatch(/^DS_OUT_OF_MEMORY: initialize: expected \d+\.\d GiB of host memory/);
  expect(message).toMatch(/got 20\.0 GiB free of 24\.0 GiB\./);
  // 50 layers of 4096: 12 h^2 each, and GPT-2's embeddings; 12 bytes of state a parameter.
  const parameters = 50 * 12 * 4096 ** 2;
  const [, state] = /optimizer state (\d+\.\d) GiB/.exec(message) ?? [];
  expect(Number(state) / ((parameters * 12) / 2 ** 30)).toBeCloseTo(1, 1);
  expect(status).toBe(1);
});

/** Mean losses of the run, as the example prints them. */
function lossesOf({ status, stdout, stderr }: ReturnType<typeof node>): [number, number] {
  expect(stderr).not.toMatch(/^DS_/m);
  expect(status).toBe(0);
  const [, first, last] = /loss (\d+\.\d+) -> (\d+\.\d+) in \d+ steps/.exec(stdout) ?? [];
  return [Number(first), Number(last)];
}

test('the same flags train 2 layers with 64 channels', () => {
  const result = run(TEN_BILLION, OF_THE_SCRIPT, SMALL);
  const [first, last] = lossesOf(result);
  expect(first).toBeGreaterThan(5);
  expect(last).toBeGreaterThan(5);
  expect(result.stdout).toMatch(
    /^without effect: --resume-dataloader, --lazy-loader, --split, --distributed-backend, --log-interval$/m,
  );
  expect(result.stdout).toMatch(/^GPT-2 of 2 layers of 64: /m);
});

test('the flags train on two ranks that divide the data or each layer', () => {
  for (const size of ['1', '2']) {
    const share = `--model-parallel-size ${size}`;
    const result = together(TEN_BILLION, OF_THE_SCRIPT, SMALL, share, '--sample 0');
    expect(lossesOf(result)[1]).toBeGreaterThan(5);
  }
});

/** Flags of the other pages, and ZeRO's section as each of them prints it. */
const PAGES: Readonly<Record<string, readonly [flags: string, zero: object]>> = {
  'zero, stage 1': [
    '--model-parallel-size 1 --num-layers 48 --hidden-size 1600 --num-attention-heads 16 --batch-size 1',
    { stage: 1, reduce_bucket_size: 5e8 },
  ],
  'zero, stage 2': [
    '--model-parallel-size 1 --num-layers 50 --hidden-size 4096 --num-attention-heads 32 ' +
      '--batch-size 1 --checkpoint-activations',
    {
      stage: 2,
      contiguous_gradients: true,
      overlap_comm: true,
      reduce_scatter: true,
      reduce_bucket_size: 5e8,
      allgather_bucket_size: 5e8,
    },
  ],
  zeropp: [
    '--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --num-layers 40 ' +
      '--hidden-size 6144 --seq-length 512 --num-attention-heads 32 --batch-size 1 ' +
      '--zero-stage 3 --deepspeed-activation-checkpointing --fp16 --checkpoint-activations',
    {
      stage: 3,
      reduce_bucket_size: 10000000,
      reduce_scatter: true,
      zero_quantized_weights: true,
      zero_hpz_partition_size: 2,
      zero_quantized_gradients: true,
      contiguous_gradients: true,
      overlap_comm: true,
    },
  ],
};

test.each(Object.entries(PAGES))(
  'the flags of %s train 2 layers of 64 on two ranks',
  (page, of) => {
    const [flags, zero_optimization] = of;
    const file = `${page.replace(/\W+/g, '-')}.config`;
    writeFileSync(join(folder, file), JSON.stringify({ zero_optimization }));
    const line = `${flags} --deepspeed_config ${file} ${SMALL} --sample 0`;
    expect(lossesOf(together(line))[1]).toBeGreaterThan(5);
  },
);

test('a flag wins over the configuration, and the rate follows the schedule of the flags', () => {
  const summary = join(folder, 'summary.json');
  const flags = '--lr 0.01 --weight-decay 0 --train-iters 12 --bf16 --sample 0 --warmup 0.25';
  const small = SMALL.replace(/--train-iters \d+/, '');
  const [first, last] = lossesOf(run(small, flags, `--summary ${summary}`));
  expect(last).toBeLessThan(first - 0.5);
  const { config } = JSON.parse(readFileSync(summary, 'utf8'));
  expect(config).toMatchObject({
    train_micro_batch_size_per_gpu: 2,
    bf16: { enabled: true },
    optimizer: { type: 'AdamW', params: { lr: 0.01, weight_decay: 0, betas: [0.9, 0.95] } },
    scheduler: {
      type: 'WarmupDecayLR',
      params: { warmup_max_lr: 0.01, warmup_num_steps: 3, total_num_steps: 12 },
    },
  });
});

test('--load continues where --save ended, with or without optimizer state', () => {
  const at = join(folder, 'saved');
  lossesOf(run(SMALL, `--save ${at} --sample 0`));
  const more = SMALL.replace(/--train-iters \d+/, '--train-iters 6');
  for (const flag of ['', '--no-load-optim']) {
    const result = run(more, `--load ${at} --sample 0`, flag);
    lossesOf(result);
    expect(result.stdout).toMatch(/resumed from .*global_step4 at step 4/);
  }
});

test.each([
  ['--num-layers two', '--num-layers: expected an integer of at least 1, got "two".'],
  ['--hidden-size 65', 'heads'],
  ['--seq-length 64', '--max-position-embeddings: expected at least --seq-length, 64, got 32.'],
  ['--pipeline-model-parallel-size 2', 'Use examples/pipeline.js to train in stages.'],
  ['--tokenizer-type BertWordPieceCase', 'Use --tokenizer DIR for a folder with a tokenizer.json.'],
  ['--lr-decay-style exponential', '--lr-decay-style: expected constant, linear, cosine'],
  ['--warmup 100', '--warmup: expected a fraction from 0 to 1, got 100.'],
  ['--fp16 --bf16', '--fp16: expected one precision, got --fp16 and --bf16.'],
  ['--num-layer 2', "Unknown option '--num-layer'"],
])('%s is refused', (line, message) => {
  const { status, stderr } = run(SMALL, line);
  expect(stderr).toContain(message);
  expect(stderr).not.toMatch(/^ {4}at /m);
  expect(status).toBe(1);
});
