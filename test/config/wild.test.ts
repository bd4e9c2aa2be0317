// Tests every key and value of public ds_config files: accepted, announced as not supported, or
// refused by DeepSpeed too.
import { checkConfig, type DsConfig } from '../../lib/config/index.js';
import wild from '../golden/configurations-in-the-wild.json';

type Section = Record<string, unknown>;
type Row = [path: string, value: unknown, files: number];

const rows = Object.entries(wild.keys).flatMap(([path, values]) =>
  values.map(([value, files]): Row => [path, value, files as number]),
);

/** Features that configuration.md announces as not supported yet. */
const MISSING = ['amp', 'zero_optimization.zenflow'];

/**
 * DeepSpeed 0.19.6 refuses these: non-integers, gradient_clipping in the wrong section, and
 * template text in place of a number of ranks.
 */
const REFUSED_THERE = [
  'fp16.min_loss_scale',
  'tensor_parallel.autotp_size',
  'optimizer.params.max_grad_norm',
  'optimizer<AdamW>.params.max_grad_norm',
];

/** Keys that a section also requires, by its path or the type of its schedule. */
const COMPANIONS: Record<string, Section> = {
  WarmupDecayLR: { total_num_steps: 1_000_000 },
  offload_param: { nvme_path: '/local_nvme' },
  sparse_attention: { different_layout_per_head: true },
  curriculum_learning: {
    min_difficulty: 8,
    max_difficulty: 128,
    schedule_type: 'fixed_linear',
    schedule_config: { total_curriculum_step: 30, difficulty_step: 8 },
  },
  torch_autocast: { dtype: 'bfloat16' },
};

/**
 * A small configuration with `value` at `path`; the name of a section has its type:
 * "optimizer<AdamW>.params.lr".
 */
function configuration(path: string, value: unknown): DsConfig {
  const config: Section = path.startsWith('train_') ? {} : { train_micro_batch_size_per_gpu: 1 };
  if (path.startsWith('zero_optimization.')) config.zero_optimization = { stage: 3 };
  let section = config;
  const keys = path.split('.').map((part) => part.split('<'));
  keys.forEach(([key = '', type], i) => {
    if (i === keys.length - 1) section[key] = value;
    else section[key] ??= type === undefined ? {} : { type: type.slice(0, -1), params: {} };
    if (key === 'scheduler') {
      const { type: name, params } = section[key] as { type: string; params: Section };
      Object.assign(params, COMPANIONS[name]);
    }
    if (i < keys.length - 1)
      Object.assign(section[key] as Section, structuredClone(COMPANIONS[key]));
    section = section[key] as Section;
  });
  return config as DsConfig;
}

test('the table has many files', () => {
  expect(rows.length).toBeGreaterThan(350);
  expect(wild.repositories.length).toBeGreaterThan(50);
});

test.each(rows)('%s = %j, in %i files', (path, value) => {
  const { errors } = checkConfig(configuration(path, value), { worldSize: 1, autoLater: true });
  for (const error of errors) {
    const isMissing =
      /not supported yet/.test(error.message) &&
      MISSING.some((name) => error.path.startsWith(name));
    const known = isMissing || REFUSED_THERE.includes(error.path);
    expect(known ? '' : error.message).toBe('');
  }
});
