// A partition: the contiguous part of a unit whose optimizer state this rank keeps and updates.
import type { Device } from '../runtime/device.js';
import { Event } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';
import { clipGroups, type GroupRange, type Piece, piecesOf, type Range } from './layout.js';
import type { Unit } from './unit.js';

/** Made by a stage, which fills `grad` and records `ready`; a home consumes both. */
export class Partition {
  readonly device: Device;
  /** The optimizer groups present, offsets from the partition's start. */
  readonly groups: readonly GroupRange[];
  /** The parameters, or parts of them, that lie in it. */
  readonly pieces: readonly Piece[];
  /** [numel] reduced over all ranks, in the unit's gradDtype; null before the last micro-batch's reduction and after dropGrad(). */
  grad: Tensor | null = null;
  /** `grad` is complete. */
  readonly ready: Event;

  constructor(
    readonly unit: Unit,
    /** Where it lies in the unit, in elements. */
    readonly range: Range,
    /** [numel] in the weights' dtype: what an update of the partition writes. Owned. */
    readonly weights: Tensor,
    /** The part of the gradient whose squares this rank adds to the norm, from the partition's start. */
    readonly counted: Range = { offset: 0, numel: range.numel },
  ) {
    this.device = unit.device;
    this.ready = new Event(unit.device);
    this.groups = clipGroups(unit.layout, range);
    this.pieces = piecesOf(unit.layout, range);
  }

  get numel(): number {
    return this.range.numel;
  }

  /** Whether it is the whole unit. */
  get isWhole(): boolean {
    return this.range.numel === this.unit.layout.numel;
  }

  /** Bytes on the device beside those that the unit counts: a shard of weights or of gradients in memory of its own. */
  get bytes(): { weights: number; gradients: number } {
    const { unit, weights, grad } = this;
    return {
      weights: unit.holds(weights) || weights.buffer.pinned ? 0 : weights.bytes,
      gradients: !grad || unit.holds(grad) ? 0 : grad.bytes,
    };
  }

  /** The gradient has been consumed: frees it, and what the unit still holds of it. */
  dropGrad(): void {
    this.grad?.release();
    this.grad = null;
    this.unit.gradient.drop();
  }

  dispose(): void {
    this.dropGrad();
    this.ready.dispose();
    this.weights.release();
  }
}
