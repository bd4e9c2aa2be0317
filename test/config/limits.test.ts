// Tests rules at their limits: the last accepted value, the first refused value, and the key in the
// error.

import { coerceValue } from '../../lib/config/coerce.js';
import { formatConfigValue } from '../../lib/config/config-error.js';
import { checkConfig, type DsConfig } from '../../lib/config/index.js';
import { readParallelSizes } from '../../lib/config/source.js';

const check = (config: object, worldSize = 2) =>
  checkConfig({ train_micro_batch_size_per_gpu: 2, ...config } as DsConfig, { worldSize });

const errorsOf = (config: object, worldSize = 2): string =>
  check(config, worldSize)
    .errors.map(({ message }) => message)
    .join('\n');

const folders = (key: string) => ({ autotuning: { enabled: true, [key]: '' } });

const weights = (shared: object, params: object) => ({
  compression_training: {
    weight_quantization: {
      shared_parameters: { enabled: true, schedule_offset: 0, ...shared },
      different_groups: { a: { params: { start_bits: 8, ...params }, modules: ['x'] } },
    },
  },
});
const heads = (shared: object) => ({
  compression_training: {
    head_pruning: {
      shared_parameters: { enabled: true, schedule_offset: 0, ...shared },
      different_groups: { a: { params: { dense_ratio: 0.5 }, modules: ['x'] } },
    },
  },
});
const layers = (section: object) => ({
  compression_training: { layer_reduction: { enabled: true, ...section } },
});

test.each<[object, RegExp]>([
  [folders('results_dir'), /autotuning\.results_dir: expected a folder.*"autotuning_results"/],
  [folders('exps_dir'), /autotuning\.exps_dir: expected a folder.*"autotuning_exps"/],
  [
    weights({ quantization_type: 'asymmetric' }, { target_bits: 2 }),
    /different_groups\.a\.params\.target_bits: expected at least 3, got 2/,
  ],
  [weights({}, { start_bits: 3, target_bits: 4 }), /a\.params\.start_bits: expected at least/],
  [
    heads({}),
    /head_pruning\.shared_parameters\.num_heads: expected the number of heads of a layer/,
  ],
  [
    layers({ module_name_prefix: 'h', teacher_layer: [1, 3], keep_number_layer: 3 }),
    /layer_reduction\.teacher_layer: expected 3 layers/,
  ],
  [layers({ teacher_layer: [1] }), /layer_reduction\.module_name_prefix: expected a path/],
])('%j is refused', (config, message) => {
  expect(errorsOf(config)).toMatch(message);
});

test.each<[object]>([
  [weights({ quantization_type: 'symmetric' }, { target_bits: 2 })],
  [weights({ quantization_type: 'asymmetric' }, { target_bits: 3 })],
  [weights({}, { start_bits: 4, target_bits: 4 })],
  [heads({ num_heads: 4 })],
  [layers({ module_name_prefix: 'h', teacher_layer: [1, 3], keep_number_layer: 2 })],
])('%j is accepted', (config) => {
  expect(errorsOf(config)).not.toMatch(/target_bits|start_bits|num_heads|teacher_layer/);
});

describe('elasticity', () => {
  const elastic = (section: object, worldSize = 4) => {
    const settings = { enabled: true, micro_batch_sizes: [2, 4], min_gpus: 1, max_gpus: 8 };
    const elasticity = { max_train_batch_size: 64, version: 0.1, ...settings, ...section };
    return checkConfig({ elasticity } as DsConfig, { worldSize }).errors.map(
      ({ message }) => message,
    );
  };

  test('the error names missing keys', () => {
    expect(elastic({ max_train_batch_size: null }).join()).toMatch(
      /elasticity\.max_train_batch_size: expected the largest batch size/,
    );
    expect(elastic({ micro_batch_sizes: [] }).join()).toMatch(
      /elasticity\.micro_batch_sizes: expected a list of micro-batch sizes/,
    );
  });

  test('a range without a number of GPUs that divides a batch is refused', () => {
    expect(elastic({ min_gpus: 5, max_gpus: 5, max_train_batch_size: 8 }).join()).toMatch(
      /elasticity\.min_gpus: expected a range with a number of GPUs .*, got 5 to 5/,
    );
  });

  test('the largest micro-batch may equal the largest batch', () => {
    expect(elastic({ micro_batch_sizes: [2, 64] }).join()).not.toMatch(/micro_batch_sizes/);
    expect(elastic({ micro_batch_sizes: [2, 65] }).join()).toMatch(
      /elasticity\.micro_batch_sizes: expected at most 64, because the largest batch is 64, got 65/,
    );
  });

  test('numbers of ranks are listed in order', () => {
    const [message = ''] = elastic({}, 5);
    const numbers = /samples: ([\d, ]+), got 5/.exec(message)?.[1]?.split(', ').map(Number) ?? [];
    expect(numbers.length).toBeGreaterThan(2);
    expect(numbers).toEqual([...numbers].sort((a, b) => a - b));
  });
});

