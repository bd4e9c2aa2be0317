// Lists of values in a file with an "autotuning" section: `ds --autotuning` tries each value.
import { isSection, type Section } from './schema.js';

/** A key with a list of alternative values. */
export interface SearchChoice {
  readonly path: readonly [string] | readonly [string, string];
  readonly values: readonly unknown[];
}

const MICRO = 'train_micro_batch_size_per_gpu';
const ZERO = 'zero_optimization';

/**
 * Returns whether `value` is a list of choices. A key that may have choices never has a list as its
 * value.
 */
export function isChoice(value: unknown): value is readonly unknown[] {
  return Array.isArray(value) && value.length > 0;
}

/** Returns the choices of a file with an "autotuning" section. */
export function searchChoices(file: Section): SearchChoice[] {
  if (!isSection(file.autotuning)) return [];
  const { [MICRO]: micro, [ZERO]: zero } = file;
  const sizes = isChoice(micro) ? [micro] : [];
  return [
    ...sizes.map((values) => ({ path: [MICRO], values }) as const),
    ...Object.entries(isSection(zero) ? zero : {}).flatMap(([key, values]) =>
      isChoice(values) ? [{ path: [ZERO, key], values } as const] : [],
    ),
  ];
}

/** Returns a file for each value of each list; the other lists have their first value. */
export function filesOfChoices(file: Section, choices: readonly SearchChoice[]): Section[] {
  const base = choices.reduce(
    (section, choice) => withValue(section, choice, choice.values[0]),
    file,
  );
  const others = choices.flatMap((choice) =>
    choice.values.slice(1).map((value) => withValue(base, choice, value)),
  );
  return [base, ...others];
}

function withValue(file: Section, { path: [key, inner] }: SearchChoice, value: unknown): Section {
  if (inner === undefined) return { ...file, [key]: value };
  return { ...file, [key]: { ...(file[key] as Section), [inner]: value } };
}
