// MeshShape: computes the coordinates and groups of ranks on a grid with named axes. It opens no
// connection.
import { DsError } from '../errors.js';
import { readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';

/**
 * By kind of parallelism: its axis. pp: pipeline stages; dp: samples of a batch; sp: tokens of a
 * sequence; tp: rows and columns of layers.
 */
export const AXIS = { pipeline: 'pp', data: 'dp', sequence: 'sp', tensor: 'tp' } as const;

/** An axis of a job's mesh. */
export type Axis = (typeof AXIS)[keyof typeof AXIS];

/**
 * The axes of a job, outermost first. Ranks that differ by 1 on the last axis are neighbors in the
 * job, so they are mostly on one host. Source: the order of DeepSpeed's
 * PipeModelDataParallelTopology.
 */
export const AXES: readonly Axis[] = Object.values(AXIS);

/** One value for each axis. */
export type PerAxis<Name extends string = Axis> = Readonly<Record<Name, number>>;

/** Number of ranks along each axis. Default: 1, except `dp`, which gets the remaining ranks. */
export type MeshOptions = Partial<Record<Axis, number>>;

/**
 * A grid of ranks. Each rank has a coordinate on each axis, and the last axis changes fastest. In a
 * job, rank = ((pp * DP + dp) * SP + sp) * TP + tp, with coordinates in lower case and sizes in
 * upper case. Methods accept axes in any order; results follow the order of `axes`.
 */
export class MeshShape<Name extends string = Axis> {
  /** Number of ranks on the grid. */
  readonly ranks: number;
  /** Difference of ranks between neighbors on an axis. */
  private readonly strides: PerAxis<Name>;

  /** `sizes`: number of ranks along each axis. */
  constructor(
    /** Outermost first. */
    readonly axes: readonly Name[],
    /** Number of ranks along each axis. */
    readonly sizes: PerAxis<Name>,
  ) {
    let stride = 1;
    const strides = axes.toReversed().map((axis): [Name, number] => {
      const ownStride = stride;
      stride *= sizes[axis];
      return [axis, ownStride];
    });
    this.strides = Object.fromEntries(strides) as PerAxis<Name>;
    this.ranks = stride;
  }

  /**
   * Returns the shape of a job with `ranks` ranks. Throws DS_ARGUMENT unless the product of its
   * sizes is `ranks`.
   */
  static over(ranks: number, given: MeshOptions = {}): MeshShape {
    return MeshShape.filled(AXES, AXIS.data, ranks, given);
  }

  /**
   * Like over(), for any axes. If the size of axis `rest` is missing, it gets the remaining ranks.
   * Throws DS_ARGUMENT unless the product of the sizes is `ranks`.
   */
  static filled<Name extends string>(
    axes: readonly Name[],
    rest: Name,
    ranks: number,
    given: Partial<Record<Name, number>>,
  ): MeshShape<Name> {
    const op = 'initDistributed mesh';
    const known = Object.fromEntries(axes.map((axis) => [axis, true as const]));
    const options = readOptions(op, given, known);
    const sizes = axes.map((axis): [Name, number] => [
      axis,
      requireInteger(`${op}.${axis}`, options[axis] ?? 1, 1),
    ]);
    const shape = new MeshShape(axes, Object.fromEntries(sizes) as PerAxis<Name>);
    const isComplete = options[rest] !== undefined;
    const left = isComplete ? shape.sizes[rest] : ranks / shape.ranks;
    const filled = new MeshShape(axes, { ...shape.sizes, [rest]: left });
    if (Number.isInteger(left) && filled.ranks === ranks) return filled;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op,
      expected: isComplete
        ? `sizes with the product ${ranks}, the number of ranks`
        : `sizes with a product that divides ${ranks}, the number of ranks`,
      got: `${shape} = ${shape.ranks}`,
      hint: isComplete ? `Without ${rest}, the job computes it from the other axes.` : '',
    });
  }

  /** Returns the number of ranks in a group that differs only on `axes`. */
  size(...axes: Name[]): number {
    return this.ordered(axes).reduce((product, axis) => product * this.sizes[axis], 1);
  }

  /** Returns the coordinates of `rank`. */
  coordinates(rank: number): PerAxis<Name> {
    const { axes, sizes, strides } = this;
    const on = (axis: Name): number => Math.floor(rank / strides[axis]) % sizes[axis];
    return Object.fromEntries(axes.map((axis) => [axis, on(axis)])) as PerAxis<Name>;
  }

  /** Returns the rank with these coordinates. */
  rankAt(coordinates: PerAxis<Name>): number {
    return this.axes.reduce((rank, axis) => rank + coordinates[axis] * this.strides[axis], 0);
  }

  /**
   * Returns the ranks that differ from `rank` only on `axes`, including `rank`, in ascending order.
   */
  ranksAlong(rank: number, ...axes: Name[]): number[] {
    const { sizes, strides } = this;
    const own = this.coordinates(rank);
    const along = this.ordered(axes);
    const first = along.reduce((value, axis) => value - own[axis] * strides[axis], rank);
    return along.reduce(
      (ranks, axis) =>
        ranks.flatMap((rank) =>
          Array.from({ length: sizes[axis] }, (_, i) => rank + i * strides[axis]),
        ),
      [first],
    );
  }

  /** Returns the index of `rank` in ranksAlong(rank, ...axes). */
  indexAlong(rank: number, ...axes: Name[]): number {
    const own = this.coordinates(rank);
    return this.ordered(axes).reduce((index, axis) => index * this.sizes[axis] + own[axis], 0);
  }

  /** Returns all groups of ranks that differ only on `axes`, ordered by their first rank. */
  groups(...axes: Name[]): number[][] {
    const ranks = Array.from({ length: this.ranks }, (_, rank) => rank);
    return ranks
      .filter((rank) => this.indexAlong(rank, ...axes) === 0)
      .map((rank) => this.ranksAlong(rank, ...axes));
  }

  /** Returns all axes except `axes`, in order. */
  others(...axes: Name[]): Name[] {
    const named = this.ordered(axes);
    return this.axes.filter((axis) => !named.includes(axis));
  }

  /** Returns the axes with more than one rank, for example "pp 2 x dp 4". */
  toString(): string {
    const names = this.axes.filter((axis) => this.sizes[axis] > 1);
    return names.map((axis) => `${axis} ${this.sizes[axis]}`).join(' x ') || `${AXIS.data} 1`;
  }

  /**
   * Returns `axes` in the order of the shape, without duplicates. Throws DS_ARGUMENT for an unknown
   * axis.
   */
  private ordered(axes: readonly Name[]): Name[] {
    const other = axes.find((axis) => !this.axes.includes(axis));
    if (other === undefined) return this.axes.filter((axis) => axes.includes(axis));
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'mesh axis',
      expected: this.axes.map((axis) => `"${axis}"`).join(', '),
      got: JSON.stringify(other) ?? String(other),
    });
  }
}
