// Tests how options of `ds serve` and `ds chat` become engine options, and options of `ds train`
// job options.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { autotuneCommand } from '../../lib/launch/autotune.js';
import { readEngineOptions, readTemplate } from '../../lib/launch/engine-flags.js';
import * as launching from '../../lib/launch/launch.js';
import { trainCommand } from '../../lib/launch/train.js';

jest.mock('../../lib/launch/launch.js', () => ({
  ...jest.requireActual('../../lib/launch/launch.js'),
  launch: jest.fn(async () => 0),
}));

jest.mock('../../lib/launch/autotune.js', () => ({ autotuneCommand: jest.fn(async () => 0) }));

// The model of these commands is a name: nothing is downloaded.
jest.mock('../../lib/trainer/command/hub-model.js', () => ({ pullModel: jest.fn(async () => []) }));

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-flags-'));
});
afterAll(() => rmSync(dir, { recursive: true }));

function file(name: string, text: string): string {
  writeFileSync(join(dir, name), text);
  return join(dir, name);
}

test('omitted flags are left to the engine', () => {
  expect(readEngineOptions({ graphs: true })).toEqual({
    config: { enable_cuda_graph: 'auto' },
    tokenizer: undefined,
    seed: undefined,
  });
  expect(readEngineOptions({ graphs: true, tp: 1 }).config).toEqual({ enable_cuda_graph: 'auto' });
});

test('flags override the file of --config, which overrides the defaults', () => {
  const config = file('c.json', '{"dtype":"fp16","enable_cuda_graph":false,"max_out_tokens":7}');
  expect(readEngineOptions({ graphs: true, config }).config).toEqual({
    dtype: 'fp16',
    enable_cuda_graph: false,
    max_out_tokens: 7,
  });
  const options = { device: 'cpu', dtype: 'bf16', context: 9, tp: 2, seed: 0, tokenizer: 't' };
  expect(readEngineOptions({ graphs: false, config, ...options })).toEqual({
    config: {
      device: 'cpu',
      dtype: 'bf16',
      max_out_tokens: 9,
      enable_cuda_graph: false,
      tensor_parallel: { tp_size: 2 },
    },
    tokenizer: 't',
    seed: 0,
  });
});

test('--speculative-config is a JSON object', () => {
  const speculativeConfig = '{ "method": "ngram", "num_speculative_tokens": 3 }';
  expect(readEngineOptions({ graphs: true, speculativeConfig }).config).toEqual({
    enable_cuda_graph: 'auto',
    speculative: { method: 'ngram', num_speculative_tokens: 3 },
  });
  for (const wrong of ['{', '3', 'null', '[]']) {
    expect(() => readEngineOptions({ graphs: true, speculativeConfig: wrong })).toThrow(
      /--speculative-config: expected a JSON object, got/,
    );
  }
});

test('the error of an unreadable file names its option', () => {
  const absent = join(dir, 'absent');
  expect(() => readEngineOptions({ graphs: true, config: absent })).toThrow(
    /--config: expected a readable JSON file/,
  );
  const broken = file('broken.json', '{');
  expect(() => readEngineOptions({ graphs: true, config: broken })).toThrow(/--config/);
  expect(() => readTemplate(absent)).toThrow(/--chat-template: expected a readable file/);
  expect(readTemplate(undefined)).toBeUndefined();
  expect(readTemplate(file('template', 'text'))).toBe('text');
});

describe('ds train', () => {
  const rows = join(tmpdir(), 'rows.jsonl');
  const OWN = ['--model', 'tiny', '--train_file', rows, '--output_dir', 'out'];
  const startEngine = async (...words: string[]) => {
    jest.mocked(launching.launch).mockClear();
    await trainCommand([...OWN, ...words]);
    return jest.mocked(launching.launch).mock.lastCall as Parameters<typeof launching.launch>;
  };

  test('starts one process on the CPU, unless options place ranks', async () => {
    for (const cpu of [['--device', 'cpu'], ['--use_cpu']]) {
      expect((await startEngine(...cpu))[0]).toMatchObject({ num_procs: 1, module: false });
      expect((await startEngine(...cpu, '--num_procs', '3'))[0]).toMatchObject({ num_procs: 3 });
    }
    expect((await startEngine())[0].num_procs).toBeUndefined();
    expect((await startEngine('--num_gpus', '2'))[0]).toMatchObject({ num_gpus: 2 });
    const hostfile = file('hosts', 'a slots=1');
    const [options] = await startEngine('--device', 'cpu', '--hostfile', hostfile);
    expect(options.num_procs).toBeUndefined();
  });

  test('ranks get the options of the command, not those of the launcher', async () => {
    const [, { args }] = await startEngine('--num_procs', '2', '--seed', '5');
    expect(args).toEqual([...OWN, '--seed', '5']);
  });

  test('a search gets the values of --config as arguments that it can change', async () => {
    const [ds, other] = ['ds.json', 'other.json'].map((name) => file(name, '{}')) as [
      string,
      string,
    ];
    const config = file('run.yaml', `per_device_train_batch_size: 4\ndeepspeed: ${ds}\n`);
    const searchConfig = async (...words: string[]) => {
      jest.mocked(autotuneCommand).mockClear();
      await trainCommand([...OWN, '--autotuning', 'tune', '--config', config, ...words]);
      return jest.mocked(autotuneCommand).mock.lastCall?.[1].args.slice(OWN.length + 2);
    };
    const batch = ['--per_device_train_batch_size', '4'];
    expect(await searchConfig()).toEqual(expect.arrayContaining([...batch, '--deepspeed', ds]));
    expect(await searchConfig('--per-device-train-batch-size=8')).not.toContain('4');
    expect(await searchConfig('--deepspeed', other)).not.toContain(ds);
  });

  test('places that exclude each other are refused', async () => {
    await expect(startEngine('--device', 'cpu', '--num_gpus', '1')).rejects.toThrow(
      /--device: expected no "cpu" with --num_gpus/,
    );
    await expect(startEngine('--device', 'cuda:1')).rejects.toThrow(
      /--device: expected "cuda" or "cpu" without a number/,
    );
  });
});
