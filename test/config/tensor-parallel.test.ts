// tensor_parallel: every key is obeyed, named as without effect, or refused with its reason.
import { checkConfig, type DsConfig } from '../../lib/config/index.js';
import { readParallelSizes } from '../../lib/config/source.js';
import { partitionSpecs } from '../../lib/parallel/partition-specs.js';

const check = (section: object) =>
  checkConfig({ train_micro_batch_size_per_gpu: 2, tensor_parallel: section } as DsConfig, {
    worldSize: 2,
  });

test.each<[object, number]>([
  [{}, 1],
  [{ autotp_size: 0 }, 1],
  [{ autotp_size: 4 }, 4],
  [{ tp_size: 2 }, 2],
  [{ tp: { tp_size: 2 } }, 2],
  [{ tensor_parallel: { tp_size: 3 } }, 3],
  [{ autotp_size: '2' }, 2],
  [{ enabled: true, autotp_size: 2 }, 2],
  [{ enabled: false, autotp_size: 1 }, 1],
])('%j: %d ranks of each layer', (section, ranks) => {
  const { errors, config } = check(section);
  expect(errors).toEqual([]);
  const { autotp_size: size, tensor_parallel: other } = config?.tensor_parallel ?? {};
  expect(Math.max(1, size ?? 0, other?.tp_size ?? 0)).toBe(ranks);
  expect(readParallelSizes({ tensor_parallel: section } as DsConfig)).toEqual({
    stages: null,
    layers: ranks,
    tokens: 1,
  });
});

test.each<[object, RegExp]>([
  [{ tp_grain_size: 64 }, /tp_grain_size has no effect: layers are cut by heads and channels/],
  [{ tp: { tp_grain_size: 64 } }, /tp_grain_size has no effect/],
  [{ tp_overlap_comm: true }, /tp_overlap_comm has no effect: sums always overlap/],
  [{ dtype: 'bf16' }, /dtype has no effect: fp16 and bf16 select the dtype/],
  [{ keep_module_on_host: true }, /keep_module_on_host has no effect/],
  [
    { preset_model: 'llama' },
    /preset_model has no effect: models of nn\.models have their own plan/,
  ],
  [{ replace_with_kernel_inject: true }, /replace_with_kernel_inject has no effect/],
  [{ kernel_inject: true }, /kernel_inject has no effect/],
])('%j is a notice', (section, text) => {
  const { errors, notices } = check({ autotp_size: 2, ...section });
  expect(errors).toEqual([]);
  expect(notices.map((notice) => `${notice.path} ${notice.text}`).join('\n')).toMatch(text);
});

const specs = (...list: object[]) => ({ autotp_size: 2, partition_config: { layer_specs: list } });

test.each<[object, RegExp]>([
  [{ tp: { mpu: {} } }, /the axes of initDistributed/],
  [{ tp: { tp_group: {} } }, /the axis tp of initDistributed/],
  [{ injection_policy_tuple: ['o_proj'] }, /not supported yet: use partition_config/],
  [{ autotp_size: 2, tp_size: 2 }, /not both/],
  [{ autotp_size: 2, tp: { tp_size: 4 } }, /tp_size: expected 2, as autotp_size, got 4/],
  [{ enabled: false, tp_size: 2 }, /enabled: expected true with 2 ranks of a layer, got false/],
  [{ enabled: false, tp: { tp_size: 2 } }, /enabled: expected true with 2 ranks/],
  [{ autotp_size: -1 }, /autotp_size/],
  [{ preset_model: 'gpt9' }, /preset_model/],
  [specs({}), /layer_specs\.0\.patterns: expected regular expressions.*got undefined/],
  [specs({ patterns: ['('] }), /layer_specs\.0\.patterns/],
  [specs({ patterns: ['a'], partition_type: 'rows' }), /partition_type: expected "row", "column"/],
  [specs({ patterns: ['a'], partition_dim: 1 }), /partition_dim: expected 0 with "column"/],
  [
    specs({ patterns: ['a'], shape: [[4, 2, 2], -1] }),
    /shape: expected \[n, -1\].*Parts of different/,
  ],
  [specs({ patterns: ['a'], shape: [3, -1], partition_type: 'row' }), /shape: expected/],
  [specs({ patterns: ['a'], shapes: [3, -1] }), /layer_specs\.0\.shapes: expected patterns/],
  [specs({ patterns: ['a'] }, {}), /layer_specs\.1\.patterns: expected.*got undefined/],
  [specs({ patterns: ['a'] }, { patterns: ['b'] }, { patterns: ['('] }), /specs\.2\.patterns/],
])('%j is refused', (section, message) => {
  const { errors } = check(section);
  expect(errors.map((error) => error.message).join('\n')).toMatch(message);
});

test('rules of partition_config', () => {
  const items = [
    { patterns: ['.*\\.qkv\\.weight$'], shape: [3, -1] },
    { patterns: ['.*\\.o\\.weight$'], partition_type: 'row', partition_dim: 1 },
    { patterns: ['.*'], partition_type: 'skip' },
  ];
  const { errors, config } = check({ autotp_size: 2, partition_config: { layer_specs: items } });
  expect(errors).toEqual([]);
  expect(config?.tensor_parallel.partition_config?.use_default_specs).toBe(true);
  const [packed, row, skip] = partitionSpecs(items);
  expect(packed).toMatchObject({ type: 'column', parts: 3 });
  expect(packed?.patterns[0]?.test('h.0.qkv.weight')).toBe(true);
  expect(row).toMatchObject({ type: 'row', parts: 1 });
  expect(skip).toMatchObject({ type: 'skip' });
});
