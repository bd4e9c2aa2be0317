// The table from a configuration's scheduler section to a schedule.
import type { ResolvedScheduler } from '../../types/config.js';
import { ConstantLr, type LrSchedule } from './schedule.js';
import { WarmupLr } from './warmup.js';
import { WarmupCosineLr } from './warmup-cosine.js';
import { WarmupDecayLr } from './warmup-decay.js';

/**
 * `baseLr` is the optimizer's rate: constant without a section, the maximum of WarmupLR where none is
 * given, and what WarmupCosineLR takes shares of. Throws DS_CONFIG.
 */
export function createSchedule(section: ResolvedScheduler | null, baseLr: number): LrSchedule {
  if (!section) return new ConstantLr(baseLr);
  if (section.type === 'WarmupCosineLR') {
    const { params } = section;
    return new WarmupCosineLr({
      baseLr,
      totalSteps: params.total_num_steps,
      warmupMinRatio: params.warmup_min_ratio,
      warmupSteps: params.warmup_num_steps,
      cosMinRatio: params.cos_min_ratio,
      warmupType: params.warmup_type,
    });
  }
  const climb = {
    minLr: section.params.warmup_min_lr,
    maxLr: section.params.warmup_max_lr ?? baseLr,
    warmupSteps: section.params.warmup_num_steps,
    warmupType: section.params.warmup_type,
  };
  if (section.type === 'WarmupLR') return new WarmupLr(climb);
  return new WarmupDecayLr({ ...climb, totalSteps: section.params.total_num_steps });
}
