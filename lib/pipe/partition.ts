// Divides the layers of a model into the stages of a pipeline.

import { DsError } from '../errors.js';
import { required } from '../runtime/required.js';

/**
 * Returns the first layer of each stage, and the number of layers at the end: stage s has layers
 * [starts[s], starts[s + 1]). Every stage has at least one layer. The largest sum of `weights` (one
 * per layer, 0 or more) of a stage is minimal. Ties prefer the largest smallest sum, then the
 * longest first stages. DeepSpeed's partition_balanced minimizes the difference of both by a search
 * that may miss the optimum. Throws DS_ARGUMENT for more stages than layers.
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
  // best[k][i]: the best cut of the first i layers into k stages.
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
  /** First layers of the stages. */
  at: readonly number[];
}

const isBetter = (a: Cut, b: Cut): boolean => a.max < b.max || (a.max === b.max && a.min > b.min);
