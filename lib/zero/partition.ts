// Partitions: the range of a unit that a rank stores and updates, and the storage of its weights.

import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import * as kernels from '../runtime/kernels.generated.js';
import { Event, type Stream } from '../runtime/stream.js';
import { copyAll, sliceFlat } from '../tensor/flat.js';
import type { Tensor } from '../tensor/index.js';
import { clipGroups, type Fragment, fragmentsOf, type GroupRange, type Range } from './layout.js';
import { type Bytes, bytesOf, LentState } from './state/memory.js';
import type { Unit, WeightUnit } from './unit.js';

/** The partition of any unit. A frozen unit has no gradient. */
export type WeightShard = Partition<WeightUnit>;

/**
 * The weights of a unit that this rank stores, and their gradient if the unit is trained. A
 * gradient flow sets `grad`. The step control then records `ready`.
 */
export class Partition<Of extends WeightUnit = Unit> {
  readonly device: Device;
  /** The parameters in the partition, whole or in part. */
  readonly fragments: readonly Fragment[];
  /** The ranges of optimizer groups, with offsets from the start of the partition. */
  readonly groups: readonly GroupRange[];
  /** [numel], reduced over all ranks, until dropGrad(). Null before the first reduction. */
  grad: Tensor | null = null;
  /**
   * Whether `grad` holds the gradient of this rank's samples only: a 1-bit optimizer exchanges
   * other values instead.
   */
  isOwnGrad = false;
  /** Recorded when `grad` is complete. After this event, only the ShardState reads `grad`. */
  readonly ready: Event;

  constructor(
    readonly unit: Of,
    /** Range of the partition in the unit. */
    readonly range: Range,
    /** Storage of its weights. Owned. */
    readonly storage: WeightStore,
    /**
     * The range that this rank saves and adds to the norm, from the partition's start. Other ranks
     * do not count it.
     */
    readonly counted: Range = { offset: 0, numel: range.numel },
  ) {
    this.device = unit.device;
    this.fragments = fragmentsOf(unit.layout, range);
    this.groups = clipGroups(unit.layout, range);
    this.ready = new Event(unit.device);
  }

  /** [numel] in the dtype of the weights. Throws DS_RELEASED if the weights are on a disk. */
  get weights(): Tensor {
    if (this.storage.memory) return this.storage.memory;
    throw new DsError({
      code: 'DS_RELEASED',
      op: `unit ${this.unit.name}`,
      expected: 'its weights in memory',
      got: 'weights on a disk',
      hint: 'Use them inside the forward of their module, or call module.withFullWeights().',
    });
  }

  get numel(): number {
    return this.range.numel;
  }

  /** Whether the partition is the whole unit. */
  get isWhole(): boolean {
    return this.range.numel === this.unit.layout.numel;
  }

  /** Bytes on the device. Memory that the unit owns is not included. */
  get bytes(): { weights: number; gradients: number } {
    const { unit, storage, grad } = this;
    return {
      weights: storage.memory && unit.holds(storage.memory) ? 0 : storage.bytes.device,
      gradients: !grad || unit.holds(grad) ? 0 : grad.bytes,
    };
  }

  dropGrad(): void {
    this.grad?.release();
    this.grad = null;
    this.unit.gradient?.drop();
  }

  dispose(): void {
    this.dropGrad();
    this.ready.dispose();
    this.storage.dispose();
  }
}

/** Stores the weights of a shard. Methods do not block the host; streams order the work. */
export interface WeightStore {
  /**
   * [numel] in the dtype of the weights, on the device or pinned. Null if the weights are on a
   * disk.
   */
  readonly memory: Tensor | null;
  readonly bytes: Bytes;
  /** Copies the weights to `to` ([numel] on the device) in the order of `stream`. */
  load(to: Tensor, stream: Stream): void;
  /**
   * Copies `from` to the weights after the work of `stream`. `from` is [numel] on the device, or
   * pinned with a dtype that rounds to the weights' dtype. Returns the stream that orders the
   * change and the read of `from`.
   */
  store(from: Tensor, stream: Stream): Stream;
  /**
   * For storage in memory: takes ownership of `memory` as the new storage. Returns the previous
   * memory; the caller owns it.
   */
  exchange?(memory: Tensor): Tensor;
  /**
   * Lends a fragment of the weights, as a view or a copy. A whole parameter has its shape; a part
   * is flat.
   */
  lend(fragment: Fragment): LentState;
  dispose(): void;
}

/** Weights in device or host memory, which the store owns. */
export class MemoryStore implements WeightStore {
  constructor(private tensor: Tensor) {}

  get memory(): Tensor {
    return this.tensor;
  }

  exchange(memory: Tensor): Tensor {
    const { tensor: own } = this;
    this.tensor = memory;
    return own;
  }

  get bytes(): Bytes {
    return bytesOf([this.tensor]);
  }

  load(to: Tensor, stream: Stream): void {
    copyAll(to, this.memory, stream);
  }

  store(from: Tensor, stream: Stream): Stream {
    if (from.buffer !== this.memory.buffer) writeTensor(this.memory, from, stream);
    return stream;
  }

  lend(fragment: Fragment): LentState {
    return new LentState(sliceFragment(this.memory, fragment), this.memory.device.compute);
  }

  dispose(): void {
    this.memory.release();
  }
}

/**
 * Copies `from` to `to` on `stream`. Between pinned tensors, CPU threads copy and round to the
 * dtype of `to`.
 */
export function writeTensor(to: Tensor, from: Tensor, stream: Stream): void {
  if (from.buffer.pinned && to.buffer.pinned) kernels.copyOnHost({ in: from, out: to }, stream);
  else copyAll(to, from, stream);
}

/**
 * Returns a fragment of a flat tensor of the partition. A whole parameter has its shape; a part is
 * flat.
 */
export function sliceFragment(flat: Tensor, { entry, offset, numel }: Fragment): Tensor {
  return sliceFlat(flat, { offset, numel }, numel === entry.numel ? entry.shape : [numel]);
}
