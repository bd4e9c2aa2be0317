// Detects ranks that should do identical work but received different batches, before copies
// diverge.

import type { Axis, MeshShape } from '../../comm/index.js';
import { AXIS } from '../../comm/mesh-shape.js';
import { DsError } from '../../errors.js';
import { required } from '../../runtime/required.js';
import { MODEL } from '../ranks.js';
import type { BatchUse, ReportedRows } from './step-rows.js';

/**
 * Relative tolerance: larger than the differences of kernels without a fixed order of sums, smaller
 * than those of other samples.
 */
const LOSS_TOLERANCE = 1e-3;
const SQUARES_TOLERANCE = 1e-2;

/**
 * Returns the first two ranks that differ only on the axes `copies` and by more than `tolerance` in
 * their numbers, else null.
 */
export function findDifferentCopies(
  { shape, copies }: { shape: MeshShape; copies: readonly Axis[] },
  numbersOf: (rank: number) => Float32Array,
  tolerance: number,
): [first: number, other: number] | null {
  for (const [first = 0, ...others] of shape.groups(...copies)) {
    const ownNumbers = numbersOf(first);
    const other = others.find((rank) => !isNear(ownNumbers, numbersOf(rank), tolerance));
    if (other !== undefined) return [first, other];
  }
  return null;
}

function isNear(a: Float32Array, b: Float32Array, tolerance: number): boolean {
  return a.every((value, i) => {
    const other = required(b[i]);
    const largest = Math.max(Math.abs(value), Math.abs(other));
    // Only one of two summation orders may overflow.
    return !Number.isFinite(largest) || Math.abs(value - other) <= tolerance * largest;
  });
}

/** Two ranks that should have equal numbers, but differ. */
export interface CopyMismatch {
  ranks: readonly [first: number, other: number];
  /** Axes along which a model has several ranks. */
  axes: readonly Axis[];
  /** The numbers that differ. */
  what: BatchUse | 'losses or gradients';
}

/** The ranks of a job, and the batches to compare. */
interface CopyCheck {
  shape: MeshShape;
  /** Axes along which ranks are identical. */
  copies: readonly Axis[];
  /** Batches that must be equal on all ranks of one model. */
  compared: readonly BatchUse[];
}

/**
 * Returns two ranks of one model with different batches in the step of these rows; null if there
 * are none. A rank without such a batch is not compared: middle stages of a pipeline read no batch.
 */
export function findOtherBatch(
  rows: Pick<ReportedRows, 'digestOf'>,
  { shape, compared }: CopyCheck,
): CopyMismatch | null {
  for (const group of shape.groups(...MODEL)) {
    for (const what of compared) {
      const reported = group.map((rank) => ({ rank, ...rows.digestOf(rank, what) }));
      const [first, ...others] = reported.filter(({ outline }) => outline !== 0);
      const other = others.find(
        ({ bits, outline }) => bits !== first?.bits || outline !== first.outline,
      );
      if (first && other) return { ranks: [first.rank, other.rank], axes: axesOf(shape), what };
    }
  }
  return null;
}

/**
 * Returns two copies with different results in the step of these rows; null if there are none.
 * Compares losses first, because a loss belongs to one rank, then squares of gradients, which
 * contain all its data ranks. After the first step, rounding may have made copies differ.
 */
export function findDifferentResults(
  rows: Pick<ReportedRows, 'lossOf' | 'squaresOf'>,
  among: CopyCheck,
): CopyMismatch | null {
  const lossOf = (rank: number) => Float32Array.of(rows.lossOf(rank));
  const squaresOf = (rank: number) => rows.squaresOf(rank);
  const found =
    findDifferentCopies(among, lossOf, LOSS_TOLERANCE) ??
    findDifferentCopies(among, squaresOf, SQUARES_TOLERANCE);
  return found && { ranks: found, axes: axesOf(among.shape), what: 'losses or gradients' };
}

const axesOf = ({ sizes }: MeshShape): Axis[] => MODEL.filter((axis) => sizes[axis] > 1);

/** Returns the error for every rank. `step` counts from 1; `difference` names the difference. */
export function mismatchError(
  { ranks: [first, other], axes, what }: CopyMismatch,
  step: number,
  difference: string = what,
): DsError {
  const isPipeline = axes.includes(AXIS.pipeline) && what !== 'losses or gradients';
  return new DsError({
    code: 'DS_COMM',
    op: 'engine.step',
    expected: `the same batches on ranks that differ only on ${axes.join(', ')}`,
    got: `other ${difference} on rank ${other} than on rank ${first} in step ${step}`,
    hint: `Distribute samples by engine.dpRank and engine.dpWorldSize, like trainLoader.${isPipeline ? ' A pipeline stage that does not read a batch may pass null.' : ''}`,
  });
}
