// Values of a configuration for the rules across keys, and sections that several tests change.
import { type DsConfig, resolveConfig } from '../../lib/config/index.js';
import type { Section } from '../../lib/config/schema.js';
import type { ResolvedValues } from '../../types/config.js';

export const BASE: DsConfig = {
  train_micro_batch_size_per_gpu: 2,
  optimizer: { type: 'Adam' },
  scheduler: { type: 'WarmupDecayLR', params: { total_num_steps: 5000 } },
};

/** The values of BASE with `change`, after the checks of single keys. */
export function values(change: Section): ResolvedValues {
  return merge(resolveConfig(BASE, { worldSize: 1 }) as unknown as Section, change) as never;
}

function merge(base: Section, change: Section): Section {
  const out = { ...base };
  for (const [key, item] of Object.entries(change)) {
    const deeper = typeof item === 'object' && item !== null && !Array.isArray(item);
    out[key] = deeper ? merge((base[key] ?? {}) as Section, item as Section) : item;
  }
  return out;
}

export const zero = (section: Section) => ({ zero_optimization: section });
export const curriculum = (
  section: Section,
  schedule_config: Section = { total_curriculum_step: 30, difficulty_step: 8 },
) => ({
  curriculum_learning: {
    enabled: true,
    min_difficulty: 8,
    max_difficulty: 128,
    schedule_type: 'fixed_linear',
    ...section,
    schedule_config,
  },
});
export const onDisk = { device: 'nvme', nvme_path: '/local_nvme' } as const;
