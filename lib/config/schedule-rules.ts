// Rules of a schedule of difficulties in any section: required keys and limits of each type.

import type { ResolvedValues } from '../../types/config.js';
import { required } from '../runtime/required.js';
import { formatConfigValue } from './config-error.js';
import type { Advice, Violation } from './rule.js';

type Legacy = NonNullable<ResolvedValues['curriculum_learning']>;
type Schedule = NonNullable<Legacy['schedule_config']>;
type Type = NonNullable<Legacy['schedule_type']>;

/** An enabled section with a schedule, and its path. */
export interface Scheduled {
  path: readonly string[];
  section: Pick<Legacy, 'min_difficulty' | 'max_difficulty' | 'schedule_type' | 'schedule_config'>;
}

/** A schedule with both ends and a type. */
interface Complete {
  min: number;
  max: number;
  type: Type;
  schedule: Partial<Schedule>;
}

/** Keys of schedule_config that each type requires. */
const READ: Readonly<Record<Type, readonly (keyof Schedule)[]>> = {
  fixed_linear: ['total_curriculum_step', 'difficulty_step'],
  fixed_root: ['total_curriculum_step', 'difficulty_step', 'root_degree'],
  fixed_discrete: ['difficulty', 'max_step'],
  custom: [],
};

/** Returns the schedule if it is complete; null if a value is missing: another rule reports it. */
export function completeSchedule({ section }: Scheduled): Complete | null {
  const { min_difficulty: min, max_difficulty: max, schedule_type: type } = section;
  if (min === null || max === null || type === null) return null;
  return { min, max, type, schedule: section.schedule_config ?? {} };
}

/** Returns the multiple that difficulties are rounded to, or null. */
export function stepOf({ type, schedule }: Complete): number | null {
  const isRoot = type === 'fixed_linear' || type === 'fixed_root';
  return isRoot ? (schedule.difficulty_step ?? null) : null;
}

/** Returns a violation for a missing key. */
export const missingKey = (path: readonly string[], hint: string): Violation => ({
  path,
  expected: 'a value, because the curriculum is on',
  got: 'none',
  hint,
});

/**
 * Returns a violation for a missing value. Source: the assertions of DeepSpeed's
 * CurriculumScheduler.
 */
function lacksValue({ path, section }: Scheduled): Violation | null {
  for (const key of ['min_difficulty', 'max_difficulty', 'schedule_type'] as const) {
    if (section[key] === null) {
      return missingKey([...path, key], 'Set it, or disable the section.');
    }
  }
  const type = required(section.schedule_type);
  const absent = READ[type].find((key) => section.schedule_config?.[key] == null);
  if (!absent) return null;
  const hint = `Set it: "${type}" reads ${READ[type].join(', ')}.`;
  return missingKey([...path, 'schedule_config', absent], hint);
}

/**
 * Refuses a schedule that ends with a lower difficulty. DeepSpeed silently stays at the first
 * difficulty.
 */
function endsEasier(scheduled: Scheduled): Violation | null {
  const schedule = completeSchedule(scheduled);
  if (!schedule || schedule.max >= schedule.min) return null;
  return {
    path: [...scheduled.path, 'max_difficulty'],
    expected: `at least min_difficulty, ${schedule.min}`,
    got: String(schedule.max),
    hint: 'Raise max_difficulty or lower min_difficulty.',
  };
}

function listsMisfit(scheduled: Scheduled): Violation | null {
  const schedule = completeSchedule(scheduled);
  const { difficulty, max_step: steps } = schedule?.schedule ?? {};
  if (schedule?.type !== 'fixed_discrete' || !difficulty || !steps) return null;
  const path = [...scheduled.path, 'schedule_config', 'max_step'];
  if (steps.length !== difficulty.length - 1) {
    const expected = `${difficulty.length - 1} steps, one less than there are difficulties`;
    return {
      path,
      expected,
      got: formatConfigValue(steps),
      hint: 'Remove or add steps: the last difficulty lasts until the end.',
    };
  }
  if (rises(steps)) return null;
  const hint = 'Sort the steps: each difficulty must end after the previous one.';
  return { path, expected: 'steps in rising order', got: formatConfigValue(steps), hint };
}

export const rises = (list: readonly number[]): boolean =>
  list.every((item, i) => i === 0 || item > required(list[i - 1]));

/** Returns the first violation of a schedule. */
export function scheduleViolation(scheduled: Scheduled): Violation | null {
  return lacksValue(scheduled) ?? endsEasier(scheduled) ?? listsMisfit(scheduled);
}

/**
 * Returns advice if the first difficulty, rounded down, is below min_difficulty. DeepSpeed does not
 * warn.
 */
export function beginsBelow(scheduled: Scheduled): Advice | null {
  const schedule = completeSchedule(scheduled);
  const step = schedule && stepOf(schedule);
  if (!step || schedule.min % step === 0 || schedule.min === schedule.max) return null;
  const first = schedule.min - (schedule.min % step);
  const text = `is ${schedule.min}, no multiple of difficulty_step, ${step}: difficulties are rounded down, to ${first} at least.`;
  return { path: [...scheduled.path, 'min_difficulty'], text };
}

/** Returns advice for a key that the schedule does not read. */
export function unreadScheduleKey(scheduled: Scheduled): Advice | null {
  const found = completeSchedule(scheduled);
  if (!found) return null;
  const { type, schedule } = found;
  const unread = Object.entries(schedule)
    .filter(([key, value]) => value !== null && !READ[type].includes(key as keyof Schedule))
    .map(([key]) => key);
  if (unread.length === 0) return null;
  const text = `is that of "${type}", which does not read ${unread.join(', ')}.`;
  return { path: [...scheduled.path, 'schedule_config'], text };
}
