// Rules across the keys of curriculum_learning: what each schedule needs, and what it can do.
import type { ResolvedValues } from '../../types/config.js';
import { shown } from './config-error.js';
import type { Advice, Rule, Violation } from './rule.js';

type Section = NonNullable<ResolvedValues['curriculum_learning']>;
type Schedule = NonNullable<Section['schedule_config']>;
type Type = NonNullable<Section['schedule_type']>;

const SECTION = 'curriculum_learning';

/** What each schedule reads of schedule_config, all of which it needs. */
const READ: Readonly<Record<Type, readonly (keyof Schedule)[]>> = {
  fixed_linear: ['total_curriculum_step', 'difficulty_step'],
  fixed_root: ['total_curriculum_step', 'difficulty_step', 'root_degree'],
  fixed_discrete: ['difficulty', 'max_step'],
  custom: [],
};

/** A curriculum that is on, with both ends and a schedule. */
interface Complete {
  min: number;
  max: number;
  type: Type;
  schedule: Partial<Schedule>;
}

function completed({ curriculum_learning: section }: ResolvedValues): Complete | null {
  if (!section?.enabled) return null;
  const { min_difficulty: min, max_difficulty: max, schedule_type: type } = section;
  if (min === null || max === null || type === null) return null;
  return { min, max, type, schedule: section.schedule_config ?? {} };
}

const missing = (path: readonly string[], hint: string): Violation => ({
  path: [SECTION, ...path],
  expected: 'a value, as the curriculum is on',
  got: 'none',
  hint,
});

/** Source: DeepSpeed's CurriculumScheduler, which asserts it. */
const hasWhatItNeeds: Rule = (config) => {
  const section = config.curriculum_learning;
  if (!section?.enabled) return null;
  for (const key of ['min_difficulty', 'max_difficulty', 'schedule_type'] as const) {
    if (section[key] === null) return missing([key], 'Give it, or switch the section off.');
  }
  const type = section.schedule_type as Type;
  const absent = READ[type].find((key) => section.schedule_config?.[key] == null);
  if (!absent) return null;
  const hint = `"${type}" reads ${READ[type].join(', ')}.`;
  return missing(['schedule_config', absent], hint);
};

/** Source: DeepSpeed, which would stay at the first difficulty and say nothing. */
const endsNoEasier: Rule = (config) => {
  const found = completed(config);
  if (!found || found.max >= found.min) return null;
  return {
    path: [SECTION, 'max_difficulty'],
    expected: `at least min_difficulty, ${found.min}`,
    got: String(found.max),
    hint: 'Difficulties grow.',
  };
};

/** Rounded down, the first difficulty would be no token. */
const beginsWithTokens: Rule = (config) => {
  const found = completed(config);
  const step = found && stepOf(found);
  if (!step || found.min >= step) return null;
  return {
    path: [SECTION, 'min_difficulty'],
    expected: `at least difficulty_step, ${step}, to which difficulties are rounded down`,
    got: String(found.min),
    hint: 'Start at a multiple of difficulty_step, or make it smaller.',
  };
};

const listsFit: Rule = (config) => {
  const found = completed(config);
  const { difficulty, max_step: steps } = found?.schedule ?? {};
  if (found?.type !== 'fixed_discrete' || !difficulty || !steps) return null;
  const path = [SECTION, 'schedule_config', 'max_step'];
  if (steps.length !== difficulty.length - 1) {
    const expected = `${difficulty.length - 1} steps, one less than there are difficulties`;
    return { path, expected, got: shown(steps), hint: 'The last difficulty has no last step.' };
  }
  const isRising = steps.every((step, i) => i === 0 || step > (steps[i - 1] as number));
  if (isRising) return null;
  const hint = 'A difficulty whose last step is not after the one before would never come.';
  return { path, expected: 'steps in rising order', got: shown(steps), hint };
};

/** Ranks that share out the tokens of a sample have as many each. */
const sharesEvenly: Rule = (config) => {
  const found = completed(config);
  const ranks = config.sequence_parallel_size;
  if (!found || ranks === 1) return null;
  const { type, max, schedule } = found;
  const isRoot = type === 'fixed_linear' || type === 'fixed_root';
  const values: readonly [string[], number][] = isRoot
    ? [
        [['schedule_config', 'difficulty_step'], schedule.difficulty_step ?? ranks],
        [['max_difficulty'], max],
      ]
    : (schedule.difficulty ?? []).map((one, i) => [
        ['schedule_config', 'difficulty', String(i)],
        one,
      ]);
  const uneven = values.find(([, value]) => value % ranks !== 0);
  if (!uneven) return null;
  return {
    path: [SECTION, ...uneven[0]],
    expected: `a multiple of ${ranks}, the ranks that share out each sample's tokens`,
    got: String(uneven[1]),
    hint: 'sequence_parallel_size says how many they are.',
  };
};

export const curriculumRules: readonly Rule[] = [
  hasWhatItNeeds,
  endsNoEasier,
  beginsWithTokens,
  listsFit,
  sharesEvenly,
];

/** The step to which difficulties are rounded; null where they are not. */
function stepOf({ type, schedule }: Complete): number | null {
  const isRoot = type === 'fixed_linear' || type === 'fixed_root';
  return isRoot ? (schedule.difficulty_step ?? null) : null;
}

/** Source: DeepSpeed, which warns alike. */
export function slowLengths(config: ResolvedValues): Advice | null {
  const found = completed(config);
  const step = found && stepOf(found);
  if (!step || step % 8 === 0) return null;
  const path = [SECTION, 'schedule_config', 'difficulty_step'];
  return { path, text: `is ${step}: lengths that are multiples of 8 suit tensor cores better.` };
}

/** Rounding goes below the smallest difficulty. Source: DeepSpeed, which says nothing. */
export function beginsBelow(config: ResolvedValues): Advice | null {
  const found = completed(config);
  const step = found && stepOf(found);
  if (!step || found.min % step === 0 || found.min === found.max) return null;
  const first = found.min - (found.min % step);
  const text = `is ${found.min}, no multiple of difficulty_step, ${step}: lengths are rounded down, to ${first} at least.`;
  return { path: [SECTION, 'min_difficulty'], text };
}

/** A key that the schedule does not read. */
export function unreadScheduleKey(config: ResolvedValues): Advice | null {
  const found = completed(config);
  if (!found) return null;
  const { type, schedule } = found;
  const unread = Object.entries(schedule)
    .filter(([key, value]) => value !== null && !READ[type].includes(key as keyof Schedule))
    .map(([key]) => key);
  if (unread.length === 0) return null;
  const text = `is that of "${type}", which does not read ${unread.join(', ')}.`;
  return { path: [SECTION, 'schedule_config'], text };
}
