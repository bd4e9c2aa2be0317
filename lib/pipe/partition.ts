// Divides the layers of a model into the stages of a pipeline.

import { DsError } from '../errors.js';
import { required } from '../runtime/required.js';

/**
 * Returns `starts`: the index of the first layer of each stage, then the number of layers. Stage s
 * has the layers from starts[s] to starts[s + 1] - 1. `weights`: one number of at least 0 per
 * layer.
 *
 * Every stage has at least one layer. The largest sum of weights of a stage is minimal. Among equal
 * results, the smallest sum of a stage is maximal; then the first stages have the most layers.
 * DeepSpeed's partition_balanced minimizes the difference of both sums, by a search that may miss
 * the best result. Throws DS_ARGUMENT if there are more stages than layers.
 */
export function balanceStages(weights: readonly number[], stages: number): number[] {
  const n = weights.length;
  if (stages > n) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'pipeline',
      expected: `at most ${n} stages, with at least one layer each`,
      got: String(stages),
      hint: 'Use fewer ranks on the pipeline axis, or cut the model into more layers.',
    });
  }
  const sums = [0];
  for (const weight of weights) sums.push(required(sums.at(-1)) + weight);
  // best[i] after pass k: the best division of the first i layers into k stages; null if
  // impossible.
  let best: (Cut | null)[] = sums.map((_, i) =>
    i === 0 ? { max: 0, min: Infinity, at: [] } : null,
  );
  for (let k = 1; k <= stages; ++k) {
    const previous = best;
    best = sums.map((sum, i) => {
      let bestCut: Cut | null = null;
      for (let j = i - 1; j >= k - 1; --j) {
        const before = previous[j];
        if (!before) continue;
        const stageSum = sum - required(sums[j]);
        const cut = {
          max: Math.max(before.max, stageSum),
          min: Math.min(before.min, stageSum),
          at: [...before.at, j],
        };
        if (!bestCut || isBetter(cut, bestCut)) bestCut = cut;
      }
      return bestCut;
    });
  }
  return [...required(best[n]).at, n];
}

interface Cut {
  max: number;
  min: number;
  /** The first layers of the stages. */
  at: readonly number[];
}

const isBetter = (a: Cut, b: Cut): boolean => a.max < b.max || (a.max === b.max && a.min > b.min);
