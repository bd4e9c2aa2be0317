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

/** The shard of a unit; without a gradient if the unit is frozen. */
export type WeightShard = Partition<WeightUnit>;

/**
 * The weights of a unit on this rank, and if trained, the gradient of their updates. A stage fills
 * `grad`, and the norm's counter records `ready`.
 */
export class Partition<Of extends WeightUnit = Unit> {
  readonly device: Device;
  /** The parameters in the partition, whole or in part. */
  readonly fragments: readonly Fragment[];
  /** The optimizer groups, with offsets from the partition's start. */
  readonly groups: readonly GroupRange[];
  /** [numel] reduced over all ranks, until dropGrad(). Null before the last micro-batch. */
  grad: Tensor | null = null;
  /** Whether `grad` contains only this rank's samples, because ranks do not sum gradients. */
  isOwnGrad = false;
  /** Recorded when `grad` is complete; from then on only its ShardState reads it. */
  readonly ready: Event;

  constructor(
    readonly unit: Of,
    /** Range of the partition in the unit. */
    readonly range: Range,
    /** Storage of its weights. Owned. */
    readonly storage: WeightStore,
    /** The range that only this rank saves and adds to the norm, from the partition's start. */
    readonly counted: Range = { offset: 0, numel: range.numel },
  ) {
    this.device = unit.device;
    this.fragments = fragmentsOf(unit.layout, range);
    this.groups = clipGroups(unit.layout, range);
    this.ready = new Event(unit.device);
  }

  /** [numel] in the weights' dtype. Throws DS_RELEASED if they are on a disk. */
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

  /** Bytes on the device, without memory that the unit owns. */
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
  /** [numel] in the weights' dtype, on the device or pinned; null on a disk. */
  readonly memory: Tensor | null;
  readonly bytes: Bytes;
  /** Copies the weights to `to` ([numel] on the device) in the order of `stream`. */
  load(to: Tensor, stream: Stream): void;
  /**
   * Sets the weights to `from` after the work of `stream`: [numel] on the device, or pinned in any
   * dtype that rounds to theirs. Returns the stream that orders the change and the read of `from`.
   */
  store(from: Tensor, stream: Stream): Stream;
  /** For storage in memory: replaces it by `memory`, with ownership, and returns the previous. */
  exchange?(memory: Tensor): Tensor;
  /** Lends a fragment, as a reference or a copy, in the parameter's shape if it is whole. */
  lend(fragment: Fragment): LentState;
  dispose(): void;
}

/** Storage in memory, which it owns. */
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
 * Copies `from` to `to` on `stream`. Rounds to the dtype of `to` if both are in pinned host memory.
 */
export function writeTensor(to: Tensor, from: Tensor, stream: Stream): void {
  if (from.buffer.pinned && to.buffer.pinned) kernels.copyOnHost({ in: from, out: to }, stream);
  else copyAll(to, from, stream);
}

/** Returns a fragment of a flat tensor of the partition. A whole parameter keeps its shape. */
export function sliceFragment(flat: Tensor, { entry, offset, numel }: Fragment): Tensor {
  return sliceFlat(flat, { offset, numel }, numel === entry.numel ? entry.shape : [numel]);
}
