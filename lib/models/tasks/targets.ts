// Counts the targets of a batch that the loss of a task divides by.
import type { Tensor } from '../../tensor/index.js';
import type { HeadTask } from './task.js';

/** Label of positions that neither the loss nor the metrics count. */
export const IGNORED = -100;

/** Inputs and targets of a batch. ids: [B, T]; starts and ends: [B]. */
interface TargetBatch {
  ids: Tensor;
  labels?: Tensor | undefined;
  starts?: Tensor | undefined;
  ends?: Tensor | undefined;
}

/**
 * Returns the number of rows or tokens with a target; with `weights` of classes, the sum of their
 * weights. Returns null for a batch without targets.
 */
export function countTargets(
  task: HeadTask,
  { ids, labels, starts, ends }: TargetBatch,
  weights: Float32Array | null = null,
): number | null {
  const T = ids.size(1);
  if (task === 'question-answering') {
    const inside = [starts, ends].map(
      (places) => places?.toArray().filter((place) => Number(place) < T).length ?? 0,
    );
    return inside.reduce((sum, value) => sum + value, 0);
  }
  if (!labels) return null;
  if (labels.dtype !== 'i32' && labels.dtype !== 'i64') return labels.size(0);
  const classes = labels
    .toArray()
    .map(Number)
    .filter((label) => label !== IGNORED);
  return weights ? classes.reduce((sum, label) => sum + (weights[label] ?? 0), 0) : classes.length;
}
