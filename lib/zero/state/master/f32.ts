// F32Masters: f32 master weights in the memory of the state.
import type { Stream } from '../../../runtime/stream.js';
import { sliceFlat } from '../../../tensor/flat.js';
import type { Tensor } from '../../../tensor/index.js';
import type { Fragment } from '../../layout.js';
import type { Partition } from '../../shard.js';
import type { LentState } from '../lent-state.js';
import type { Masters, OpenTile, Placement, ShardPart } from '../strategies.js';
import type { StateTile } from '../tiles.js';

/** Makes room for the largest tile of `part`. */
export function makeRoom(part: ShardPart, masters: Masters, placement: Placement): void {
  for (const tile of part.tiles) {
    const kept = masters.kept(part, tile);
    placement.makeRoom(kept);
    kept.master.release();
  }
}

export class F32Masters implements Masters {
  readonly areWeights = false;
  readonly leavesGradients = false;
  readonly bytes = { device: 0, host: 0, disk: 0 };

  constructor(private readonly placement: Placement) {}

  get lendsCopies(): boolean {
    return this.placement.lendsCopies;
  }

  memory(partition: Partition): Tensor | null {
    return this.placement.masterMemory(partition);
  }

  adopt(part: ShardPart): void {
    if (part.master) makeRoom(part, this, this.placement);
  }

  kept({ master }: ShardPart, { range, state }: StateTile): OpenTile {
    return { master: sliceFlat(master as Tensor, range), state };
  }

  opened(_part: ShardPart, _tile: StateTile, kept: OpenTile): OpenTile {
    return kept;
  }

  closing(_part: ShardPart, opened: OpenTile): OpenTile {
    return opened;
  }

  upload(part: ShardPart, tile: StateTile): void {
    this.placement.traffic.upload(part, tile);
  }

  finish(part: ShardPart): Stream {
    return this.placement.traffic.finish(part);
  }

  write(part: ShardPart, fragment: Fragment, values: Tensor): void {
    this.placement.writeMaster(part, fragment, values);
  }

  lend(part: ShardPart, fragment: Fragment): LentState {
    return this.placement.lend(part, fragment, 'master');
  }

  refresh(): boolean {
    return false;
  }

  dispose(): void {}
}
