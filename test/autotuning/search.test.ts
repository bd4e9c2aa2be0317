// Tests the search space, order and end of a search.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import { autotune } from '../../lib/autotuning/index.js';
import { BF16, type Config, GIB, GPT2, infoOf, type Searched, searchIn } from './search-runs.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-search-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const search = (...items: [file: object, options?: Searched]) => searchIn(dir, ...items);

describe('candidates', () => {
  test('are the largest micro-batches of each stage that fit by the plan', async () => {
    const autotuning = { tuner_early_stopping: 0, num_tuning_micro_batch_sizes: 2 };
    const { names } = await search({ ...BF16, autotuning });
    expect(names).toEqual([
      'z0_gas1_tmbspg8',
      'z0_gas1_tmbspg4',
      'z1_gas1_tmbspg8',
      'z1_gas1_tmbspg4',
      'z2_gas1_tmbspg8',
      'z2_gas1_tmbspg4',
      'z3_gas1_tmbspg8',
      'z3_gas1_tmbspg4',
    ]);
  });

  test('use offload only if nothing else fits, and omitted candidates are listed', async () => {
    const autotuning = { num_tuning_micro_batch_sizes: 1 };
    const { names, lines, tried } = await search(
      { ...BF16, zero_optimization: { cpu_offload: false }, autotuning },
      { info: infoOf(1, 12 * GIB) },
    );
    expect(names).toEqual([
      'z2_offload_gas1_tmbspg2',
      'z3_offload_gas1_tmbspg2',
      'z3_offload_param_gas1_tmbspg2',
    ]);
    expect(tried[0]?.config.zero_optimization.offload_optimizer).toMatchObject({ device: 'cpu' });
    expect(tried[0]?.config.zero_optimization).not.toHaveProperty('cpu_offload');
    expect(lines).toContain('z0 was left out: a micro-batch of 1 does not fit by the plan');
  });

  test.each([
    ['a number', 2, ['z2_gas1_tmbspg1']],
    ['a list', [3, 1], ['z3_gas1_tmbspg1', 'z1_gas1_tmbspg1']],
    ['a list that names one twice', [2, 2], ['z2_gas1_tmbspg1']],
  ])('use only the stages of the file: %s', async (_, stage, names) => {
    const autotuning = { max_train_micro_batch_size_per_gpu: 1 };
    expect((await search({ ...BF16, zero_optimization: { stage }, autotuning })).names).toEqual(
      names,
    );
  });

  test('use the stage of a boolean zero_optimization', async () => {
    const autotuning = { max_train_micro_batch_size_per_gpu: 1 };
    const file = { ...BF16, autotuning, zero_optimization: true };
    expect((await search(file)).names).toEqual(['z1_gas1_tmbspg1']);
  });

  test('an empty list of stages is refused', async () => {
    const refusal = { code: 'DS_CONFIG', op: 'zero_optimization.stage' };
    const file = { ...BF16, zero_optimization: { stage: [] } };
    await expect(search(file)).rejects.toMatchObject(refusal);
  });

  test('use only the micro-batches of the file', async () => {
    const file = { ...BF16, zero_optimization: { stage: 1 } };
    const only = await search({ ...file, train_micro_batch_size_per_gpu: [1, 3] });
    expect(only.names).toEqual(['z1_gas1_tmbspg3', 'z1_gas1_tmbspg1']);
    const least = await search({ ...file, train_micro_batch_size_per_gpu: 3 });
    expect(least.names).toEqual(['z1_gas1_tmbspg6', 'z1_gas1_tmbspg3']);
  });

  test.each([
    [{ max_train_micro_batch_size_per_gpu: 2 }, 'max_train_micro_batch_size_per_gpu 2'],
    [{ max_train_batch_size: 7 }, 'max_train_batch_size 7'],
  ])('the error names the bound that excludes every micro-batch: %j', async (autotuning, bound) => {
    const file = { ...BF16, train_micro_batch_size_per_gpu: 4, zero_optimization: { stage: 1 } };
    const { names, lines } = await search({ ...file, autotuning });
    expect(names).toEqual([]);
    expect(lines).toContain(
      `z1 was left out: no micro-batch of 2 ranks is within autotuning.${bound}`,
    );
  });

  test.each([
    [{ min_train_batch_size: 20, max_train_batch_size: 24 }, '', ['3_tmbspg4', '6_tmbspg2']],
    [{ min_train_batch_size: 20, max_train_batch_size: 22 }, '', ['5_tmbspg2']],
    [
      { min_train_batch_size: 5, max_train_batch_size: 5 },
      'no micro-batch of 2 ranks is within autotuning.min_train_batch_size 5 and autotuning.max_train_batch_size 5',
      [],
    ],
    [{ min_train_batch_size: 8, max_train_batch_size: 4 }, 'max_train_batch_size 4', []],
  ])('have batches within the bounds: %j', async (bounds, reason, names) => {
    const file = { ...BF16, zero_optimization: { stage: 1 }, train_micro_batch_size_per_gpu: 2 };
    const found = await search({ ...file, autotuning: bounds });
    expect(found.names).toEqual(names.map((name) => `z1_gas${name}`));
    expect(found.lines.join('\n')).toContain(reason);
  });

  test('a batch of the file above its limit is reported', async () => {
    const file = { ...BF16, zero_optimization: { stage: 1 }, train_batch_size: 32 };
    const { lines } = await search({ ...file, autotuning: { max_train_batch_size: 16 } });
    expect(lines).toContain(
      'z1 was left out: train_batch_size 32 is above autotuning.max_train_batch_size 16',
    );
  });

  test('divide the batch of the file, or the largest batch that it allows', async () => {
    const file = { ...BF16, zero_optimization: { stage: 1 } };
    const total = await search({ ...file, train_batch_size: 24 });
    expect(total.names).toEqual(['z1_gas3_tmbspg4', 'z1_gas6_tmbspg2', 'z1_gas12_tmbspg1']);
    expect(total.tried.every(({ config }) => config.train_batch_size === 24)).toBe(true);
    const limited = await search({ ...file, autotuning: { max_train_batch_size: 9 } });
    expect(limited.names).toEqual(['z1_gas1_tmbspg4', 'z1_gas2_tmbspg2', 'z1_gas4_tmbspg1']);
    const steps = { gradient_accumulation_steps: 2, autotuning: { min_train_batch_size: 20 } };
    expect((await search({ ...file, ...steps })).names).toEqual([
      'z1_gas2_tmbspg8',
      'z1_gas3_tmbspg4',
      'z1_gas5_tmbspg2',
    ]);
  });

  test('use the activations of the profiled forward for an unknown model', async () => {
    const info = { ...infoOf(2, 44 * GIB), knowsActivations: false };
    const settings = { ...info, sizes: { ...GPT2, activations: { ...GPT2.activations, kept: 0 } } };
    const file = { ...BF16, zero_optimization: { stage: 3 } };
    expect(
      (await search(file, { info: { ...settings, activation_mem_per_gpu: 5 * GIB } })).names,
    ).toEqual(['z3_gas1_tmbspg4', 'z3_gas1_tmbspg2', 'z3_gas1_tmbspg1']);
    expect(
      (await search(file, { info: { ...settings, activation_mem_per_gpu: null } })).names,
    ).toEqual(['z3_gas1_tmbspg1']);
  });

  test.each([
    ['train_micro_batch_size_per_gpu', 0],
    ['train_micro_batch_size_per_gpu', 2.5],
    ['train_micro_batch_size_per_gpu', 'many'],
    ['train_batch_size', [16, 32]],
    ['train_batch_size', -8],
    ['gradient_accumulation_steps', 0],
  ])('%s %j is refused, as in a run', async (key, value) => {
    const refusal = { code: 'DS_CONFIG', op: key, got: JSON.stringify(value) };
    await expect(search({ ...BF16, [key]: value })).rejects.toMatchObject(refusal);
  });

  test('numbers in quotes are read, as in a run', async () => {
    const file = { ...BF16, zero_optimization: { stage: 1 }, train_batch_size: '12' };
    const { names } = await search({ ...file, train_micro_batch_size_per_gpu: '2' });
    expect(names).toEqual(['z1_gas3_tmbspg2']);
  });

  test('a batch size argument of 0 is refused', async () => {
    const known = { train_micro_batch_size_per_gpu: '--batch' };
    await expect(search(BF16, { known, args: ['--batch', '0'] })).rejects.toMatchObject({
      code: 'DS_ARGUMENT',
      op: '--batch',
      got: '0',
    });
  });

  test.each([true, [], 'tune'])('the section %j is refused', async (autotuning) => {
    const path = join(dir, 'ds_config.json');
    writeFileSync(path, JSON.stringify({ ...BF16, autotuning }));
    const jobs = { slots: 1, nodes: 1, isRemote: false, run: jest.fn(), command: () => '' };
    const options = { args: ['--deepspeed', path], known: {}, jobs, print: () => {} };
    await expect(autotune(options)).rejects.toMatchObject({
      code: 'DS_CONFIG',
      path: 'autotuning',
    });
  });

  test('the error names the key of a file that cannot train', async () => {
    const wrong = { ...BF16, optimizer: { type: 'AdamW', params: { lr: -1 } } };
    await expect(search(wrong)).rejects.toMatchObject({ op: 'optimizer.params.lr' });
    const lists = { ...BF16, gradient_accumulation_steps: [1, 2] };
    await expect(search(lists)).rejects.toMatchObject({ op: 'gradient_accumulation_steps' });
    const nowhere = { ...BF16, autotuning: { results_dir: '' } };
    await expect(search(nowhere)).rejects.toMatchObject({ path: 'autotuning.results_dir' });
    const unwritten = { ...BF16, autotuning: { enabled: true, model_info: { profile: true } } };
    await expect(search(unwritten)).rejects.toMatchObject({ path: 'autotuning.model_info_path' });
    const chosen = { ...BF16, elasticity: { enabled: true } };
    await expect(search(chosen)).rejects.toMatchObject({ path: 'elasticity.enabled' });
    const metric = { ...BF16, autotuning: { metric: 'speed' } };
    await expect(search(metric)).rejects.toMatchObject({
      message: expect.stringContaining('ds_config.json:1:'),
      op: expect.stringContaining('autotuning.metric'),
    });
  });
});

