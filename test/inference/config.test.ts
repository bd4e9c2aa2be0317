// Tests the configuration of initInference(): every key and alias, refused keys, and keys without
// effect.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Ajv2020 } from 'ajv/dist/2020.js';
import published from '../../ds_inference_config.schema.json';
import type { DsError } from '../../lib/errors.js';
import {
  DeepSpeedInferenceConfig,
  DeepSpeedMoEConfig,
  DeepSpeedTPConfig,
  InferenceCheckpointConfig,
  QuantizationConfig,
} from '../../lib/inference/config/factories.js';
import {
  defaultInferenceConfig,
  type InferenceConfig,
  inferenceSchema,
  resolveInferenceConfig,
} from '../../lib/inference/config/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { thrownBy } from '../support/refusal.js';

type Given = Record<string, unknown>;

const resolve = (config: Given, options: Given = {}) =>
  resolveInferenceConfig(config as InferenceConfig, options as InferenceConfig);

const errorOf = (config: Given | string, options: Given = {}): DsError =>
  thrownBy(() => resolveInferenceConfig(config as InferenceConfig, options as InferenceConfig));

test('without a configuration everything has its default', () => {
  const { notices, ...values } = resolveInferenceConfig();
  expect(notices).toEqual([]);
  expect(values).toMatchObject({
    dtype: null,
    device: null,
    max_out_tokens: null,
    min_out_tokens: 1,
    tensor_parallel: { enabled: true, tp_size: 1, tp_grain_size: 64, mpu: null, tp_group: null },
    moe: { enabled: true, ep_size: 1, moe_experts: [1], type: 'standard' },
    kv_cache: { block_size: 64, blocks: null, memory: null, prefix_caching: true },
    quant: null,
    replace_method: 'auto',
    return_tuple: true,
    training_mp_size: 1,
  });
  expect(Object.isFrozen(values.moe)).toBe(true);
  const defaults = defaultInferenceConfig();
  expect(defaults).toEqual(values);
  defaults.max_out_tokens = 7;
  expect(defaultInferenceConfig().max_out_tokens).toBeNull();
});

test('the defaults are a configuration without a notice', () => {
  const defaults: Given = JSON.parse(JSON.stringify(defaultInferenceConfig()));
  expect(resolve(defaults).notices).toEqual([]);
});

/** Keys of DeepSpeed's classes; a page of the docs lists them by section. */
const DEEPSPEED: Readonly<Record<string, readonly string[]>> = {
  '': [
    ...['replace_with_kernel_inject', 'dtype', 'tensor_parallel', 'enable_cuda_graph'],
    ...['use_triton', 'triton_autotune', 'zero', 'triangular_masking', 'moe'],
    ...['keep_module_on_host', 'quant', 'checkpoint', 'base_dir', 'set_empty_params'],
    ...['save_mp_checkpoint_path', 'checkpoint_config', 'return_tuple', 'training_mp_size'],
    ...['replace_method', 'injection_policy', 'injection_policy_tuple', 'config'],
    ...['max_out_tokens', 'min_out_tokens', 'transposed_mode', 'mp_size', 'mpu', 'ep_size'],
    ...['ep_group', 'ep_mp_group', 'moe_experts', 'moe_type'],
    ...['kernel_inject', 'tp', 'tm', 'ckpt_config', 'injection_dict', 'args', 'max_tokens'],
    ...['min_tokens', 'expert_group', 'expert_mp_group'],
  ],
  tensor_parallel: ['enabled', 'tp_size', 'tp_grain_size', 'mpu', 'tp_group'],
  moe: ['enabled', 'ep_size', 'moe_experts', 'num_experts', 'type', 'ep_mp_group', 'ep_group'],
  quant: ['enabled', 'activation', 'weight', 'qkv'],
  checkpoint_config: ['checkpoint_dir', 'save_mp_checkpoint_path', 'base_dir'],
};

