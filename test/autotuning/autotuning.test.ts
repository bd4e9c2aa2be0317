// Tests `ds --autotuning` with real jobs on the CPU: its measurements, files, and the final job.
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { DS, type Finished, Run, scriptOf } from '../launch/jobs.js';

let dir: string;
let run: Run | null = null;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-autotuning-'));
  writeFileSync(join(dir, 'train.js'), scriptOf(join(__dirname, 'tuned-process')));
});
afterEach(async () => {
  await run?.whenGone();
  rmSync(dir, { recursive: true, force: true });
});

function start(config: object, ...launcher: string[]): Promise<Finished> {
  writeFileSync(join(dir, 'ds_config.json'), JSON.stringify(config));
  const program = ['train.js', '--note', 'a b', '--batch', '1', '--deepspeed', 'ds_config.json'];
  run = new Run([...DS, ...launcher, ...program], dir, { DS_NUM_THREADS: '1' });
  return run.finished;
}

const json = (...path: string[]) => JSON.parse(readFileSync(join(dir, ...path), 'utf8'));

const BASE = {
  train_micro_batch_size_per_gpu: 1,
  optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
  autotuning: {
    enabled: true,
    arg_mappings: { 'train_micro_batch_size_per_gpu ': '--batch' },
    start_step: 1,
    end_step: 2,
    max_train_micro_batch_size_per_gpu: 2,
  },
};

test('two ranks try stages and micro-batches, and the best configuration trains', async () => {
  const autotuning = { ...BASE.autotuning, num_tuning_micro_batch_sizes: 1 };
  const config = { ...BASE, autotuning, zero_optimization: { stage: [0, 2] } };
  const { code, stdout, stderr } = await start(config, '--autotuning', 'run', '--num_procs', '2');
  expect({ code, stderr }).toMatchObject({ code: 0 });
  const names = ['z0_gas1_tmbspg2', 'z2_gas1_tmbspg2'];
  for (const name of names) {
    expect(stdout).toMatch(new RegExp(`^autotuning: ${name}: [\\d.]+ samples/s`, 'm'));
    const { latency, throughput, train_batch_size } = json(
      'autotuning_results',
      name,
      'metrics.json',
    );
    expect(train_batch_size).toBe(4);
    expect(latency * throughput).toBeCloseTo(4000, 3);
    expect(readFileSync(join(dir, 'autotuning_results', name, 'stdout.log'), 'utf8')).toBe('');
    const experiment = json('autotuning_exps', `${name}.json`);
    expect(experiment).toMatchObject({ name, num_gpus: 2, num_nodes: 1 });
  }
  const info = json('autotuning_results', 'profile_model_info', 'model_info.json');
  expect(info).toMatchObject({ sequence_length: 17, knowsActivations: true, isHost: true });
  expect(info.mesh).toEqual({ data: 2, tokens: 1, layers: 1, stages: 1 });
  expect(info.activation_mem_per_gpu).toBeGreaterThan(0);
  const best = json('autotuning_results', 'ds_config_optimal.json');
  expect(best).not.toHaveProperty('autotuning');
  expect(best.train_micro_batch_size_per_gpu).toBe(2);
  expect(stdout).toContain(`trained 6 steps of 2 at stage ${best.zero_optimization.stage}`);
  const command = readFileSync(join(dir, 'autotuning_results', 'cmd_optimal.txt'), 'utf8');
  expect(command).toMatch(
    /^ds --num_procs 2 train.js --note 'a b' --batch 2 --deepspeed .*ds_config_optimal/,
  );
  const summary = readFileSync(join(dir, 'autotuning_results', 'summary.txt'), 'utf8');
  expect(stdout).toContain(summary.trimEnd());
});

test('a pipeline tries stages 0 and 1 of ZeRO', async () => {
  const autotuning = { ...BASE.autotuning, num_tuning_micro_batch_sizes: 1, end_step: 1 };
  const config = { ...BASE, autotuning, pipeline: { stages: 2 } };
  const zero_optimization = { stage: [1, 2] };
  const run = ['--autotuning', 'tune', '--num_procs', '2'];
  const { code, stdout } = await start({ ...config, zero_optimization }, ...run);
  expect(stdout).toMatch(/^autotuning: z1_gas1_tmbspg2: [\d.]+ samples/m);
  expect(stdout).toMatch(/^z2 was left out: a pipeline supports stages 0 and 1$/m);
  expect(code).toBe(0);
  const info = json('autotuning_results', 'profile_model_info', 'model_info.json');
  expect(info.mesh).toEqual({ data: 1, tokens: 1, layers: 1, stages: 2 });
});

