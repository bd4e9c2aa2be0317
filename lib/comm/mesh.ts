// Mesh: the ranks of a job on named axes, and the groups along them.
import type { Axis, MeshShape, PerAxis } from './mesh-shape.js';
import type { ProcessGroup } from './process-group.js';

/** Opens the group of `ranks`, which includes this rank. A group of one opens no connection. */
type OpenGroup = (name: string, ranks: readonly number[]) => Promise<ProcessGroup>;

/**
 * The ranks of a job as a grid, and the coordinates of this rank. In a single process, all axes
 * have one rank.
 */
export class Mesh<Name extends string = Axis> {
  /** Coordinates of this rank. */
  readonly coordinates: PerAxis<Name>;
  /** Groups by their axes with more than one rank. */
  private readonly groups = new Map<string, Promise<ProcessGroup>>();

  /** @internal Use Distributed.mesh. */
  constructor(
    /** The axes and their sizes. */
    readonly shape: MeshShape<Name>,
    private readonly world: ProcessGroup,
    private readonly open: OpenGroup,
  ) {
    this.coordinates = shape.coordinates(world.rank);
  }

  /** Returns the number of ranks that differ from this one only on `axes`, including itself. */
  size(...axes: Name[]): number {
    return this.shape.size(...axes);
  }

  /** Returns the index of this rank among the ranks that differ only on `axes`. */
  place(...axes: Name[]): number {
    return this.shape.indexAlong(this.world.rank, ...axes);
  }

  /**
   * Resolves with the group of these ranks; its `rank` is this rank's index. The first call opens
   * it, so all ranks of the job must request the same axes in the same order. Rejects with DS_COMM
   * if a rank does not, DS_ARGUMENT for an unknown axis.
   */
  async group(axes: readonly Name[]): Promise<ProcessGroup> {
    const { shape } = this;
    const ranks = shape.ranksAlong(this.world.rank, ...axes);
    if (ranks.length === this.world.size) return this.world;
    const long = shape.axes.filter((axis) => axes.includes(axis) && shape.sizes[axis] > 1);
    const name = `${long.join(' x ') || 'alone'} [${ranks.join(', ')}]`;
    const known = this.groups.get(name);
    if (known) return known;
    const opening = this.open(name, ranks);
    this.groups.set(name, opening);
    opening.catch(() => this.groups.delete(name));
    return opening;
  }

  /** Resolves with group([axis, ...]), for example of one axis. */
  axis(...axes: Name[]): Promise<ProcessGroup> {
    return this.group(axes);
  }
}
