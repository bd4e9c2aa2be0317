// Where a configuration comes from: files, Hjson, base64, objects, program arguments; duplicates;
// and where each resolved value came from.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Command } from 'commander';

import { addConfigArguments, parseConfigArguments } from '../../lib/config/arguments.js';
import { checkConfig, type DsConfig, originLine, readConfig } from '../../lib/config/index.js';
import { type ConfigSources, configSource } from '../../lib/config/source.js';

const ONE = { worldSize: 1 };
const FULL = join(__dirname, '..', 'golden', 'ds_config.full.jsonc');

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-sources-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

function file(text: string, name = 'ds_config.json'): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

const OBJECT: DsConfig = {
  train_batch_size: 4,
  fp16: { enabled: true },
  zero_optimization: { stage: 2 },
};
const JSON_TEXT = JSON.stringify(OBJECT);

test.each<[name: string, source: () => string | DsConfig]>([
  ['an object', () => OBJECT],
  ['JSON', () => file(JSON_TEXT)],
  ['JSON with a byte order mark', () => file(`\uFEFF${JSON_TEXT}`)],
  [
    'JSON with comments',
    () =>
      file(
        '{ // x\n"train_batch_size": 4, "fp16": {"enabled": true,},\n/* y */ "zero_optimization": {"stage": 2} }',
        'c.jsonc',
      ),
  ],
  [
    'Hjson',
    () =>
      file(
        '# x\ntrain_batch_size: 4\nfp16: { enabled: true }\nzero_optimization: {\n  stage: 2\n}\n',
        'c.hjson',
      ),
  ],
  ['URL-safe base64', () => Buffer.from(`${JSON_TEXT} `).toString('base64url')],
  [
    'standard base64',
    () => Buffer.from(`{"//": "\u00ff\u00fe?>",${JSON_TEXT.slice(1)}`).toString('base64'),
  ],
])('%s', (_, source) => {
  expect(readConfig(source())).toMatchObject(OBJECT);
  expect(checkConfig(source(), ONE).config).toMatchObject(OBJECT);
});

test('duplicate keys at any depth: one error with every place', () => {
  const text =
    '{\n  "seed": 1,\n  "fp16": {\n    "enabled": true,\n    "enabled": false },\n  "seed": 2 }';
  for (const source of [file(text), Buffer.from(text).toString('base64url')]) {
    const { errors } = checkConfig(source, ONE);
    expect(errors).toHaveLength(1);
    expect(errors[0]).toMatchObject({ path: 'fp16.enabled', location: { line: 5, column: 5 } });
    expect(errors[0]?.got).toBe(
      'duplicate keys: "fp16.enabled" at 5:5 (first at 4:5), "seed" at 6:3 (first at 2:3)',
    );
  }
});

test('the error of an unquoted string shows the comment in it', () => {
  const { errors } = checkConfig(
    file(
      'train_batch_size: 4\nzero_optimization: {\n offload_optimizer: {\n device: cpu # fast\n}\n}',
    ),
    ONE,
  );
  expect(errors).toEqual([
    expect.objectContaining({
      got: '"cpu # fast"',
      location: { line: 4, column: 2 },
      hint: 'Without quotes a string runs to the end of its line: quote it.',
    }),
  ]);
});

test.each([
  ['None', 'null'],
  ['None,', 'null'],
  ['True,', 'true'],
])('Python’s %s is answered with %s', (word, cure) => {
  const text = `{\n"train_batch_size": 4,\n"zero_optimization": { "offload_param":\n${word}\n}}`;
  const [error] = checkConfig(file(text), ONE).errors;
  expect(error?.location).toEqual({ line: 3, column: 24 });
  expect(error?.hint).toBe(`Without quotes a string runs to the end of its line: write ${cure}.`);
});

test.each([
  [{ train_batch_size: 4, deep: nest(200) }, /at most 100 levels/],
  [cyclic(), /at most 100 levels/],
])('an object without end is refused', (config, message) => {
  const { errors } = checkConfig(config as DsConfig, ONE);
  expect(errors[0]?.message).toMatch(message);
});

test.each([10n, () => 1, Symbol('x'), new Map(), new Date(), [10n], Number.NaN])(
  'every invalid inline object throws DS_CONFIG: %p',
  (value) => {
    const inline = { train_batch_size: 4, seed: value, wandb: value, fp16: { enabled: value } };
    const { errors } = checkConfig(inline as unknown as DsConfig, ONE);
    expect(errors.map(({ path }) => path)).toEqual(
      expect.arrayContaining(['seed', 'fp16.enabled']),
    );
  },
);

