// Tests that torch_autocast selects the precision, with its notices and errors.
import { checkConfig, type DsConfig, resolveConfig } from '../../lib/config/index.js';

const BASE = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'AdamW' as const } };
const check = (config: object) => checkConfig({ ...BASE, ...config } as DsConfig, { worldSize: 2 });

test.each([
  ['torch.bfloat16', { bf16: true, fp16: false }],
  ['bfloat16', { bf16: true, fp16: false }],
  ['half', { bf16: false, fp16: true }],
])('%s switches the precision on, and a notice says what differs', (dtype, on) => {
  const off = { bf16: { enabled: false }, fp16: { enabled: false, initial_scale_power: 9 } };
  const { config, notices, origins } = check({ ...off, torch_autocast: { enabled: true, dtype } });
  expect(config?.bf16.enabled).toBe(on.bf16);
  expect(config?.fp16).toMatchObject({ enabled: on.fp16, initial_scale_power: 9 });
  const key = on.bf16 ? 'bf16' : 'fp16';
  expect(notices.map(({ path }) => path)).toEqual(['torch_autocast.enabled']);
  expect(notices[0]?.text).toMatch(new RegExp(`^enables ${key}.enabled\\. Weights .* fp32\\.`));
  expect(origins?.[`${key}.enabled`]).toMatchObject({ of: 'torch_autocast.dtype' });
});

test('with bf16 masters requested, training uses fp32 ones', () => {
  const { config, notices } = check({
    bf16: { enabled: true, bf16_master_weights_and_grads: true, bf16_optimizer_states: true },
    torch_autocast: { enabled: true, dtype: 'bfloat16', lower_precision_safe_modules: ['a.B'] },
    zero_optimization: { stage: 3 },
  });
  expect(config?.bf16).toMatchObject({ enabled: true, bf16_optimizer_states: true });
  expect(notices.map(({ path }) => path).toSorted()).toEqual([
    'bf16.bf16_master_weights_and_grads',
    'torch_autocast.enabled',
    'torch_autocast.lower_precision_safe_modules',
  ]);
});

test.each([
  [{ torch_autocast: { enabled: true } }, 'torch_autocast.dtype'],
  [{ torch_autocast: { enabled: true, dtype: 'fp32' } }, 'torch_autocast.dtype'],
  [{ torch_autocast: { enabled: true, dtype: 'bf16' }, fp16: { enabled: true } }, 'fp16.enabled'],
  [{ torch_autocast: { enabled: true, dtype: 'bf16' }, bf16: true }, 'bf16'],
  [{ torch_autocast: { enabled: true, dtype: 'fp16' }, fp16: 7 }, 'fp16'],
])('refused: %j', (config, path) => {
  expect(check(config).errors.map((error) => error.path)).toEqual([path]);
});

test('a disabled torch_autocast changes nothing', () => {
  const config = { ...BASE, torch_autocast: { enabled: false, dtype: 'bfloat16' } };
  const { bf16, notices } = resolveConfig(config as DsConfig, { worldSize: 1 });
  expect({ on: bf16.enabled, notices }).toEqual({ on: false, notices: [] });
});
