// Tests searches over lists of sections, and the arguments of the searched program.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { autotune } from '../../lib/autotuning/index.js';
import { BF16, type Config, type Searched, searchIn } from './search-runs.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-search-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const search = (...items: [file: object, options?: Searched]) => searchIn(dir, ...items);

describe('lists of sections', () => {
  const offload_optimizer = [{ device: 'none' }, { device: 'cpu' }];
  const file = { ...BF16, zero_optimization: { stage: 2, offload_optimizer } };
  const speed = ({ zero_optimization: { offload_optimizer: state } }: Config) =>
    (state as { device: string }).device === 'cpu' ? 2 : 1;

  test('have one experiment and one folder per candidate', async () => {
    const autotuning = { fast: false, num_tuning_micro_batch_sizes: 1, tuner_early_stopping: 0 };
    const { names, tried, best } = await search({ ...file, autotuning }, { speed });
    expect(tried[0]?.config.zero_optimization.offload_optimizer).toEqual({ device: 'none' });
    expect(names).toContain('z2_gas1_tmbspg8_octrue_rbs50000000_oo1');
    expect(new Set(names).size).toBe(names.length);
    expect(best?.zero_optimization.offload_optimizer).toEqual({ device: 'cpu' });
  });

  test('keep only the first value in a fast search', async () => {
    const { tried } = await search(file, { speed });
    for (const { config } of tried) {
      expect(config.zero_optimization.offload_optimizer).toEqual({ device: 'none' });
    }
  });
});

describe('the program', () => {
  const autotuning = {
    arg_mappings: { 'gradient_accumulation_steps ': '--steps' },
    max_train_micro_batch_size_per_gpu: 8,
  };
  const file = { ...BF16, zero_optimization: { stage: 1 }, train_micro_batch_size_per_gpu: 'auto' };

  test('passes values in the arguments that hold them, from the given value up', async () => {
    const args = ['--per-device-train-batch-size=4', '--out', 'x'];
    const known = { train_micro_batch_size_per_gpu: '--per_device_train_batch_size' };
    const { tried } = await search({ ...file, autotuning }, { args, known });
    expect(tried.map((item) => item.args.slice(2))).toEqual([
      ['--per-device-train-batch-size=8', '--out', 'x', '--steps', '1'],
      ['--per-device-train-batch-size=4', '--out', 'x', '--steps', '1'],
    ]);
  });

  test('passes values in the last of repeated arguments, which takes effect', async () => {
    const args = ['--batch', '1', '--batch=4', '--other', '--batch', '--steps', '2'];
    const known = { train_micro_batch_size_per_gpu: '--batch' };
    const { tried } = await search({ ...file, autotuning }, { args, known });
    expect(tried.at(-1)?.args.slice(2)).toEqual([
      '--batch',
      '1',
      '--batch=4',
      '--other',
      '--batch',
      '--steps',
      '2',
    ]);
    expect(tried[0]?.args[4]).toBe('--batch=8');
  });

  test('inserts values before "--"', async () => {
    const { tried } = await search({ ...file, autotuning }, { args: ['--', '--steps', '4'] });
    expect(tried[0]?.args.slice(2)).toEqual(['--steps', '1', '--', '--steps', '4']);
  });

  test('passes the configuration itself if ranks run on other machines', async () => {
    const { found, names } = await search({ ...file, autotuning }, { isRemote: true });
    expect(names).toContain('z1_gas1_tmbspg8');
    expect(found.args[1]).not.toContain('/');
  });

  test('must have an argument for ds_config.json', async () => {
    const jobs = { slots: 1, nodes: 1, isRemote: false, run: jest.fn(), command: () => '' };
    const options = { args: ['--deepspeed', '--out', 'x'], known: {}, jobs, print: () => {} };
    await expect(autotune(options)).rejects.toMatchObject({ op: '--autotuning' });
    expect(jobs.run).not.toHaveBeenCalled();
  });
});
