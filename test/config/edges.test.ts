// Tests rules of the configuration at their boundaries, and the number of mistakes reported.
import { checkConfig, type DsConfig } from '../../lib/config/index.js';
import { parseConfig } from '../../lib/config/parse.js';

const MICRO = { train_micro_batch_size_per_gpu: 1 };
const check = (config: object, more: object = {}) =>
  checkConfig({ ...MICRO, ...config } as DsConfig, { worldSize: 2, ...more });
const refusal = (config: object, more: object = {}) =>
  check(config, more).errors.map(({ path, expected }) => [path, expected]);

test('torch_autocast does not affect a precision that was already enabled', () => {
  const autocast = { torch_autocast: { enabled: true, dtype: 'bfloat16' } };
  const result = check({ ...autocast }).origins?.['bf16.enabled'];
  expect(result).toEqual({ from: 'derived', of: 'torch_autocast.dtype' });
  const written = check({ ...autocast, bf16: { enabled: true } }).origins?.['bf16.enabled'];
  expect(written).not.toMatchObject({ from: 'derived' });
});

test('inference_tp_size may be 1 or the tensor-parallel size', () => {
  const hybrid = (size: number, tensor_parallel: object = { autotp_size: 2 }) =>
    refusal({ hybrid_engine: { enabled: true, inference_tp_size: size }, tensor_parallel });
  const path = 'hybrid_engine.inference_tp_size';
  expect(hybrid(2)).toEqual([]);
  expect(hybrid(1)).toEqual([]);
  expect(hybrid(4)).toEqual([[path, '1, or 2 as tensor_parallel.autotp_size']]);
  expect(hybrid(2, {})).toEqual([[path, '1']]);
});

test('an unset micro-batch follows from the given batch size', () => {
  const auto = { train_micro_batch_size_per_gpu: 'auto' };
  const { config, errors } = check(
    { ...auto, train_batch_size: 8, gradient_accumulation_steps: 2 },
    { autoLater: true },
  );
  expect(errors).toEqual([]);
  expect(config?.train_micro_batch_size_per_gpu).toBe(2);
});

test('the error of an unknown key names its section', () => {
  const strict = { strict: true };
  expect(refusal({ other: 1, fp16: { other: 1 } }, strict)).toEqual([
    ['other', 'a key of this file'],
    ['fp16.other', 'a key of fp16'],
  ]);
});

test('suggestions are made for the first hundred mistakes only', () => {
  const keys = Array.from({ length: 101 }, (_, i) => [`zero_optimizatio${i}`, {}]);
  const { notices } = check(Object.fromEntries(keys));
  const guessed = notices.filter(({ text }) => text.includes('Did you mean'));
  expect([notices.length, guessed.length]).toEqual([101, 100]);
});

test('lists up to twenty duplicate keys, and counts the rest', () => {
  const text = (count: number): string =>
    `{${Array.from({ length: 2 * count }, (_, i) => `"k${i % count}": 1`).join(', ')}}`;
  const parse = (count: number) => () => parseConfig(text(count), 'ds_config.json');
  expect(parse(20)).toThrow(/"k19" at [^,]*\)\./);
  expect(parse(23)).toThrow(/"k19" at [^,]*\), 3 more\./);
});

test('the dtype of weights agrees with the precision that is on', () => {
  const path = 'data_types.param_dtype';
  const on = { enabled: true };
  expect(refusal({ fp16: on, data_types: { param_dtype: 'fp16' } })).toEqual([]);
  expect(refusal({ bf16: on, data_types: { param_dtype: 'bf16' } })).toEqual([]);
  const expected = '"fp16", as set by fp16.enabled and bf16.enabled';
  expect(refusal({ fp16: on, data_types: { param_dtype: 'fp32' } })).toEqual([[path, expected]]);
});

test('patterns of disabled techniques are not checked', () => {
  const rows = (enabled: boolean) => ({
    shared_parameters: { enabled },
    different_groups: { one: { params: { dense_ratio: 0.5 }, modules: ['('] } },
  });
  const errors = (enabled: boolean) =>
    refusal({ compression_training: { row_pruning: rows(enabled) } });
  expect(errors(true).map(([path]) => path)).toEqual([
    'compression_training.row_pruning.different_groups.one',
  ]);
  expect(errors(false)).toEqual([]);
});

test('keys that weights in forward do not read get advice, if the technique is on', () => {
  const shared = { quantize_weight_in_forward: true, rounding: 'stochastic' };
  const advice = (enabled: boolean) =>
    check({
      compression_training: {
        weight_quantization: {
          shared_parameters: { ...shared, enabled },
          different_groups: { one: { params: { start_bits: 8, target_bits: 8 }, modules: ['*'] } },
        },
      },
    }).notices.filter(({ text }) => text.includes('rounding')).length;
  expect([advice(true), advice(false)]).toEqual([1, 0]);
});
