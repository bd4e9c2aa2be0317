// Runs the examples as a user would: as processes that import the package by name.
import { execFileSync } from 'node:child_process';
import {
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
import { packageRoot } from '../../lib/runtime/package-root.js';
import { Run } from '../launch/jobs.js';

const root = packageRoot();
let folder: string;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-examples-'));
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

function run(script: string, ...words: string[]): string {
  return execFileSync(process.execPath, [join(root, script), ...words], {
    encoding: 'utf8',
    cwd: folder,
    timeout: 300_000,
  });
}

const small = ['--steps', '4', '--seq', '32', '--batch', '2', '--sample', '4', '--device', 'cpu'];

test('gpt2-offload trains, samples, saves, resumes and writes its summary', () => {
  const summary = join(folder, 'summary.json');
  const save = join(folder, 'checkpoints');
  const first = run('examples/gpt2-offload.js', ...small, '--save', save, '--summary', summary);
  expect(first).toMatch(/saved .*global_step4/);
  expect(first).toMatch(/sample: interface /);
  expect(first).toMatch(/loss \d+\.\d+ -> \d+\.\d+ in 4 steps, \d+ tokens\/s, peak/);
  const report = JSON.parse(readFileSync(summary, 'utf8'));
  expect(Object.keys(report)).toEqual([
    'model',
    'params',
    'device',
    'world',
    'steps',
    'loss',
    'tokens_per_second',
    'step_ms',
    'peak_device_bytes',
    'peak_host_bytes',
    'config',
    'versions',
  ]);
  expect(report.loss).toHaveLength(4);
  expect(report.loss.every(Number.isFinite)).toBe(true);
  // State that was in host memory continues on disk.
  const nvme = join(folder, 'nvme');
  const more = [...small, '--steps', '8', '--save', save, '--resume', '--nvme', nvme];
  const second = run('examples/gpt2-offload.js', ...more);
  expect(second).toMatch(/resumed from .*global_step4 at step 4/);
  expect(second).toMatch(/saved .*global_step8/);
  expect(readdirSync(nvme)).toEqual([]);
});

test('gpt2-offload on two ranks prints the loss of both on rank 0', () => {
  const script = join(root, 'examples/gpt2-offload.js');
  const out = run('dist/launch/cli.js', '--num_procs', '2', script, ...small, '--steps', '3');
  const bars = out.split('\n').filter((line) => line.includes('tokens/s  '));
  expect(bars.length).toBeGreaterThanOrEqual(3);
  for (const bar of bars) expect(bar.replace(/^\[0\] /, '').length).toBeLessThan(80);
  expect(out).not.toMatch(/^\[1\]/m);
  expect(out.match(/ in 3 steps,/g)).toHaveLength(1);
});

/** A preload script that blocks the program after it prints `sign` until `file` exists. */
const waitingProgram = (sign: string, file: string): string => `
const { log } = console;
console.log = (text, ...more) => {
  log(text, ...more);
  const { existsSync } = require('node:fs');
  if (String(text).startsWith('${sign}')) while (!existsSync('${file}'));
};`;

test.each([
  ['examples/gpt2-offload.js', ['--steps', '100000', ...small.slice(2)], '/100000'],
  ['build/js/examples/simple-model.js', [], 'epoch 2 '],
])('%s saves and ends at the first Ctrl-C', async (script, words, sign) => {
  const saved = join(folder, `stopped-${script.length}`);
  const folderWords = script.startsWith('examples') ? ['--save', saved] : [saved];
  const [preload, signalled] = [`${saved}.cjs`, `${saved}.signalled`];
  writeFileSync(preload, waitingProgram(sign, signalled));
  const args = ['-r', preload, join(root, script), ...words, ...folderWords];
  const started = new Run(args, folder);
  await started.whenPrinted(sign);
  started.signalGroup('SIGINT');
  writeFileSync(signalled, '');
  const { code, stdout } = await started.finished;
  expect(code).toBe(0);
  expect(stdout).toMatch(/saved .*global_step\d+/);
  expect(Number(/global_step(\d+)/.exec(stdout)?.[1])).toBeLessThan(100_000);
  expect(readFileSync(join(saved, 'latest'), 'utf8')).toMatch(/^global_step\d+/);
});

test('simple-model learns a sine and saves a checkpoint', () => {
  const out = run('build/js/examples/simple-model.js', join(folder, 'simple'));
  const losses = [...out.matchAll(/loss (\d+\.\d+)/g)].map(([, loss]) => Number(loss));
  expect(losses).toHaveLength(10);
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) / 100);
  expect(out).toMatch(/saved .*global_step160/);
});

test('zero3-two-ranks trains on two ranks, saves, and resumes at another stage', () => {
  const script = join(root, 'examples/zero3-two-ranks.js');
  const out = run('dist/launch/cli.js', '--num_procs', '2', script, join(folder, 'zero3'));
  for (const rank of [0, 1]) {
    const [, held, whole] = /stage 3 holds (\S+) MiB of (\S+) MiB/.exec(out) ?? [];
    // Sharding halves 14 of 16 bytes per parameter; rounding of blocks adds at most an eighth.
    expect(Number(held)).toBeLessThan(Number(whole) / 2);
    const [, first, last] = new RegExp(`rank ${rank}: loss (\\S+) -> (\\S+) in 20`).exec(out) ?? [];
    expect(Number(last)).toBeLessThan(Number(first));
    expect(out).toMatch(new RegExp(`rank ${rank}: resumed .*example at stage 1 after step 20`));
    const [, later] = new RegExp(`rank ${rank}: loss (\\S+) after 5 more`).exec(out) ?? [];
    expect(Number(later)).toBeLessThan(Number(first));
  }
});

