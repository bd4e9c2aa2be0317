// Whether ranks that should do the same have done so: copies that were given other batches would
// drift apart unseen.
import type { Axis, MeshShape } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import type { ToldRows } from './step-rows.js';

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

/**
 * Two ranks that should do the same and do not, the axes on which they differ, and what shows it.
 */
export interface Apart {
  ranks: readonly [first: number, other: number];
  axes: readonly Axis[];
  what: 'inputs' | 'losses or gradients';
}

/**
 * Whether two ranks have not done the same in the step of these rows: by inputs, where ranks share
 * layers or tokens out along `sharing`; of copies by losses, which are a rank's own, then by
 * squares of gradients, to which all its data ranks add.
 */
export function findApart(
  rows: Pick<ToldRows, 'inputsOf' | 'lossOf' | 'squaresOf'>,
  among: { shape: MeshShape; copies: readonly Axis[]; sharing: readonly Axis[] },
): Apart | null {
  const { shape, copies, sharing } = among;
  const inputsOf = (rank: number) => Float32Array.of(rows.inputsOf(rank));
  const parts = sharing.length > 0 && copiesApart({ shape, copies: sharing }, inputsOf, 0);
  if (parts) return { ranks: parts, axes: sharing, what: 'inputs' };
  const lossOf = (rank: number) => Float32Array.of(rows.lossOf(rank));
  const squaresOf = (rank: number) => rows.squaresOf(rank);
  const found =
    copiesApart(among, lossOf, LOSS_TOLERANCE) ?? copiesApart(among, squaresOf, SQUARES_TOLERANCE);
  return found && { ranks: found, axes: copies, what: 'losses or gradients' };
}

/** What every rank throws then. */
export function apart({ ranks: [first, other], axes, what }: Apart): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'engine.step',
    expected: `the same batches on ranks that differ on ${axes.join(', ')} alone`,
    got: `other ${what} on rank ${other} than on rank ${first}`,
    hint: 'Deal samples out by engine.dpRank and engine.dpWorldSize, as trainLoader does.',
  });
}