function nest(depth: number): unknown {
  return depth === 0 ? {} : { in: nest(depth - 1) };
}

function cyclic(): unknown {
  const config: Record<string, unknown> = { train_batch_size: 4 };
  config.self = config;
  return config;
}

describe('the tutorial file', () => {
  const { config, errors, notices, origins } = checkConfig(FULL, ONE);

  test('loads', () => {
    expect(errors).toEqual([]);
    expect(config).toMatchObject({
      train_batch_size: 16,
      train_micro_batch_size_per_gpu: 2,
      gradient_accumulation_steps: 8,
      optimizer: { type: 'AdamW', params: { lr: 1e-5, weight_decay: 0.01 } },
      fp16: { enabled: true, initial_scale_power: 12 },
      zero_optimization: { stage: 2, offload_optimizer: { device: 'cpu' } },
      tensorboard: { enabled: true, job_name: 'my_deepspeed_experiment' },
      steps_per_print: 10,
      seed: 1234,
    });
  });

  test('warns once for each key without effect, and of the unknown one', () => {
    const paths = notices.map(({ path }) => path);
    expect(new Set(paths).size).toBe(paths.length);
    expect(notices.map(({ kind, path }) => [kind, path])).toContainEqual([
      'unknown',
      'zero_optimization.stage3_max_act_size',
    ]);
    expect(notices.filter(({ kind }) => kind !== 'no-effect')).toHaveLength(1);
    expect(paths).toContain('zero_optimization.offload_param');
    for (const { location: place } of notices) expect(place?.line).toBeGreaterThan(20);
  });

  test('records the origin of every value', () => {
    expect(origins?.['fp16.hysteresis']).toEqual({ from: 'file', at: `${FULL}:17:32` });
    expect(origins?.['fp16.auto_cast']).toEqual({ from: 'default' });
  });
});

test.each<[params: Record<string, number>, rate: number, origin: string]>([
  [{}, 3e-4, 'default'],
  [{ muon_lr: 0.02 }, 3e-4, 'default'],
  [{ lr: 1e-5, muon_lr: 0.02 }, 1e-5, 'derived: optimizer.params.lr'],
  [{ lr: 0.01 }, 0.01, 'derived: optimizer.params.lr'],
  [{ lr: 0.01, adam_lr: 1e-3 }, 1e-3, 'given'],
])("Muon's Adam with %j has the rate %s: %s", (params, rate, origin) => {
  const optimizer = { type: 'Muon', params } as const;
  const { config, origins } = checkConfig({ train_batch_size: 1, optimizer }, ONE);
  expect(config?.optimizer?.params).toMatchObject({ ...params, adam_lr: rate });
  expect(originLine(origins!['optimizer.params.adam_lr']!)).toBe(origin);
});

test.each<[type: 'Adam' | 'AdamW', params: object, decay: number, origin: string]>([
  ['AdamW', { torch_adam: true }, 0.01, 'derived: optimizer.params.torch_adam'],
  ['Adam', { torch_adam: true }, 0.01, 'derived: optimizer.params.torch_adam'],
  ['Adam', { torch_adam: true, adam_w_mode: false }, 0, 'default'],
  ['AdamW', { torch_adam: true, weight_decay: 0 }, 0, 'given'],
  ['AdamW', { torch_adam: false }, 0, 'default'],
])('%s with %j decays weights by %s: %s', (type, params, decay, origin) => {
  const optimizer = { type, params };
  const { config, origins } = checkConfig({ train_batch_size: 1, optimizer }, ONE);
  expect(config?.optimizer?.params).toMatchObject({ ...params, weight_decay: decay });
  expect(originLine(origins!['optimizer.params.weight_decay']!)).toBe(origin);
});

test('origins name old spellings, derived values and defaults', () => {
  const path = file(
    '{ "train_batch_size": 8,\n "bfloat16": { "enabled": true },\n "zero_optimization": { "max_live_parameters": 5 } }',
  );
  const { origins } = checkConfig(path, { worldSize: 4 });
  const lines = Object.fromEntries(
    Object.entries(origins ?? {}).map(([key, origin]) => [key, originLine(origin)]),
  );
  expect(lines).toMatchObject({
    train_batch_size: `${path}:1:3`,
    train_micro_batch_size_per_gpu: 'derived: train_batch_size, world size 4',
    'bf16.enabled': `${path}:2:16 as bfloat16.enabled`,
    'zero_optimization.stage3_max_live_parameters': `${path}:3:25 as zero_optimization.max_live_parameters`,
    'zero_optimization.stage': 'default',
  });
  const { config } = checkConfig(OBJECT, ONE);
  expect(Object.keys(config ?? {})).not.toContain('bfloat16');
});