test.each(Object.entries(DEEPSPEED))('DeepSpeed\'s keys in "%s" are known', (section, names) => {
  const { properties = {} } = section
    ? (inferenceSchema.properties?.[section] ?? {})
    : inferenceSchema;
  const known = Object.entries(properties).flatMap(([key, { dsAlias = [] }]) => [key, ...dsAlias]);
  expect(names.filter((name) => !known.includes(name))).toEqual([]);
});

test.each([
  [{ max_tokens: 64 }, 'max_out_tokens', 64],
  [{ min_tokens: '3' }, 'min_out_tokens', 3],
  [{ tp: { tp_size: 2 } }, 'tensor_parallel.tp_size', 2],
  [{ mp_size: 3 }, 'tensor_parallel.tp_size', 3],
  [{ moe: false }, 'moe.enabled', false],
  [{ moe: true }, 'moe.ep_size', 1],
  [{ moe: { num_experts: [4] } }, 'moe.moe_experts', [4]],
  [{ moe_type: 'residual' }, 'moe.type', 'residual'],
  [{ ckpt_config: { base_dir: 'x' } }, 'checkpoint_config.base_dir', 'x'],
  [{ dtype: 'torch.half' }, 'dtype', 'fp16'],
  [{ dtype: 'float16' }, 'dtype', 'fp16'],
  [{ dtype: 'bfloat' }, 'dtype', 'bf16'],
  [{ dtype: 'torch.bfloat16' }, 'dtype', 'bf16'],
  [{ dtype: 'torch.float32' }, 'dtype', 'fp32'],
  [{ dtype: 'float' }, 'dtype', 'fp32'],
  [{ dtype: 'auto' }, 'dtype', null],
  [{ device: 'auto' }, 'device', 'auto'],
  [{ device: cpu() }, 'device', 'cpu'],
  [{ kv_cache: { block_size: 16, blocks: 9 } }, 'kv_cache.blocks', 9],
])('%j is read as %s = %j', (config, path, value) => {
  const found = path
    .split('.')
    .reduce<unknown>((at, key) => (at as Given)[key], resolve(config as Given));
  expect(found).toEqual(value);
});

test.each([
  [{ kernel_inject: true }, /^kernel_inject has no effect: models always use fused kernels/],
  [{ tm: false }, /^tm has no effect: the model decides/],
  [{ return_tuple: false }, /^return_tuple has no effect/],
  [{ replace_method: 'module' }, /^replace_method has no effect/],
  [{ zero: { stage: 3 } }, /^zero has no effect: use initialize\(\) at stage 3/],
  [{ checkpoint_config: { base_dir: 'x' } }, /^checkpoint_config has no effect/],
  [{ training_mp_size: 2 }, /^training_mp_size has no effect/],
  [{ mp_size: 1 }, /^mp_size is deprecated: write tensor_parallel.tp_size/],
  [{ expert_group: null }, /^expert_group is deprecated: write moe.ep_group/],
  [{ max_out_tokens: 'auto' }, /^max_out_tokens is "auto": the default applies/],
  [{ min_out_tokens: '2' }, /^min_out_tokens is read as 2/],
])('%j gets one notice', (config, notice) => {
  const { notices } = resolve(config as Given);
  expect(notices).toHaveLength(1);
  expect(notices[0]).toMatch(notice);
});

