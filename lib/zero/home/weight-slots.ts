// Slots of pinned host memory that tiles of weights come to from the device for an update, and
// leave.
import type { Device } from '../../runtime/device.js';
import { Event, type Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import { copyFlat, sliceFlat } from '../flat.js';
import { pinned } from './pinned.js';
import type { HostTile } from './tiles.js';

/** While one is updated, the other one's weights leave and the next ones come. */
const COUNT = 2;

interface Slot {
  memory: Tensor;
  /** Whose weights it had last. */
  tile: HostTile | null;
  readonly filled: Event;
  readonly left: Event;
}

/**
 * Three streams, ordered by events alone: weights come down the first, change in the second and go
 * up the third.
 */
export class WeightSlots {
  private readonly slots: Slot[] = [];
  private turn = 0;

  constructor(
    private readonly device: Device,
    private readonly streams: { down: Stream; updates: Stream; up: Stream },
  ) {}

  /** Makes room for tiles of `numel` weights. Comes before a tile is fetched. */
  makeRoom(numel: number): void {
    if (numel <= (this.slots[0]?.memory.numel ?? 0)) return;
    const { device } = this;
    for (let i = 0; i < COUNT; ++i) {
      this.slots[i]?.memory.release();
      const memory = pinned(device, [numel], 'bf16');
      const slot = this.slots[i];
      if (slot) slot.memory = memory;
      else {
        const events = { filled: new Event(device), left: new Event(device) };
        this.slots.push({ memory, tile: null, ...events });
      }
    }
  }

  /**
   * The tile's part of `weights`, which updates enqueued from now on may change; the caller
   * releases it.
   */
  fetch(weights: Tensor, tile: HostTile): Tensor {
    const { down, updates } = this.streams;
    const slot = this.slots[this.turn] as Slot;
    this.turn = (this.turn + 1) % COUNT;
    for (const one of this.slots) if (one.tile === tile) one.tile = null;
    slot.tile = tile;
    const { numel } = tile.range;
    down.wait(slot.left);
    copyFlat(slot.memory, { offset: 0, numel }, weights, tile.range, down);
    updates.wait(slot.filled.record(down));
    return sliceFlat(slot.memory, { offset: 0, numel });
  }

  /** What was fetched of the tile goes back to `weights` once its update is done. */
  send(weights: Tensor, tile: HostTile): void {
    const { up } = this.streams;
    const slot = this.slots.find((one) => one.tile === tile) as Slot;
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
