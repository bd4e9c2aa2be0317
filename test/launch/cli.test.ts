// The `ds` command as users run it: a process, its output and its exit code.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const ROOT = join(__dirname, '..', '..');
const HOOK = join(ROOT, 'test', 'support', 'run-typescript.cjs');
const CLI = join(ROOT, 'lib', 'launch', 'cli.ts');

function ds(args: string[], env: Record<string, string> = {}) {
  const options = { encoding: 'utf8', env: { ...process.env, ...env } } as const;
  return spawnSync(process.execPath, ['-r', HOOK, CLI, ...args], options);
}

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-cli-'));
});
afterAll(() => rmSync(dir, { recursive: true }));

function config(text: string): string {
  const path = join(dir, 'ds_config.json');
  writeFileSync(path, text);
  return path;
}

// 1 is an answer of theirs: a configuration that is not valid, a plan that does not fit.
test.each([
  ['validate'],
  ['validate ds_config.json --world-size 0'],
  ['plan --model 124M --batch 0'],
  ['plan --model 124M --precision fp8'],
  ['plan --model 124M --nosuch'],
  ['consolidate here'],
  ['io . --size none'],
  ['plan --model 124M --link 0'],
  ['plan --model 124M --gpu-memory none'],
  ['serve here --max-body none'],
  ['serve here --request-timeout -1'],
  ['elastic ds_config.json -w 0'],
  ['env more'],
  ['init new --template ../chat'],
  ['init new more'],
])('an invalid command line exits with 2 and the reason: ds %s', (words) => {
  const { status, stdout, stderr } = ds(words.split(' '));
  expect([status, stdout]).toEqual([2, '']);
  expect(stderr).toMatch(/^error: /);
});

test('ds serve without a model exits with 2 and the reason', () => {
  const { status, stdout, stderr } = ds(['serve']);
  expect([status, stdout]).toEqual([2, '']);
  expect(stderr).toBe(
    'ds: serve: expected a model, --model NAME=FOLDER or --models-dir, got none.\n',
  );
});

test.each(['plan --help', 'env --help', '--version'])('help exits with 0: ds %s', (words) => {
  const { status, stdout } = ds(words.split(' '));
  expect([status, stdout]).toEqual([0, expect.stringMatching(/^(Usage: ds |\d)/)]);
});

test('ds without arguments prints the help as an error', () => {
  const { status, stdout, stderr } = ds([]);
  expect([status, stdout, stderr]).toEqual([2, '', ds(['--help']).stdout]);
});

test.each([
  ['help', '--help'],
  ['help plan', 'plan --help'],
  ['help train', 'train --help'],
])('ds %s is the same as ds %s', (words, same) => {
  const { status, stdout } = ds(words.split(' '));
  expect([status, stdout]).toEqual([0, ds(same.split(' ')).stdout]);
});

