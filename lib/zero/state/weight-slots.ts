// WeightSlots: slots of pinned host memory. CPU threads update weights of the device in them, tile
// by tile.

import type { Device } from '../../runtime/device.js';
import { required } from '../../runtime/required.js';
import { Event, type Stream } from '../../runtime/stream.js';
import { copyFlat, sliceFlat } from '../../tensor/flat.js';
import type { Tensor } from '../../tensor/index.js';
import { allocatePinned } from './memory.js';
import type { StateTile } from './tiles.js';

/** Number of slots. While CPU threads update one, the other is uploaded and filled again. */
export const WEIGHT_SLOTS = 2;

/**
 * Maximum elements per slot. Larger slots need more memory; smaller ones fill the driver's queues.
 * See tileSize().
 */
export const LARGEST_SLOT = 2 ** 26;

interface Slot {
  memory: Tensor;
  /** The tile with weights in the slot. */
  tile: StateTile | null;
  readonly filled: Event;
  readonly left: Event;
}

/**
 * Three streams, ordered only by events:
 *
 *   down     weights of a tile to its slot
 *   updates  change of the slot
 *   up       weights of the tile from the slot
 */
export class WeightSlots {
  private readonly slots: Slot[] = [];
  private next = 0;

  constructor(
    private readonly device: Device,
    private readonly streams: { down: Stream; updates: Stream; up: Stream },
  ) {}

  /** Enlarges the slots to `numel` weights. Call it before the first fetch(). */
  reserve(numel: number): void {
    if (numel <= (this.slots[0]?.memory.numel ?? 0)) return;
    const { device } = this;
    for (let i = 0; i < WEIGHT_SLOTS; ++i) {
      this.slots[i]?.memory.release();
      const memory = allocatePinned(device, [numel], 'bf16');
      const slot = this.slots[i];
      if (slot) slot.memory = memory;
      else {
        const events = { filled: new Event(device), left: new Event(device) };
        this.slots.push({ memory, tile: null, ...events });
      }
    }
  }

  /**
   * Copies the tile's weights to the next slot after the event `last`. Returns them in the slot.
   * The caller releases the tensor.
   */
  fetch(weights: Tensor, tile: StateTile, last: Event): Tensor {
    const { down, updates } = this.streams;
    const slot = required(this.slots[this.next]);
    this.next = (this.next + 1) % WEIGHT_SLOTS;
    for (const slot of this.slots) if (slot.tile === tile) slot.tile = null;
    slot.tile = tile;
    const { numel } = tile.range;
    for (const event of [last, slot.left]) down.wait(event);
    copyFlat(slot.memory, { offset: 0, numel }, weights, tile.range, down);
    updates.wait(slot.filled.record(down));
    return sliceFlat(slot.memory, { offset: 0, numel });
  }

  /** Copies the slot of the tile back to `weights` after its update. */
  send(weights: Tensor, tile: StateTile): void {
    const { up } = this.streams;
    const slot = required(this.slots.find((slot) => slot.tile === tile));
    const { numel } = tile.range;
    up.wait(tile.updated);
    copyFlat(weights, tile.range, slot.memory, { offset: 0, numel }, up);
    slot.left.record(up);
  }

  get bytes(): number {
    return this.slots.reduce((sum, { memory }) => sum + memory.bytes, 0);
  }

  dispose(): void {
    for (const { memory, filled, left } of this.slots.splice(0)) {
      memory.release();
      for (const event of [filled, left]) event.dispose();
    }
  }
}