test('a candidate without enough memory becomes a row; a later search reuses the measured ones', async () => {
  const autotuning = {
    ...BASE.autotuning,
    overwrite: false,
    metric: 'FLOPS',
    start_step: 0,
    end_step: 0,
    num_tuning_micro_batch_sizes: 1,
    max_train_micro_batch_size_per_gpu: 8,
  };
  const config = { ...BASE, autotuning };
  const first = await start(config, '--autotuning', 'tune', '--num_procs', '1');
  expect(first.code).toBe(0);
  expect(first.stdout).toMatch(
    /^autotuning: z0_gas1_tmbspg8: nothing: Error: DS_OUT_OF_MEMORY, as it may be/m,
  );
  expect(first.stdout).toMatch(/^autotuning: z0_gas1_tmbspg4: [\d.e+]+ FLOPS/m);
  expect(first.stdout).not.toContain('trained');
  const metrics = join('autotuning_results', 'z0_gas1_tmbspg4', 'metrics.json');
  expect(json(metrics).FLOPS_per_gpu).toBeGreaterThan(0);
  writeFileSync(join(dir, metrics), JSON.stringify({ ...json(metrics), FLOPS_per_gpu: 7 }));
  const again = await start(config, '--autotuning', 'tune', '--num_procs', '1');
  expect(again.stdout).toMatch(/^autotuning: z0_gas1_tmbspg4: 7 FLOPS/m);
});

test('the error of a program that does not train ends the search before any trial', async () => {
  writeFileSync(join(dir, 'train.js'), 'throw new TypeError("no data at x: y");');
  const { code, stderr } = await start(BASE, '--autotuning', 'tune', '--num_procs', '1');
  expect(code).toBe(2);
  expect(stderr).toMatch(/^ds: --autotuning: expected a program that trains .*TypeError: no data/m);
  expect(readdirSync(join(dir, 'autotuning_results'))).toEqual([
    '.ds-autotuning',
    'profile_model_info',
  ]);
});

test('an unwritable log is reported once, and the search continues', async () => {
  // The first run finds a full disk at the path of its output.
  const full = `
const { join } = require('node:path');
const { rmSync, symlinkSync } = require('node:fs');
const log = join(process.argv.at(-1), '..', 'stdout.log');
rmSync(log);
symlinkSync('/dev/full', log);
for (let i = 0; i < 5; ++i) console.log(i);
`;
  writeFileSync(join(dir, 'train.js'), full + scriptOf(join(__dirname, 'tuned-process')));
  const { code, stdout, stderr } = await start(BASE, '--autotuning', 'tune', '--num_procs', '1');
  expect(stderr).toMatch(
    /^ds: DS_IO \| autotuning \S+\/profile_model_info\/stdout\.log: expected disk space .*ENOSPC/m,
  );
  expect(stderr.match(/ENOSPC/g)).toHaveLength(1);
  expect(stdout).toMatch(/^autotuning: z0_gas1_tmbspg2: /m);
  expect(code).toBe(0);
});

/** Holds later experiments until the file "go" exists, because they may be fast. */
function holdAfter(name: string): void {
  const metrics = join(dir, 'autotuning_results', name, 'metrics.json');
  const hold = `
const { existsSync } = require('node:fs');
const tick = new Int32Array(new SharedArrayBuffer(4));
const isHeld = () => existsSync(${JSON.stringify(metrics)}) && !existsSync(${JSON.stringify(join(dir, 'go'))});
while (isHeld()) Atomics.wait(tick, 0, 0, 10);
`;
  writeFileSync(join(dir, 'train.js'), hold + scriptOf(join(__dirname, 'tuned-process')));
}

test('Ctrl-C ends the search and prints the results so far', async () => {
  holdAfter('z0_gas1_tmbspg2');
  const searching = start(BASE, '--autotuning', 'run', '--num_procs', '1');
  await run?.whenPrinted('z0_gas1_tmbspg2: ');
  run?.signalGroup('SIGINT');
  const { code, stdout } = await searching;
  expect(code).toBe(130);
  expect(stdout).toContain('| z0           | 1 ');
  expect(stdout).not.toContain('trained');
});

test('a search ends when its output has no reader', async () => {
  holdAfter('z0_gas1_tmbspg4');
  const autotuning = { ...BASE.autotuning, max_train_micro_batch_size_per_gpu: 4 };
  const searching = start({ ...BASE, autotuning }, '--autotuning', 'run', '--num_procs', '1');
  await run?.whenPrinted('z0_gas1_tmbspg4: ');
  run?.child.stdout?.destroy();
  writeFileSync(join(dir, 'go'), '');
  expect((await searching).code).toBe(130);
});

test('without the flag, a run ignores the section and prints one notice', async () => {
  const { code, stdout, stderr } = await start(BASE, '--num_procs', '1');
  expect(code).toBe(0);
  expect(stdout).toContain('trained 6 steps of 1');
  expect(stderr.match(/DS_NOTICE.*autotuning\.enabled acts only with/g)).toHaveLength(1);
  expect(existsSync(join(dir, 'autotuning_results'))).toBe(false);
});