describe('arguments', () => {
  test.each<[sources: ConfigSources, config: unknown, notices: number]>([
    [{ config: 'a.json' }, 'a.json', 0],
    [{ config: OBJECT, args: {} }, OBJECT, 0],
    [{ args: { deepspeed_config: 'a.json' } }, 'a.json', 0],
    [{ args: { deepspeedConfig: 'a.json' }, config: undefined }, 'a.json', 0],
    [{ args: { deepscale_config: 'a.json' }, config: null }, 'a.json', 1],
    [{ configParams: 'a.json' }, 'a.json', 1],
  ])('%j', (sources, config, notices) => {
    const source = configSource(sources);
    expect(source.config).toEqual(config);
    expect(source.notices).toHaveLength(notices);
  });

  test.each<[sources: ConfigSources, got: string]>([
    [{}, 'none'],
    [{ args: null, config: null }, 'none'],
    [{ args: { deepspeed: true } }, 'none'],
    [{ config: 'a', args: { deepspeed_config: 'b' } }, 'config and args.deepspeed_config'],
    [{ config: 'a', configParams: 'a' }, 'config and configParams'],
    [
      { args: { deepspeed_config: 'a', deepscale_config: 'b' } },
      'args.deepspeed_config and args.deepscale_config',
    ],
  ])('%j is refused', (sources, got) => {
    expect(() => configSource(sources)).toThrow(
      expect.objectContaining({ code: 'DS_ARGUMENT', got }),
    );
  });

  test('a commander command gets the options', () => {
    const command = addConfigArguments(new Command().exitOverride());
    command.parse(['--deepspeed', '--deepspeed_config', 'x.json'], { from: 'user' });
    expect(configSource({ args: command.opts() }).config).toBe('x.json');
  });

  test.each<[argv: string[], args: unknown, rest: string[]]>([
    [[], {}, []],
    [['--lr', '1', '--deepspeed', 'x'], { deepspeed: true }, ['--lr', '1', 'x']],
    [['--deepspeed_config', 'a.json', 'y'], { deepspeed_config: 'a.json' }, ['y']],
    [['--deepspeed-config=a=b.json'], { deepspeed_config: 'a=b.json' }, []],
    [['--deepscale', '--deepscale_config', 'a'], { deepspeed: true, deepscale_config: 'a' }, []],
    [['--', '--deepspeed'], {}, ['--', '--deepspeed']],
  ])('%j', (argv, args, rest) => {
    expect(parseConfigArguments(argv)).toEqual({ args, rest });
  });

  test.each([
    [['--deepspeed_config']],
    [['--deepspeed_config', '--deepspeed']],
    [['--deepspeed_config=']],
  ])('%j lacks the file', (argv) => {
    expect(() => parseConfigArguments(argv)).toThrow(/expected the path of a ds_config.json/);
  });
});