test.each<[Given, string, RegExp]>([
  [{ max_model_len: 9 }, 'max_model_len', /which is unknown. .* it is "max_out_tokens"/],
  [{ max_out_token: 9 }, 'max_out_token', /which is unknown. Did you mean "max_out_tokens"/],
  [{ quantization_setting: 8 }, 'quantization_setting', /a key of this file/],
  [{ tp: { size: 2 } }, 'tp.size', /a key of tensor_parallel/],
  [{ max_tokens: 1, max_out_tokens: 1 }, 'max_tokens', /or its other name, not both/],
  [{ mp_size: 1, tp: { tp_size: 1 } }, 'mp_size', /tensor_parallel.tp_size or its other name/],
  [{ max_out_tokens: 0 }, 'max_out_tokens', /a value >= 1, got 0/],
  [{ min_tokens: 9, max_tokens: 8 }, 'min_tokens', /at most max_out_tokens, 8, got 9/],
  [{ dtype: 'fp8' }, 'dtype', /"fp16", "bf16", "fp32".*got "fp8"/],
  [{ dtype: 16 }, 'dtype', /got 16/],
  [{ tp: { tp_size: 0 } }, 'tp.tp_size', /a value >= 1, got 0/],
  [
    { mp_size: 2, dtype: 'int8', save_mp_checkpoint_path: 'x' },
    'save_mp_checkpoint_path',
    /no folder if weights are quantized and tp_size is above 1/,
  ],
  [
    { tp: { tp_size: 2 }, quant: {}, save_mp_checkpoint_path: 'x' },
    'save_mp_checkpoint_path',
    /no folder if weights are quantized and tp_size is above 1/,
  ],
  [{ ep_size: 4, tp: { tp_size: 2 } }, 'ep_size', /1 or tensor_parallel.tp_size, 2/],
  [{ use_triton: true }, 'use_triton', /Triton needs Python/],
  [{ quant: { activation: { num_bits: 4 } } }, 'quant.activation', /activations keep the model/],
  [{ quant: { weight: { q_type: 'asymmetric' } } }, 'quant.weight.q_type', /use "symmetric"/],
  [{ quant: { weight: { num_bits: 3 } } }, 'quant.weight.num_bits', /got 3/],
  [{ mpu: new Map([[1, 2]]) }, 'mpu', /"an object of class Map"/],
  [{ tp: { mpu: new Date() } }, 'tp.mpu', /use the mesh: see comm.initDistributed/],
  [{ injection_dict: { Block: ['o'] } }, 'injection_dict', /the model has its own plan/],
  [
    { speculative: { prompt_lookup_min: 6 } },
    'speculative.prompt_lookup_min',
    /at most .*, 5, got 6/,
  ],
  [{ speculative: { method: 'ngram', model: 'x' } }, 'speculative.model', /null for the method/],
  [{ speculative: { method: 'draft_model' } }, 'speculative.model', /a folder or a name/],
  [
    { speculative: { model: 'x' }, tensor_parallel: { tp_size: 2 } },
    'speculative.model',
    /null if ranks share the model/,
  ],
  [{ kv_cache: { blocks: 1, memory: 1 } }, 'kv_cache.blocks', /kv_cache.blocks or kv_cache.memory/],
  [{ kv_cache: { block_size: 8 } }, 'kv_cache.block_size', /a value >= 16, got 8/],
  [{ moe: { type: 'odd' } }, 'moe.type', /"standard", "residual"/],
])('%j is refused at %s', (config, path, message) => {
  const error = errorOf(config);
  expect(error).toMatchObject({ code: 'DS_CONFIG', op: path });
  expect(error.message).toMatch(message);
});

