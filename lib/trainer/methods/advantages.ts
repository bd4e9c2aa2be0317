// Combines the rewards of completions, and computes advantages over the other completions of the
// same prompt.

/** A reward; null if the reward function cannot judge the completion. */
export type Score = number | null;

/** Divisors of advantages: the standard deviation of the group, of the whole batch, or 1. */
export const SCALES = ['group', 'batch', 'none'] as const;

/** Divisor of advantages; see SCALES. */
export type ScaleRewards = (typeof SCALES)[number];

/** Whether rewards are summed over the functions before or after they are normalized. */
export const AGGREGATIONS = ['sum_then_normalize', 'normalize_then_sum'] as const;

/** Options of computeAdvantages(). */
export interface AdvantageOptions {
  /** Number of completions of each prompt. They are adjacent. */
  readonly generations: number;
  readonly scale: ScaleRewards;
  /** Weight of each reward function. */
  readonly weights: readonly number[];
  /** Whether rewards are summed over the functions before or after they are normalized. */
  readonly aggregation: (typeof AGGREGATIONS)[number];
}

/** Rewards and advantages of completions. */
interface Advantages {
  /** Weighted sum of the rewards of each completion; null if all rewards are null. */
  readonly totals: readonly Score[];
  readonly advantages: readonly number[];
  /** Mean and standard deviation of the sums in each group. */
  readonly means: readonly number[];
  readonly deviations: readonly number[];
}

const EPSILON = 1e-4;

/** Returns mean and sample standard deviation. The deviation of a single number is 0. */
export function computeMoments(values: readonly number[]): { mean: number; deviation: number } {
  const { length } = values;
  if (length === 0) return { mean: 0, deviation: 0 };
  const mean = values.reduce((sum, value) => sum + value, 0) / length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { mean, deviation: length > 1 ? Math.sqrt(squares / (length - 1)) : 0 };
}

const selectKnown = (values: readonly Score[]): number[] =>
  values.filter((value) => value !== null);

function splitGroups<Value>(values: readonly Value[], size: number): Value[][] {
  const groups = Math.ceil(values.length / size);
  return Array.from({ length: groups }, (_, i) => values.slice(i * size, (i + 1) * size));
}

/**
 * Returns the weighted sum of each completion's rewards that are not null; null if all are null.
 */
export function sumRewards(
  rewards: readonly (readonly Score[])[],
  weights: readonly number[],
): Score[] {
  return rewards.map((row) => {
    const terms = row.flatMap((score, k) => (score === null ? [] : [score * (weights[k] ?? 1)]));
    return terms.length === 0 ? null : terms.reduce((sum, term) => sum + term, 0);
  });
}

/**
 * Returns the rewards minus the mean of their group; with `scales`, divided by its standard
 * deviation plus 1e-4. null stays null.
 */
function normalize(values: readonly Score[], size: number, scales: boolean): Score[] {
  return splitGroups(values, size).flatMap((group) => {
    const { mean, deviation } = computeMoments(selectKnown(group));
    const divisor = scales ? deviation + EPSILON : 1;
    return group.map((score) => (score === null ? null : (score - mean) / divisor));
  });
}

/**
 * Returns the advantages of completions. `rewards`: by completion and reward function. A completion
 * without a reward does not count, and has the advantage 0. `deviationOf` computes the standard
 * deviation over all ranks for the scale "batch"; default: this rank has all completions.
 */
export function computeAdvantages(
  rewards: readonly (readonly Score[])[],
  options: AdvantageOptions,
  deviationOf: (values: readonly number[]) => number = (values) => computeMoments(values).deviation,
): Advantages {
  const { generations, scale, weights, aggregation } = options;
  const totals = sumRewards(rewards, weights);
  const moments = splitGroups(totals, generations).map((group) =>
    computeMoments(selectKnown(group)),
  );
  const parts = {
    totals,
    means: moments.map(({ mean }) => mean),
    deviations: moments.map(({ deviation }) => deviation),
  };
  if (aggregation === 'normalize_then_sum') {
    const columns = weights.map((_, k) =>
      normalize(
        rewards.map((row) => row[k] ?? null),
        generations,
        true,
      ),
    );
    const sums = sumRewards(
      rewards.map((_, i) => columns.map((column) => column[i] ?? null)),
      weights,
    );
    const { mean } = computeMoments(selectKnown(sums));
    const divisor = deviationOf(selectKnown(sums)) + EPSILON;
    return { ...parts, advantages: sums.map((sum) => (sum === null ? 0 : (sum - mean) / divisor)) };
  }
  const centred = normalize(totals, generations, scale === 'group');
  const divisor = scale === 'batch' ? deviationOf(selectKnown(totals)) + EPSILON : 1;
  return { ...parts, advantages: centred.map((score) => (score ?? 0) / divisor) };
}

/** Returns the advantages of RLOO: the reward minus the mean of the prompt's other completions. */
export function computeLeaveOneOut(totals: readonly Score[], generations: number): number[] {
  return splitGroups(totals, generations).flatMap((group) => {
    const rewards = selectKnown(group);
    const sum = rewards.reduce((all, reward) => all + reward, 0);
    return group.map((score) =>
      score === null || rewards.length < 2 ? 0 : score - (sum - score) / (rewards.length - 1),
    );
  });
}