/** Numbers after `before`, in the order of the lines. */
const numbersAfter = (before: RegExp, out: string): number[] =>
  [...out.matchAll(before)].map(([, number]) => Number(number));

test.each([[''], ['--lora']])('llama-finetune %s learns its answers', (flag) => {
  const saved = join(folder, `chat${flag}`);
  const words = ['--device', 'cpu', '--output', saved, ...(flag ? [flag] : [])];
  const out = run('examples/llama-finetune.js', ...words);
  const [, first, last] = /^loss (\S+) -> (\S+)$/m.exec(out) ?? [];
  expect(Number(last)).toBeLessThan(Number(first) / 2);
  expect(out).toMatch(/^before: Which stage shards parameters\? -> /m);
  expect(out).toMatch(/^after: Which stage shards parameters\? -> Stage 3 shards parameters\.$/m);
  expect(out).toMatch(/^saved /m);
});

test('trainer.ts on two ranks: evaluations improve, and a second run has no updates left', () => {
  const script = join(root, 'build/js/examples/trainer.js');
  const words = [
    '--num_procs',
    '2',
    script,
    join(folder, 'trained'),
    join(root, 'examples/tokenizer'),
  ];
  const out = run('dist/launch/cli.js', ...words);
  const losses = numbersAfter(/evaluation (\d\.\d+)/g, out);
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) / 2);
  expect(out).toMatch(/^\[0\] saved .*checkpoint-16$/m);
  expect(out).not.toMatch(/^\[1\]/m);
  const again = run('dist/launch/cli.js', ...words);
  expect(again).not.toMatch(/step \d+: loss/);
});

test('the tokenizer of GPT-2 is written completely, and replaces no files', () => {
  const { writeGpt2Tokenizer } = require(join(root, 'examples/gpt2-tokenizer.js')) as {
    writeGpt2Tokenizer(folder: string, options: { maxLength: number }): void;
  };
  const files = ['tokenizer.json', 'tokenizer_config.json'] as const;
  const write = (name: string, options: Record<string, string>): (string | null)[] => {
    const into = join(folder, name);
    mkdirSync(into);
    for (const [file, text] of Object.entries(options)) writeFileSync(join(into, file), text);
    writeGpt2Tokenizer(into, { maxLength: 64 });
    expect(readdirSync(into).filter((file) => file.endsWith('.part'))).toEqual([]);
    return files.map((file) => {
      const path = join(into, file);
      return existsSync(path) ? readFileSync(path, 'utf8') : null;
    });
  };
  const [tokenizer, config] = write('no tokenizer', {}) as [string, string];
  expect(Object.keys(JSON.parse(tokenizer).model.vocab)).toHaveLength(50_257);
  expect(write('a tokenizer', { 'tokenizer.json': 'mine' })).toEqual(['mine', null]);
  expect(write('a configuration', { 'tokenizer_config.json': 'mine' })).toEqual([null, 'mine']);
  // The files of a run that was killed between the two writes.
  expect(write('half of it', { 'tokenizer_config.json': config })).toEqual([tokenizer, config]);
});

test('tensor-parallel trains GPT-2 on two ranks, each with about half of every layer', () => {
  const script = join(root, 'examples/tensor-parallel.js');
  const run2 = (...words: string[]): number[] => {
    const out = run(
      'dist/launch/cli.js',
      '--num_procs',
      '2',
      script,
      '--device',
      'cpu',
      '--steps',
      '6',
      ...words,
    );
    for (const rank of [0, 1]) {
      const [, own, whole] = new RegExp(`rank ${rank}: (\\d+) of (\\d+)`).exec(out) ?? [];
      expect(Number(own) / Number(whole)).toBeCloseTo(0.5, 1);
    }
    return Array.from(out.matchAll(/loss (\d+\.\d+)/g), ([, loss]) => Number(loss));
  };
  const losses = run2();
  expect(losses).toHaveLength(6);
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) - 0.5);
  expect(run2('--sequence')).toHaveLength(6);
});

test('pipeline trains GPT-2 in two stages that together have all parameters', () => {
  const script = join(root, 'examples/pipeline.js');
  const out = run(
    'dist/launch/cli.js',
    '--num_procs',
    '2',
    script,
    '--device',
    'cpu',
    '--steps',
    '3',
  );
  const losses = Array.from(out.matchAll(/loss (\d+\.\d+)/g), ([, loss]) => Number(loss));
  expect(losses).toHaveLength(3);
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) - 0.4);
  expect(out).toMatch(/stage 0 of 2: \d+ parameters/);
  expect(out).toMatch(/stage 1 of 2: \d+ parameters/);
});
