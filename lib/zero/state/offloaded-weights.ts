// OffloadedWeights: where updated weights go if the weights are in host memory or on a disk
// (offload_param). They reach the device only when a gather needs them.
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import type { Event, Stream } from '../../runtime/stream.js';
import { sliceFlat } from '../../tensor/flat.js';
import { held, Tensor } from '../../tensor/index.js';
import type { Partition } from '../partition.js';
import { allocatePinned } from './memory.js';
import {
  canAccess,
  type Masters,
  memoryForWeights,
  type Placement,
  type ShardPart,
  type WeightTarget,
} from './strategies.js';
import type { StateTile } from './tiles.js';

/**
 * The WeightTarget of offload_param. It stores updated weights in one of three ways:
 *
 * - If the kernels of updates can access the storage, they write it directly.
 * - If not, each tile is uploaded to storage in memory, and a whole partition is copied to a disk.
 * - State on the device rounds a finished partition to a temporary tensor first.
 */
export class OffloadedWeights implements WeightTarget {
  constructor(
    private readonly placement: Placement,
    private readonly masters: Masters,
  ) {}

  memory(partition: Partition, memories: readonly (Tensor | null)[]): Tensor | null {
    const stored = partition.storage.memory;
    if (stored && canAccess(this.placement, stored)) return stored.retain();
    const { placement } = this;
    return placement.receivesGradients ? memoryForWeights(placement, partition, memories) : null;
  }

  deliver(part: ShardPart, tile: StateTile): void {
    if (!this.uploads(part)) return;
    this.placement.traffic.complete?.(tile);
    this.masters.route.upload?.(part, tile);
  }

  finish(part: ShardPart): Stream {
    return this.uploads(part) ? this.masters.route.finish(part) : this.store(part);
  }

  /**
   * If kernels access the storage, it exchanges memory with the gradient: the memory with the
   * speculative weights becomes the storage. The previous storage receives the next gradient, which
   * comes after the last gather of backward. Other uploads wait for the end of backward, because
   * backward may still gather the previous weights.
   */
  uploadAll(part: ShardPart, backward: Event): void {
    if (this.uploads(part)) {
      this.placement.traffic.holdUploads?.(backward);
      for (const tile of part.tiles) this.masters.route.upload?.(part, tile);
      this.masters.route.finish(part);
      return;
    }
    const { storage } = part.partition;
    if (part.weight !== storage.memory)
      part.grad = required(storage.exchange?.(required(part.grad)));
    this.store(part);
  }

  refresh(part: ShardPart): void {
    this.placement.synchronize();
    const rounded = this.roundMasters(part);
    this.placement.traffic.store(part, rounded).synchronize();
    rounded.release();
    this.placement.synchronize();
  }

  /** Returns whether updated weights are uploaded tile by tile to storage in memory. */
  private uploads({ partition: { storage }, weight }: ShardPart): boolean {
    return weight !== null && storage.memory !== null && !canAccess(this.placement, storage.memory);
  }

  private store(part: ShardPart): Stream {
    const weights = part.weight?.retain() ?? this.roundMasters(part);
    const order = this.placement.traffic.store(part, weights);
    weights.release();
    return order;
  }

  /**
   * Returns the masters rounded to the weights' dtype, on the device or in host memory. The caller
   * releases the tensor.
   */
  private roundMasters(part: ShardPart): Tensor {
    const { master, partition } = part;
    const { device, numel, unit, storage } = partition;
    if (master && !master.buffer.pinned) {
      const out = held(() => Tensor.empty([numel], unit.dtype, device));
      kernels.copy({ in: master, out });
      return out;
    }
    const out = storage.memory?.retain() ?? allocatePinned(device, [numel], unit.dtype);
    this.placement.storage.forEachMaster(part, (tensor, range) => {
      const slice = sliceFlat(out, range);
      kernels.copyOnHost({ in: tensor, out: slice }, this.placement.traffic.order);
      slice.release();
    });
    return out;
  }
}
