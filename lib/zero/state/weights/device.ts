// DeviceWeights: brings updated weights to the device, if updates have not written them there.
import * as kernels from '../../../runtime/kernels.generated.js';
import type { Event, Stream } from '../../../runtime/stream.js';
import { sliceFlat } from '../../../tensor/flat.js';
import type { Tensor } from '../../../tensor/index.js';
import type { Partition } from '../../shard.js';
import { uploadRounded } from '../pinned.js';
import type { Masters, Placement, ShardPart, WeightTarget } from '../strategies.js';
import type { StateTile } from '../tiles.js';

export class DeviceWeights implements WeightTarget {
  constructor(
    private readonly placement: Placement,
    private readonly masters: Masters,
  ) {}

  memory(partition: Partition, memories: readonly (Tensor | null)[]): Tensor | null {
    return this.placement.weightMemory(partition, memories);
  }

  deliver(part: ShardPart, tile: StateTile): void {
    this.placement.traffic.complete(tile);
    this.masters.upload(part, tile);
  }

  finish(part: ShardPart): Stream {
    return this.masters.finish(part);
  }

  uploadAll(part: ShardPart, backward: Event, readLate: boolean): void {
    if (readLate) this.placement.traffic.holdUploads(backward);
    for (const tile of part.tiles) this.masters.upload(part, tile);
    this.finish(part);
  }

  refresh(part: ShardPart): void {
    const { weights } = part.partition;
    this.placement.eachMaster(part, (master, range) => {
      if (master === weights) return;
      const rounded = sliceFlat(weights, range);
      if (master.buffer.pinned) uploadRounded(master, rounded);
      else kernels.copy({ in: master, out: rounded });
      rounded.release();
    });
  }
}
