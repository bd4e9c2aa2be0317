// MeshShape: the ranks of a job as a grid with named axes, by arithmetic only.
import { DsError } from '../errors.js';
import { readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';

/** Pipeline stages, parts of a batch, parts of a sequence, parts of layers. */
export type Axis = 'pp' | 'dp' | 'sp' | 'tp';

/**
 * Outermost first: neighbours on the last axis are neighbours in the job, so mostly on one host.
 * Source: the order of DeepSpeed's PipeModelDataParallelTopology.
 */
export const AXES: readonly Axis[] = ['pp', 'dp', 'sp', 'tp'];

/** A number for each axis of the mesh. */
export type PerAxis = Readonly<Record<Axis, number>>;

/** Ranks along each axis. Default: 1; `dp` has the remaining ranks. */
export type MeshOptions = Partial<Record<Axis, number>>;

const KNOWN: Readonly<Record<Axis, true>> = { pp: true, dp: true, sp: true, tp: true };

/**
 * Rank = ((pp * DP + dp) * SP + sp) * TP + tp for a rank's coordinates (lower case) and the sizes
 * of the axes (upper case). The order of several axes in an argument does not matter: ranks and
 * indices are in the order of AXES.
 */
export class MeshShape {
  /** Ranks of the job. */
  readonly ranks: number;
  /** Distance in rank between neighbours on an axis. */
  private readonly strides: PerAxis;

  constructor(
    /** Ranks along each axis. */
    readonly sizes: PerAxis,
  ) {
    let stride = 1;
    const strides = { pp: 0, dp: 0, sp: 0, tp: 0 };
    for (const axis of AXES.toReversed()) {
      strides[axis] = stride;
      stride *= sizes[axis];
    }
    this.strides = strides;
    this.ranks = stride;
  }

  /**
   * Returns the shape of `given` over the ranks of a job. Throws DS_ARGUMENT unless its sizes fit.
   */
  static over(ranks: number, given: MeshOptions = {}): MeshShape {
    const op = 'initDistributed mesh';
    const options = readOptions(op, given, KNOWN);
    const size = (axis: Axis): number => requireInteger(`${op}.${axis}`, options[axis] ?? 1, 1);
    const [pp, sp, tp] = [size('pp'), size('sp'), size('tp')];
    const isComplete = options.dp !== undefined;
    const dp = isComplete ? size('dp') : ranks / (pp * sp * tp);
    const shape = new MeshShape({ pp, dp, sp, tp });
    if (Number.isInteger(dp) && shape.ranks === ranks) return shape;
    const others = new MeshShape({ pp, dp: 1, sp, tp });
    throw new DsError({
      code: 'DS_ARGUMENT',
      op,
      expected: isComplete
        ? `sizes with the product ${ranks}, the number of ranks`
        : `sizes with a product that divides ${ranks}, the number of ranks`,
      got: isComplete ? `${shape} = ${shape.ranks}` : `${others} = ${others.ranks}`,
      hint: isComplete ? 'Without dp, the job computes it from the other axes.' : '',
    });
  }

  /** Number of ranks that differ only on `axes`. */
  size(...axes: Axis[]): number {
    return ordered(axes).reduce((product, axis) => product * this.sizes[axis], 1);
  }

  /** Returns the coordinates of `rank`. */
  coordinates(rank: number): PerAxis {
    const { sizes, strides } = this;
    const on = (axis: Axis): number => Math.floor(rank / strides[axis]) % sizes[axis];
    return { pp: on('pp'), dp: on('dp'), sp: on('sp'), tp: on('tp') };
  }

  /** Returns the rank with these coordinates. */
  rankAt(coordinates: PerAxis): number {
    return AXES.reduce((rank, axis) => rank + coordinates[axis] * this.strides[axis], 0);
  }

  /** Returns the ranks that differ from `rank` only on `axes`, including itself, ascending. */
  ranksAlong(rank: number, ...axes: Axis[]): number[] {
    const { sizes, strides } = this;
    const own = this.coordinates(rank);
    const along = ordered(axes);
    const first = along.reduce((one, axis) => one - own[axis] * strides[axis], rank);
    return along.reduce(
      (ranks, axis) =>
        ranks.flatMap((one) =>
          Array.from({ length: sizes[axis] }, (_, i) => one + i * strides[axis]),
        ),
      [first],
    );
  }

  /** Returns the index of `rank` in ranksAlong(rank, ...axes). */
  indexAlong(rank: number, ...axes: Axis[]): number {
    const own = this.coordinates(rank);
    return ordered(axes).reduce((index, axis) => index * this.sizes[axis] + own[axis], 0);
  }

  /** Returns all ranks in groups that differ only on `axes`, by first rank. */
  groups(...axes: Axis[]): number[][] {
    const ranks = Array.from({ length: this.ranks }, (_, rank) => rank);
    return ranks
      .filter((rank) => this.indexAlong(rank, ...axes) === 0)
      .map((rank) => this.ranksAlong(rank, ...axes));
  }

  /** Returns for example "pp 2 x dp 4": the axes with more than one rank. */
  toString(): string {
    const names = AXES.filter((axis) => this.sizes[axis] > 1);
    return names.map((axis) => `${axis} ${this.sizes[axis]}`).join(' x ') || 'dp 1';
  }
}

/**
 * Returns `axes` in the order of AXES, without duplicates. Throws DS_ARGUMENT for an invalid axis.
 */
function ordered(axes: readonly Axis[]): Axis[] {
  const other = axes.find((axis) => !AXES.includes(axis));
  if (other === undefined) return AXES.filter((axis) => axes.includes(axis));
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'mesh axis',
    expected: AXES.map((axis) => `"${axis}"`).join(', '),
    got: JSON.stringify(other) ?? String(other),
  });
}
