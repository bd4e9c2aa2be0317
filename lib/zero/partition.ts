// What a rank keeps of a unit: a contiguous part of its weights, and, of a trained one, a partition
// whose state it updates.

import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { Event } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';
import type { WeightPlace } from './home/weight-place.js';
import { clipGroups, type GroupRange, type Piece, piecesOf, type Range } from './layout.js';
import type { Unit } from './unit.js';
import type { WeightUnit } from './weight-unit.js';

/** The weights that this rank keeps of a unit: of a frozen one, all there is. */
export class WeightPart {
  readonly device: Device;
  /** The parameters, or parts of them, that lie in it. */
  readonly pieces: readonly Piece[];

  constructor(
    readonly unit: WeightUnit,
    /** Where it lies in the unit, in elements. */
    readonly range: Range,
    /** Where its weights are. Owned. */
    readonly place: WeightPlace,
    /** The part that this rank alone counts and saves, from the part's start. */
    readonly counted: Range = { offset: 0, numel: range.numel },
  ) {
    this.device = unit.device;
    this.pieces = piecesOf(unit.layout, range);
  }

  /** [numel] in the weights' dtype. Throws DS_RELEASED while they are on a disk. */
  get weights(): Tensor {
    if (this.place.memory) return this.place.memory;
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

  /** Whether it is the whole unit. */
  get isWhole(): boolean {
    return this.range.numel === this.unit.layout.numel;
  }

  /** Bytes on the device beside those that the unit counts: a shard in memory of its own. */
  get bytes(): { weights: number; gradients: number } {
    const { unit, place } = this;
    const own = place.memory && unit.holds(place.memory) ? 0 : place.bytes.device;
    return { weights: own, gradients: 0 };
  }

  dispose(): void {
    this.place.dispose();
  }
}

/**
 * Made by a stage, which fills `grad`; whoever counts that in the norm records `ready`, and a home
 * consumes both. An update writes the weights.
 */
export class Partition extends WeightPart {
  declare readonly unit: Unit;
  /** The optimizer groups present, offsets from the partition's start. */
  readonly groups: readonly GroupRange[];
  /**
   * [numel] reduced over all ranks, in the unit's gradDtype; null before the last micro-batch's
   * reduction and after dropGrad().
   */
  grad: Tensor | null = null;
  /** Whether `grad` is of this rank's samples alone, where ranks sum none up. */
  isOwnGrad = false;
  /** `grad` is complete, and none but its home reads it any more. */
  readonly ready: Event;

  /** `counted` is also the part of the gradient whose squares this rank adds to the norm. */
  constructor(unit: Unit, range: Range, place: WeightPlace, counted?: Range) {
    super(unit, range, place, counted);
    this.ready = new Event(unit.device);
    this.groups = clipGroups(unit.layout, range);
  }

  /** Likewise a shard of gradients. */
  override get bytes(): { weights: number; gradients: number } {
    const { unit, grad } = this;
    return { ...super.bytes, gradients: !grad || unit.holds(grad) ? 0 : grad.bytes };
  }

  /** The gradient has been consumed: frees it, and what the unit still holds of it. */
  dropGrad(): void {
    this.grad?.release();
    this.grad = null;
    this.unit.gradient.drop();
  }

  override dispose(): void {
    this.dropGrad();
    this.ready.dispose();
    super.dispose();
  }
}
