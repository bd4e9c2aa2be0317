// Rules across the keys of curriculum_learning: samples that get longer.
import type { ResolvedValues } from '../../types/config.js';
import type { Advice, Rule } from './rule.js';
import {
  beginsBelow,
  completeSchedule,
  type Scheduled,
  scheduleViolation,
  stepOf,
  unreadScheduleKey,
} from './schedule-rules.js';

const SECTION = 'curriculum_learning';

/** Returns the section if it is enabled. */
function scheduledIn({ curriculum_learning: section }: ResolvedValues): Scheduled | null {
  return section?.enabled ? { path: [SECTION], section } : null;
}

const hasASchedule: Rule = (config) => {
  const scheduled = scheduledIn(config);
  return scheduled && scheduleViolation(scheduled);
};

/**
 * min_difficulty is at least difficulty_step: otherwise the first length, rounded down, would be 0.
 */
const beginsWithTokens: Rule = (config) => {
  const scheduled = scheduledIn(config);
  const schedule = scheduled && completeSchedule(scheduled);
  const step = schedule && stepOf(schedule);
  if (!step || schedule.min >= step) return null;
  return {
    path: [SECTION, 'min_difficulty'],
    expected: `at least difficulty_step, ${step}, because difficulties are rounded down to its multiples`,
    got: String(schedule.min),
    hint: 'Start at a multiple of difficulty_step, or make it smaller.',
  };
};

/** Lengths are multiples of the ranks that divide the tokens of a sample. */
const sharesEvenly: Rule = (config) => {
  const scheduled = scheduledIn(config);
  const found = scheduled && completeSchedule(scheduled);
  const ranks = config.sequence_parallel_size;
  if (!found || ranks === 1) return null;
  const { type, max, schedule } = found;
  const isRoot = type === 'fixed_linear' || type === 'fixed_root';
  const values: readonly [string[], number][] = isRoot
    ? [
        [['schedule_config', 'difficulty_step'], schedule.difficulty_step ?? ranks],
        [['max_difficulty'], max],
      ]
    : (schedule.difficulty ?? []).map((value, i) => [
        ['schedule_config', 'difficulty', String(i)],
        value,
      ]);
  const uneven = values.find(([, value]) => value % ranks !== 0);
  if (!uneven) return null;
  return {
    path: [SECTION, ...uneven[0]],
    expected: `a multiple of ${ranks}, the ranks that share each sample's tokens (sequence_parallel_size)`,
    got: String(uneven[1]),
    hint: 'Set it to a multiple of sequence_parallel_size.',
  };
};

export const curriculumRules: readonly Rule[] = [hasASchedule, beginsWithTokens, sharesEvenly];

/** Returns advice for lengths that are no multiples of 8. Source: DeepSpeed's warning. */
function slowLengths(scheduled: Scheduled): Advice | null {
  const schedule = completeSchedule(scheduled);
  const step = schedule && stepOf(schedule);
  if (!step || step % 8 === 0) return null;
  const path = [SECTION, 'schedule_config', 'difficulty_step'];
  return { path, text: `is ${step}: lengths that are multiples of 8 suit tensor cores better.` };
}

export const curriculumAdvices = [slowLengths, beginsBelow, unreadScheduleKey].map(
  (advice) =>
    (config: ResolvedValues): Advice | null => {
      const scheduled = scheduledIn(config);
      return scheduled && advice(scheduled);
    },
);