describe('layers that drop tokens', () => {
  const droppingConfig = (ltd: object) => ({
    data_efficiency: {
      enabled: true,
      data_routing: { enabled: true, random_ltd: { enabled: true, ...ltd } },
    },
  });
  const ids = (random_ltd_layer_id: number[], total_layer_num?: number) =>
    errorsOf(droppingConfig({ random_ltd_layer_id, total_layer_num, random_ltd_layer_num: 2 }));

  test('are below the number of layers, which may be left out', () => {
    expect(ids([0, 3], 4)).not.toMatch(/numbers below/);
    expect(ids([0, 4], 4)).toMatch(
      /random_ltd_layer_id: expected numbers below 4, the total_layer_num/,
    );
    expect(ids([0, 4])).not.toMatch(/numbers below/);
    expect(ids([1, 1], 4)).toMatch(/each layer once/);
    expect(ids([0, 1, 2], 4)).toMatch(/expected 2 layers/);
  });

  const schedule = {
    min_value: 16,
    max_value: 64,
    schedule_type: 'fixed_linear',
    schedule_config: { require_steps: 10, seq_per_step: 16 },
  };
  const scheduleErrors = (change: object) =>
    errorsOf(
      droppingConfig({ random_ltd_layer_id: [0], random_ltd_schedule: { ...schedule, ...change } }),
    );
  test.each<[change: object, key: string]>([
    [{ min_value: null }, 'min_value'],
    [{ max_value: null }, 'max_value'],
    [{ schedule_config: { seq_per_step: 16 } }, 'schedule_config.require_steps'],
    [{ schedule_config: { require_steps: 10 } }, 'schedule_config.seq_per_step'],
  ])('without a part of their schedule, %j, are refused', (change, key) => {
    expect(scheduleErrors({})).not.toContain('random_ltd_schedule');
    expect(scheduleErrors(change)).toContain(
      `random_ltd.random_ltd_schedule.${key}: expected a value, because random_ltd is on, got none`,
    );
  });
});

test('mics_shard_size and zero_hpz_partition_size exclude each other', () => {
  const zero = (section: object) =>
    errorsOf({ zero_optimization: { stage: 3, ...section } }, 4).match(
      /zero_hpz_partition_size.*/,
    )?.[0];
  expect(zero({ mics_shard_size: 2, zero_hpz_partition_size: 2 })).toMatch(/expected 1 with mics/);
  expect(zero({ mics_shard_size: 2, zero_hpz_partition_size: 1 })).toBeUndefined();
  expect(zero({ zero_hpz_partition_size: 2 })).toBeUndefined();
});

test('"auto" is accepted for keys of any type', () => {
  const { errors } = checkConfig(
    { train_batch_size: 'auto', gradient_clipping: 'auto', bf16: { enabled: 'auto' } } as DsConfig,
    { worldSize: 1, autoLater: true },
  );
  expect(errors).toEqual([]);
});

test('errors show any value in a limited length', () => {
  expect(formatConfigValue(null)).toBe('null');
  expect(formatConfigValue(undefined)).toBe('undefined');
  expect(formatConfigValue({ a: 1, b: 2 })).toBe('an object with 2 keys');
  expect(formatConfigValue(new Float32Array(3))).toBe('a Float32Array');
  expect(formatConfigValue(() => 1)).toBe('a function');
  expect(formatConfigValue('a"b')).toBe('"a\\"b"');
  expect(formatConfigValue([1, [2, 'x']])).toBe('[1, [2, "x"]]');
  expect(formatConfigValue(Array(500).fill(1))).toMatch(/^\[1, 1, .*\.\.\. \(500 items\)\]$/);
  expect(formatConfigValue('x'.repeat(10_000)).length).toBeLessThan(1000);
});