describe('the search', () => {
  const STAGE1 = { ...BF16, zero_optimization: { stage: 1 } };
  const micro = (config: Config) => config.train_micro_batch_size_per_gpu;

  test('selects the best experiment by the metric, and omits the autotuning section', async () => {
    const speed = (config: Config) => 10 - micro(config);
    const { best } = await search(STAGE1, { speed });
    expect(best).toMatchObject({ train_micro_batch_size_per_gpu: 2 });
    expect(best).not.toHaveProperty('autotuning');
    const latency = await search(
      { ...STAGE1, autotuning: { metric: 'latency' } },
      { speed: micro },
    );
    expect(latency.best).toMatchObject({ train_micro_batch_size_per_gpu: 8 });
  });

  test.each([
    [1200, '1200'],
    [30, '30'],
    [29.5, '29.5'],
    [0.25, '0.25'],
    [4.5e13, '4.5e+13'],
    [1e10, '1e+10'],
  ])('prints the measured values, %d', async (measured, text) => {
    const autotuning = { num_tuning_micro_batch_sizes: 1 };
    const { lines } = await search({ ...STAGE1, autotuning }, { speed: () => measured });
    expect(lines[0]).toBe(`autotuning: z1_gas1_tmbspg8: ${text} samples/s`);
    expect(lines.at(-4)).toMatch(new RegExp(`global +\\| 1 +\\| ${text.replace('+', '.')} `));
  });

  test('tries smaller micro-batches after an out-of-memory error', async () => {
    const speed = (config: Config) => (micro(config) > 1 ? null : 5);
    const autotuning = { num_tuning_micro_batch_sizes: 2 };
    const { names, lines, best } = await search({ ...STAGE1, autotuning }, { speed });
    expect(names).toEqual([
      'z1_gas1_tmbspg8',
      'z1_gas1_tmbspg4',
      'z1_gas1_tmbspg2',
      'z1_gas1_tmbspg1',
    ]);
    expect(lines.join('\n')).toContain(
      'nothing: ConfigError [DsError]: no memory: here (exit code 1)',
    );
    expect(best).toMatchObject({ train_micro_batch_size_per_gpu: 1 });
  });

  test('never retries a failed candidate, in any order', async () => {
    // The search draws 2, 8 and 4: memory is short for 4, and the next smaller one has failed.
    const speed = (config: Config) => (micro(config) === 2 ? 'none' : null);
    const autotuning = { tuner_type: 'random', num_tuning_micro_batch_sizes: 3 };
    const { names } = await search({ ...STAGE1, autotuning }, { speed });
    expect(names).toEqual([
      'z1_gas1_tmbspg2',
      'z1_gas1_tmbspg8',
      'z1_gas1_tmbspg4',
      'z1_gas1_tmbspg1',
    ]);
  });

  test('ends after enough trials, or enough trials without gain', async () => {
    const open = { ...BF16, autotuning: { tuner_early_stopping: 2 } };
    expect((await search(open)).names).toHaveLength(3);
    const few = { ...BF16, autotuning: { tuner_num_trials: 4, tuner_early_stopping: 0 } };
    expect((await search(few)).names).toHaveLength(4);
  });

  test('reuses earlier results even if the monitors of the file differ', async () => {
    const flops_profiler = { enabled: true, output_file: 'flops.txt' };
    const monitors = { csv_monitor: { enabled: true }, flops_profiler };
    const file = { ...STAGE1, ...monitors, autotuning: { overwrite: false } };
    const first = await search(file);
    expect(first.names).toHaveLength(3);
    for (const key of Object.keys(monitors)) expect(first.tried[0]?.config).not.toHaveProperty(key);
    expect(first.best).toMatchObject(monitors);
    const again = await search(file);
    expect(again.names).toEqual([]);
    expect(again.best).toEqual(first.best);
  });

  test('refuses a folder with other files, and keeps other files in its own folder', async () => {
    const localTexts = [
      ['results', 'z1_gas1_tmbspg8', 'exp.json'],
      ['results', 'notes', 'exp.json'],
      ['results', 'summary.txt'],
      ['exps', 'z1_gas1_tmbspg8.json'],
    ].map((names) => join(dir, ...names));
    for (const file of localTexts) {
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, 'mine');
      const free = file.includes('exps') ? 'exps' : 'results';
      const refused = { code: 'DS_IO', op: `autotuning ${join(dir, free)}` };
      await expect(search(BF16)).rejects.toMatchObject(refused);
      expect(readFileSync(file, 'utf8')).toBe('mine');
      rmSync(join(dir, free), { recursive: true });
    }
    await search(BF16);
    const kept = join(dir, 'results', 'z1_gas1_tmbspg8', 'notes.txt');
    mkdirSync(dirname(kept), { recursive: true });
    writeFileSync(kept, 'mine');
    await search(BF16);
    expect(readFileSync(kept, 'utf8')).toBe('mine');
  });

  test.each([
    ['ranks', { slots: 1 }],
    ['arguments of the program', { args: ['--model', 'large'] }],
  ])('repeats experiments for another %s', async (_, other) => {
    const file = { ...STAGE1, autotuning: { overwrite: false } };
    const first = await search(file);
    const { names, lines } = await search(file, { ...other, speed: () => 7 });
    expect(names).toEqual(first.names);
    expect(lines[0]).toContain(' 7 samples/s');
  });

  test('reports that nothing can be measured', async () => {
    const { found, lines } = await search(STAGE1, { speed: () => null });
    expect(found.file).toBeNull();
    expect(lines.join('\n')).toContain('there is no best configuration');
  });

  test('reports the reason of a failed `ds train`', async () => {
    const stderr = 'DS_NOTICE: a\nds train: Trainer save.dir out: expected b, got c\n  at d';
    const { lines } = await search(STAGE1, { speed: () => 'none', stderr });
    expect(lines[0]).toContain(
      ': nothing: ds train: Trainer save.dir out: expected b, got c (exit',
    );
  });

  test('orders trials at random, or by the plan and its measured error', async () => {
    const all = { tuner_early_stopping: 0 };
    const listed = (await search({ ...BF16, autotuning: all })).names;
    const random = { ...BF16, autotuning: { ...all, tuner_type: 'random' } };
    const drawn = (await search(random)).names;
    expect(drawn).not.toEqual(listed);
    expect(drawn.toSorted()).toEqual(listed.toSorted());
    expect((await search(random)).names).toEqual(drawn);
    const planned = { ...BF16, autotuning: { ...all, tuner_type: 'model_based' } };
    // The prediction ranks the largest micro-batches first; a slower candidate waits.
    const speed = ({ zero_optimization: { stage } }: Config) => (stage === 0 ? 1 : 100);
    const { names } = await search(planned, { speed });
    expect(names.slice(0, 2).every((name) => name.endsWith('tmbspg8'))).toBe(true);
    expect(names.slice(-2).every((name) => name.startsWith('z0'))).toBe(true);
  });

  test('with fast: false, varies other ZeRO keys of the best candidate', async () => {
    const zero = { stage: 1, overlap_comm: [true, false], reduce_bucket_size: 5e8 };
    const autotuning = { fast: false, num_tuning_micro_batch_sizes: 1 };
    const speed = ({ zero_optimization: { overlap_comm } }: Config) => (overlap_comm ? 1 : 2);
    const { names, best } = await search(
      { ...BF16, zero_optimization: zero, autotuning },
      { speed },
    );
    expect(names).toEqual(['z1_gas1_tmbspg8', 'z1_gas1_tmbspg8_ocfalse']);
    expect(best?.zero_optimization).toEqual({ ...zero, overlap_comm: false });
    const standard = await search({
      ...STAGE1,
      autotuning: { ...autotuning, tuner_early_stopping: 0 },
    });
    expect(standard.names).toContain('z1_gas1_tmbspg8_octrue_rbs50000000');
    // The configuration with explicit defaults has been tried already.
    expect(standard.names).toHaveLength(6);
    expect(standard.names).not.toContain('z1_gas1_tmbspg8_ocfalse_rbs500000000');
  });
});
