// Whether ranks that should do the same have done so: copies that were given other batches would
// drift apart unseen.
import type { Axis, MeshShape } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import { MODEL } from '../ranks.js';
import type { Given, ReportedRows } from './step-rows.js';

/** Relative: kernels that add in no fixed order differ by less, and other samples by more. */
const LOSS_TOLERANCE = 1e-3;
const SQUARES_TOLERANCE = 1e-2;

/**
 * Two ranks that differ on the axes `copies` alone and whose numbers differ by more than
 * `tolerance`: the first of such ranks, and the other. Null where there are none.
 */
export function copiesApart(
  { shape, copies }: { shape: MeshShape; copies: readonly Axis[] },
  numbersOf: (rank: number) => Float32Array,
  tolerance: number,
): [first: number, other: number] | null {
  for (const [first = 0, ...others] of shape.groups(...copies)) {
    const own = numbersOf(first);
    const other = others.find((rank) => !isNear(own, numbersOf(rank), tolerance));
    if (other !== undefined) return [first, other];
  }
  return null;
}

function isNear(a: Float32Array, b: Float32Array, tolerance: number): boolean {
  return a.every((value, i) => {
    const other = b[i] as number;
    const largest = Math.max(Math.abs(value), Math.abs(other));
    // Overflow may strike one of two ways of adding alone.
    return !Number.isFinite(largest) || Math.abs(value - other) <= tolerance * largest;
  });
}

/** Two ranks that should do the same and do not. */
export interface Apart {
  ranks: readonly [first: number, other: number];
  /** The axes that have several ranks of one model. */
  axes: readonly Axis[];
  /** The numbers that differ. */
  what: Given | 'losses or gradients';
}

/** The ranks of a job, and the batches that are compared. */
export interface Among {
  shape: MeshShape;
  /** Along which ranks do and hold the same. */
  copies: readonly Axis[];
  /** Batches that must be the same on all ranks of one model. */
  compared: readonly Given[];
}

/**
 * Two ranks of one model that were given other batches in the step of these rows. A rank that was
 * given nothing of a kind is not compared: stages in the middle of a pipeline read no batch.
 */
export function findOtherBatch(
  rows: Pick<ReportedRows, 'digestOf'>,
  { shape, compared }: Among,
): Apart | null {
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
 * Two copies that have not done the same in the step of these rows: by losses, which are a rank's
 * own, then by squares of gradients, to which all its data ranks add. Later than in the first step
 * rounding may have driven copies apart.
 */
export function findCopiesApart(
  rows: Pick<ReportedRows, 'lossOf' | 'squaresOf'>,
  among: Among,
): Apart | null {
  const lossOf = (rank: number) => Float32Array.of(rows.lossOf(rank));
  const squaresOf = (rank: number) => rows.squaresOf(rank);
  const found =
    copiesApart(among, lossOf, LOSS_TOLERANCE) ?? copiesApart(among, squaresOf, SQUARES_TOLERANCE);
  return found && { ranks: found, axes: axesOf(among.shape), what: 'losses or gradients' };
}

const axesOf = ({ sizes }: MeshShape): Axis[] => MODEL.filter((axis) => sizes[axis] > 1);

/** The error that every rank throws. `step` counts from 1; `shown` names the difference. */
export function apart(
  { ranks: [first, other], axes, what }: Apart,
  step: number,
  shown: string = what,
): DsError {
  const isPipeline = axes.includes('pp') && what !== 'losses or gradients';
  return new DsError({
    code: 'DS_COMM',
    op: 'engine.step',
    expected: `the same batches on ranks that differ on ${axes.join(', ')} alone`,
    got: `other ${shown} on rank ${other} than on rank ${first} in step ${step}`,
    hint: `Deal samples out by engine.dpRank and engine.dpWorldSize, as trainLoader does.${isPipeline ? ' A stage of a pipeline that does not read a batch may give null in its place.' : ''}`,
  });
}