test('the nesting of a configuration has a limit', () => {
  const nest = (levels: number): object => {
    let value: object = {};
    for (let i = 0; i < levels; ++i) value = { x: value };
    return value;
  };
  expect(errorsOf(nest(50))).not.toMatch(/levels of nesting/);
  expect(errorsOf(nest(5000))).toMatch(/at most \d+ levels of nesting/);
});

test('an inline configuration that holds itself is refused', () => {
  const list: unknown[] = [];
  list.push(list);
  expect(errorsOf({ x: list })).toMatch(
    /^x\.0\.0: expected at most 100 levels of nesting, got more/,
  );
});

test('the values of an inline configuration have a limit, 100,000', () => {
  const withItems = (items: number) =>
    checkConfig({ x: Array(items).fill(1) } as DsConfig, { worldSize: 1 });
  // The key is a value too.
  expect(withItems(99_999).errors.join()).not.toMatch(/values, got more/);
  expect(withItems(100_000).errors.join()).toMatch(/x: expected at most 100000 values, got more/);
});

test.each<[object, RegExp]>([
  [{ pipeline: { stages: 0 } }, /pipeline\.stages: expected "auto" or an integer >= 1, got 0/],
  [{ pipeline: { stages: false } }, /pipeline\.stages: expected "auto" or an integer >= 1, got 0/],
])('%j: the error lists all valid values of the key', (config, message) => {
  expect(errorsOf(config)).toMatch(message);
});

test.each<[shared: object, params: object, unread: string | null]>([
  [{}, { target_bits: 4 }, 'start_bits has'],
  [{}, { target_bits: 8 }, null],
  [{ rounding: 'stochastic' }, { target_bits: 8 }, 'rounding has'],
  [{ fp16_mixed_quantize: { enabled: true } }, { target_bits: 8 }, 'fp16_mixed_quantize has'],
  [{ rounding: 'stochastic' }, { target_bits: 4 }, 'start_bits, rounding have'],
])(
  'quantize_weight_in_forward with %j and %j: one notice of unread keys',
  (shared, params, keys) => {
    const on = { quantize_weight_in_forward: true, rounding: 'nearest', ...shared };
    const path =
      'compression_training.weight_quantization.shared_parameters.quantize_weight_in_forward';
    const found = check(weights(on, params)).notices.filter((notice) => notice.path === path);
    expect(found.map(({ text }) => text)).toEqual(
      keys === null ? [] : [expect.stringContaining(`is true, so ${keys} no effect`)],
    );
    const off = check(weights({ ...on, quantize_weight_in_forward: false }, params)).notices;
    expect(off.filter((notice) => notice.path === path)).toEqual([]);
  },
);

test.each<[unknown, number]>([
  [1, 1],
  [2, 2],
  [0, 1],
  [-2, 1],
  [2.5, 1],
  ['x', 1],
  [undefined, 1],
])('sequence_parallel_size %j: %d ranks of the tokens', (sequence_parallel_size, tokens) => {
  expect(readParallelSizes({ sequence_parallel_size } as DsConfig).tokens).toBe(tokens);
});

test.each<[unknown, object, unknown]>([
  ['TRUE', { type: 'boolean' }, true],
  ['Off', { type: 'boolean' }, false],
  ['offf', { type: 'boolean' }, 'offf'],
  ['False', { type: 'boolean' }, false],
  [' 1e-3 ', { type: 'number' }, 0.001],
  ['12', { type: 'integer' }, 12],
  ['1.5', { type: 'integer' }, '1.5'],
  ['12', { type: ['string', 'number'] }, '12'],
  ['x', { type: 'number' }, 'x'],
  [true, { type: 'number' }, 1],
  [1, { type: 'boolean' }, true],
  [0, { type: 'boolean' }, false],
  [2, { type: 'boolean' }, 2],
  [1, { type: ['boolean', 'integer'] }, 1],
])('%j as %j is %j', (value, schema, expected) => {
  expect(coerceValue(value, schema as never)).toEqual(expected);
});

test.each([
  [null, 'null'],
  [[], 'an array'],
  [3, 'number'],
  [undefined, 'undefined'],
])('a configuration that is %j is refused as such', (source, got) => {
  const [error] = checkConfig(source as never, { worldSize: 1 }).errors;
  expect(error?.message).toMatch(new RegExp(`or an object, got ${got}`));
});
