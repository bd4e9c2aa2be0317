// Mesh: the ranks of a job on named axes, and the groups of ranks along them.
import { AXES, type Axis, type MeshShape, type PerAxis } from './mesh-shape.js';
import type { ProcessGroup } from './process-group.js';

/** Opens the group of `ranks`, this rank among them; a group of one opens no connection. */
export type OpenGroup = (name: string, ranks: readonly number[]) => Promise<ProcessGroup>;

/** A rank's place on each axis. A process alone is a mesh whose axes all have one rank. */
export class Mesh {
  /** This rank's. */
  readonly coordinates: PerAxis;
  /** By the axes that have more than one rank. */
  private readonly groups = new Map<string, Promise<ProcessGroup>>();

  /** @internal Use Distributed.mesh. */
  constructor(
    /** The axes and their sizes. */
    readonly shape: MeshShape,
    private readonly world: ProcessGroup,
    private readonly open: OpenGroup,
  ) {
    this.coordinates = shape.coordinates(world.rank);
  }

  /** Ranks that differ from this one in their coordinates on `axes` alone, itself among them. */
  size(...axes: Axis[]): number {
    return this.shape.size(...axes);
  }

  /** This rank's place among them. */
  place(...axes: Axis[]): number {
    return this.shape.placeAlong(this.world.rank, ...axes);
  }

  /**
   * The group of these ranks, whose `rank` is this rank's place. It is opened when it is first
   * asked for: all ranks of the job ask for the same axes in the same order. Rejects with DS_COMM
   * when one does not, DS_ARGUMENT for another axis.
   */
  async axis(...axes: Axis[]): Promise<ProcessGroup> {
    const ranks = this.shape.ranksAlong(this.world.rank, ...axes);
    if (ranks.length === this.world.size) return this.world;
    const long = AXES.filter((axis) => axes.includes(axis) && this.shape.sizes[axis] > 1);
    const name = `${long.join(' x ') || 'alone'} [${ranks.join(', ')}]`;
    const known = this.groups.get(name);
    if (known) return known;
    const opening = this.open(name, ranks);
    this.groups.set(name, opening);
    opening.catch(() => this.groups.delete(name));
    return opening;
  }
}