describe('ds env', () => {
  test('prints the findings as text', () => {
    const { status, stdout } = ds(['env']);
    expect(status).toBe(0);
    const labels = ['@ds/native', 'node', 'cpu', 'memory', 'addon', 'threads', 'GPUs', 'cache'];
    for (const label of labels) {
      expect(stdout).toMatch(new RegExp(`^${label} +\\S`, 'm'));
    }
  });

  test('prints the same as JSON', () => {
    const { status, stdout } = ds(['env', '--json'], { DS_NUM_THREADS: '3' });
    expect(status).toBe(0);
    const report = JSON.parse(stdout);
    expect(report.memory.lockedLimit).toMatch(/^(unlimited|\d+)$/);
    const [, flags = ''] =
      /^(?:flags|Features)\s*:(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8')) ?? [];
    for (const feature of ['avx2', 'fma', 'f16c', 'asimd']) {
      const isThere = flags.split(' ').includes(feature);
      if (isThere) expect(report.cpu.features).toContain(feature);
    }
    expect(report.native).toMatchObject({
      threads: 3,
      fileEngine: expect.stringMatching(/^(io_uring|threads)$/),
      devices: [expect.objectContaining({ name: 'cpu' }), ...report.native.devices.slice(1)],
    });
    expect(report.native.addonPackage).toMatch(/^@ds\/native(-\S+)? \d/);
    expect(report.native.uringRefusal === null).toBe(report.native.fileEngine === 'io_uring');
    expect(report.libc).toMatch(/^(glibc \d|musl)/);
    if (report.native.gpuLibrary) expect(report.native.gpuCode.architectures).not.toEqual([]);
    expect(report.native.libraries.map((l: { name: string }) => l.name)).toContain('cuBLASLt');
  });

  test('reports an addon that does not load', () => {
    const { status, stdout } = ds(['env'], { DS_NATIVE_BINDING: join(dir, 'absent.node') });
    expect(status).toBe(1);
    expect(stdout).toMatch(/^addon +does not load\. .*absent\.node/m);
  });

  test('refuses an addon that was built for other ops', () => {
    const other = join(dir, 'other.cjs');
    writeFileSync(other, 'module.exports = { opInterface: () => 1 };');
    const { status, stdout } = ds(['env'], { DS_NATIVE_BINDING: other });
    expect(status).toBe(1);
    expect(stdout).toMatch(
      /built for the ops of this package, \d+, got .*other\.cjs for 1\. Rebuild it: npm run/,
    );
  });
});

test('ds --help lists the commands with their descriptions', () => {
  const { stdout } = ds(['--help']);
  for (const name of ['env', 'validate', 'elastic', 'eval', 'merge', 'export']) {
    expect(stdout).toMatch(new RegExp(`^  ds ${name} {2,}\\w`, 'm'));
  }
});

describe('ds validate', () => {
  test('prints the resolved configuration and the notices', () => {
    const path = config('{ "train_batch_size": 8, "sparse_gradients": true }');
    const { status, stdout, stderr } = ds(['validate', path, '--world-size', '4']);
    expect(status).toBe(0);
    expect(stderr).toMatch(/\/ds_config.json:1:26: note: sparse_gradients has no effect/);
    expect(JSON.parse(stdout)).toMatchObject({ train_micro_batch_size_per_gpu: 2 });
  });

  test('accepts the tutorial file', () => {
    const path = join(ROOT, 'test', 'golden', 'ds_config.full.jsonc');
    const { status, stdout, stderr } = ds(['validate', path, '--world-size', '1']);
    expect(status).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ gradient_accumulation_steps: 8 });
    const lines = stderr.trimEnd().split('\n');
    expect(lines).toHaveLength(5);
    expect(lines.at(-1)).toMatch(/ds_config\.full\.jsonc: valid: 1 warning, 3 notes$/);
  });

  test('needs no native addon', () => {
    const path = config('{ "train_batch_size": 8 }');
    const { status } = ds(['validate', path], { DS_NATIVE_BINDING: join(dir, 'absent.node') });
    expect(status).toBe(0);
  });

  test('lists every error with its place and fails', () => {
    const path = config('{\n  "train_batch_size": 0,\n  "amp": { "enabled": true }\n}');
    const { status, stdout, stderr } = ds(['validate', path]);
    expect({ status, stdout }).toEqual({ status: 1, stdout: '' });
    expect(stderr).toMatch(/ds_config.json:2:3: error: train_batch_size: expected a value >= 1/);
    expect(stderr).toMatch(/ds_config.json:3:3: error: amp: .*not supported yet/);
    expect(stderr).not.toContain('    at ');
  });

  test('takes --explain, --strict and --json', () => {
    const path = config('{ "train_batch_size": 8, "train_batchsize": 8 }');
    const explained = ds(['validate', path, '--explain']);
    expect(explained.status).toBe(0);
    expect(explained.stdout).toMatch(/^train_batch_size = 8 {2}\(.*ds_config.json:1:3\)$/m);
    const strict = ds(['validate', path, '--strict', '--json']);
    expect(strict.status).toBe(1);
    expect(JSON.parse(strict.stdout)).toMatchObject({ valid: false, config: null });
    expect(JSON.parse(strict.stdout).errors).toHaveLength(1);
  });

  test('fills "auto" from --auto, and lists values left to a Trainer', () => {
    const path = config(
      '{ "train_micro_batch_size_per_gpu": "auto",\n "optimizer": { "type": "AdamW", "params": { "lr": "auto", "betas": "auto" } } }',
    );
    const open = ds(['validate', path]);
    expect(open.status).toBe(0);
    expect(open.stderr).toMatch(/2:\d+: note: optimizer.params.lr is left to be filled from/);
    expect(JSON.parse(open.stdout)).toMatchObject({
      train_micro_batch_size_per_gpu: 'auto',
      optimizer: { params: { lr: 'auto', betas: 'auto' } },
    });
    const text = 'learning_rate=1e-5,per-device-train-batch-size=4,adam_beta2=0.95';
    const filled = ds(['validate', path, '--auto', text]);
    expect(filled).toMatchObject({ status: 0, stderr: `${path}: valid\n` });
    expect(JSON.parse(filled.stdout)).toMatchObject({
      train_batch_size: 4,
      optimizer: { params: { lr: 1e-5, betas: [0.9, 0.95] } },
    });
    for (const bad of ['rate=1', 'lr', 'lr=x', 'fp16=1']) {
      expect(ds(['validate', path, '--auto', bad])).toMatchObject({
        status: 2,
        stderr: expect.stringMatching(/^ds: --auto/),
      });
    }
  });

  test('a bad option is refused', () => {
    const { status, stderr } = ds(['validate', 'x', '--world-size', 'two']);
    expect(status).toBe(2);
    expect(stderr).toContain('Expected an integer of at least 1.');
  });
});

describe('ds consolidate', () => {
  test('writes a folder and lists its files; a folder without checkpoints gives one line', () => {
    const save = `
      const { initialize, nn } = require(${JSON.stringify(join(ROOT, 'lib', 'index.ts'))});
      const size = { vocabSize: 50, maxSeq: 8, layers: 1, heads: 1, channels: 8 };
      const config = { train_batch_size: 1, optimizer: { type: 'AdamW' } };
      initialize({ model: new nn.models.GPT2(size), config, device: 'cpu' })
        .then(({ engine }) => engine.saveCheckpoint(process.argv[1]));`;
    const from = join(dir, 'checkpoints');
    expect(spawnSync(process.execPath, ['-r', HOOK, '-e', save, from]).status).toBe(0);
    const out = join(dir, 'hf');
    const flags = ['--dtype', 'bf16', '--max-shard-size', '1KB'];
    const { status, stdout } = ds(['consolidate', from, out, ...flags]);
    expect(status).toBe(0);
    expect(stdout).toMatch(/of bf16 weights, Hugging Face's layout/);
    expect(stdout).toMatch(/^ {2}model-00001-of-\d{5}\.safetensors$/m);
    expect(stdout).toMatch(/^ {2}config\.json$/m);
    const again = ds(['consolidate', from, out]);
    expect([again.status, again.stderr.trim().split('\n').length]).toEqual([2, 1]);
    expect(again.stderr).toMatch(/^ds: .*does not exist yet/);
    expect(ds(['consolidate', join(dir, 'none'), out]).stderr).toMatch(/ENOENT|does not exist/);
    expect(ds(['consolidate', from, out, '--max-shard-size', '0']).stderr).toMatch(/2GiB/);
    expect(ds(['consolidate', from, out, '--dtype', 'int8']).status).not.toBe(0);
  });
});