describe('"auto" that a Trainer fills', () => {
  const LATER = { worldSize: 2, autoLater: true };
  const AUTO = {
    train_batch_size: 'auto',
    train_micro_batch_size_per_gpu: 'auto',
    fp16: { enabled: 'auto' },
    scheduler: { type: 'WarmupDecayLR', params: { total_num_steps: 'auto' } },
    zero_optimization: { stage: 3, stage3_prefetch_bucket_size: 'auto' },
  } as unknown as DsConfig;

  test('is listed, and the other keys are checked', () => {
    const { config, left, notices } = checkConfig(AUTO, LATER);
    expect(config?.zero_optimization.stage).toBe(3);
    const open = [
      'train_batch_size',
      'train_micro_batch_size_per_gpu',
      'fp16.enabled',
      'scheduler.params.total_num_steps',
      'zero_optimization.stage3_prefetch_bucket_size',
    ];
    expect([...(left ?? [])]).toEqual(open);
    expect(notices.map(({ kind, path }) => [kind, path])).toEqual(
      open.map((path) => ['auto', path]),
    );
    const wrong = { ...AUTO, gradient_clipping: -1 };
    expect(checkConfig(wrong, LATER).errors.map(({ path }) => path)).toEqual(['gradient_clipping']);
  });

  test('lists the values that the sources do not have', () => {
    const auto = { training: { perDeviceBatchSize: 3, totalSteps: 9, fp16: true } };
    const { config, left } = checkConfig(AUTO, { ...LATER, auto });
    expect(config).toMatchObject({ train_batch_size: 6, fp16: { enabled: true } });
    expect([...(left ?? [])]).toEqual(['zero_optimization.stage3_prefetch_bucket_size']);
  });

  test('omits fp16.auto_cast, which depends on fp16.enabled', () => {
    const adviceOf = (enabled: unknown) => {
      const config = { ...AUTO, fp16: { enabled, auto_cast: true } } as unknown as DsConfig;
      const { errors, notices } = checkConfig(config, LATER);
      expect(errors).toEqual([]);
      return notices.filter(({ kind }) => kind === 'advice').map(({ path, text }) => [path, text]);
    };
    const text =
      'has no effect because fp16.enabled is false: inputs of forward are not converted.';
    expect(adviceOf('auto')).toEqual([]);
    expect(adviceOf(true)).toEqual([]);
    expect(adviceOf(false)).toEqual([['fp16.auto_cast', text]]);
    expect(adviceOf(undefined)).toEqual([['fp16.auto_cast', text]]);
  });

  test('is an error if no argument fills it, and in training', () => {
    const odd = { ...AUTO, vocabulary_size: 'auto' } as unknown as DsConfig;
    expect(checkConfig(odd, LATER).errors.map(({ path }) => path)).toEqual(['vocabulary_size']);
    expect(checkConfig(AUTO, { worldSize: 2 }).errors[0]?.got).toMatch(
      /"auto" in train_batch_size/,
    );
  });

  test('only the global batch follows from the samples of a device', () => {
    const auto = { training: { perDeviceBatchSize: 3 } };
    const alone = { train_batch_size: 'auto' } as unknown as DsConfig;
    expect(checkConfig(alone, { worldSize: 2, auto }).config?.train_batch_size).toBe(6);
  });
});

describe('a configuration of accelerate is refused, and the error names the keys of DeepSpeed', () => {
  const plugin = {
    gradient_accumulation_steps: 4,
    gradient_clipping: 0.5,
    zero_stage: 3,
    offload_optimizer_device: 'cpu',
    offload_param_device: 'none',
    zero3_init_flag: true,
    zero3_save_16bit_model: true,
  };
  const around = { compute_environment: 'LOCAL_MACHINE', distributed_type: 'DEEPSPEED' };
  const yaml = (section: object): string =>
    [
      'compute_environment: LOCAL_MACHINE',
      'deepspeed_config:',
      ...Object.entries(section).map(([key, value]) => `  ${key}: ${value}`),
      "distributed_type: DEEPSPEED\ndowncast_bf16: 'no'\nmixed_precision: bf16\nnum_processes: 8",
    ].join('\n');
  const same = {
    train_micro_batch_size_per_gpu: 'auto',
    gradient_accumulation_steps: 4,
    gradient_clipping: 0.5,
    zero_optimization: {
      stage: 3,
      offload_optimizer: { device: 'cpu' },
      stage3_gather_16bit_weights_on_model_save: true,
    },
    bf16: { enabled: true },
  };

  test.each<[string, () => string | object]>([
    ['YAML', () => file(yaml(plugin), 'accelerate.yaml')],
    ['an object', () => ({ ...around, mixed_precision: 'bf16', deepspeed_config: plugin })],
  ])('%s', (_, source) => {
    const { errors, notices } = checkConfig(source() as DsConfig, ONE);
    expect(notices).toEqual([]);
    const [error] = errors;
    expect(error?.message).toMatch(/got a configuration of accelerate\. Write a file of \{/);
    const [, written = ''] = error?.hint.match(/file of (\{.*\}) instead/) ?? [];
    expect(JSON.parse(written)).toEqual(same);
    const auto = { training: { perDeviceBatchSize: 1 } };
    expect(checkConfig(JSON.parse(written), { worldSize: 1, auto }).errors).toEqual([]);
  });

  test('one that names a file', () => {
    const path = file(yaml({ deepspeed_config_file: 'ds/zero3.json' }), 'accelerate.yaml');
    const [error] = checkConfig(path, ONE).errors;
    expect(error?.message).toContain('Pass the file that it names: ds/zero3.json.');
  });
});