test('errors of a file have lines, and all are reported', () => {
  const folder = mkdtempSync(join(tmpdir(), 'ds-inference-config-'));
  const file = join(folder, 'inference.json');
  try {
    writeFileSync(
      file,
      '{\n  // Comments are fine.\n  "dtype": "half",\n  "tp": { "tp_size": 0 },\n  "x": 1\n}',
    );
    const error = errorOf(file);
    expect(error.op).toBe(`${file}:4:11: tp.tp_size`);
    expect(error.hint).toMatch(/\(1 more: x\.\)$/);
    writeFileSync(file, '{ "dtype": "half", "max_tokens": 77 }');
    expect(resolveInferenceConfig(file)).toMatchObject({ dtype: 'fp16', max_out_tokens: 77 });
    expect(errorOf(join(folder, 'none.json')).message).toMatch(
      /a readable ds_inference_config.json/,
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
  expect(errorOf(7 as unknown as string).message).toMatch(/ds_inference_config.json, or an object/);
});

test('options of the call add to the configuration, and must not contradict it', () => {
  expect(resolve({ dtype: 'half' }, { max_tokens: 5 })).toMatchObject({
    dtype: 'fp16',
    max_out_tokens: 5,
  });
  expect(resolve({ dtype: 'half' }, { dtype: 'torch.float16' }).dtype).toBe('fp16');
  expect(resolve({ tp: { tp_size: 1 } }, { tensor_parallel: { tp_size: 1 } }).notices).toEqual([]);
  const error = errorOf({ max_tokens: 8 }, { max_out_tokens: 9 });
  expect(error.message).toMatch(/^max_tokens: expected the same .*, got 8 and 9. Keep one of them/);
  expect(errorOf({}, { max_token: 9 }).message).toMatch(/Did you mean "max_tokens"/);
});

describe('the schema for editors', () => {
  const check = new Ajv2020({ strict: true, strictTypes: false }).compile(published);
  test.each([
    [{}],
    [{ dtype: 'torch.half', moe: true, tp: { tp_size: 1 } }],
    [{ mp_size: 1, max_tokens: 9, quant: null, zero: { stage: 3 } }],
    [{ moe: { num_experts: [1, 2] }, checkpoint: { type: 'bloom' } }],
  ])('accepts %j', (config) => {
    expect([check(config), check.errors]).toEqual([true, null]);
  });
  test.each([[{ dtype: 'fp8' }], [{ max_out_token: 1 }], [{ tp: { tp_size: 0 } }], [{ moe: 1 }]])(
    'reports %j',
    (config) => {
      expect(check(config)).toBe(false);
    },
  );
});

test('every key is described by a sentence, typed, and valid by default', () => {
  const ajv = new Ajv2020({ strict: false });
  const visit = (schema: typeof inferenceSchema, path: string): void => {
    for (const [key, property] of Object.entries(schema.properties ?? {})) {
      const place = `${path}${key}`;
      expect([place, /^\S[^\n]*\.$/.test(property.description ?? '')]).toEqual([place, true]);
      expect([place, Boolean(property.type ?? property.enum ?? property.anyOf)]).toEqual([
        place,
        true,
      ]);
      if (property.default !== undefined) {
        expect([place, ajv.compile(property)(property.default)]).toEqual([place, true]);
      } else expect([place, property.deprecated ?? key === '$schema']).toEqual([place, true]);
      visit(property, `${place}.`);
    }
  };
  visit(inferenceSchema, '');
});

describe("DeepSpeed's classes", () => {
  test("returns the given values under today's names, checked", () => {
    expect(DeepSpeedTPConfig()).toEqual({});
    expect(DeepSpeedTPConfig({ tp_size: 2 })).toEqual({ tp_size: 2 });
    expect(DeepSpeedMoEConfig({ num_experts: [4] })).toEqual({ moe_experts: [4] });
    expect(InferenceCheckpointConfig({ base_dir: 'a' })).toEqual({ base_dir: 'a' });
    const tp = DeepSpeedTPConfig({ tp_size: 2 });
    const config = DeepSpeedInferenceConfig({ dtype: 'half', tp, max_tokens: 7 });
    expect(config).toEqual({ dtype: 'fp16', tensor_parallel: { tp_size: 2 }, max_out_tokens: 7 });
    expect(resolveInferenceConfig(config)).toMatchObject({ max_out_tokens: 7, notices: [] });
    const off = QuantizationConfig({ enabled: true, activation: { enabled: false } });
    expect(off).toEqual({ enabled: true });
  });

  test.each<[() => unknown, RegExp]>([
    [() => DeepSpeedTPConfig({ tp_size: 0 }), /tensor_parallel.tp_size: expected a value >= 1/],
    [() => DeepSpeedTPConfig({ size: 2 } as never), /tensor_parallel.size: .*which is unknown/],
    [
      () => QuantizationConfig({ activation: { enabled: true } }),
      /quant.activation: .*activations keep/,
    ],
    [() => DeepSpeedMoEConfig({ ep_size: 'two' as never }), /moe.ep_size/],
    [() => DeepSpeedInferenceConfig({ min_tokens: 9, max_tokens: 8 }), /at most max_out_tokens/],
  ])('refuse what initInference() refuses: %s', (call, message) => {
    expect(call).toThrow(message);
  });
});
