// Evicted blocks of the prefix cache in host memory: cold prefixes come back without recomputation.
import { required } from '../runtime/required.js';

/** Copies blocks between the device and the slots of host memory, in stream order. */
export interface BlockCopies {
  /** Copies a block of the device to a slot. */
  save(block: number, slot: number): void;
  /** Copies a slot to a block of the device. */
  load(slot: number, block: number): void;
}

/** Slots of host memory by the keys of their contents. A full pool drops the oldest contents. */
export class HostBlocks {
  /** The slots in use, the least recently used one first. */
  private readonly slots = new Map<string, number>();
  private readonly free: number[];

  constructor(
    count: number,
    private readonly copies: BlockCopies,
  ) {
    this.free = Array.from({ length: count }, (_, i) => count - 1 - i);
  }

  /**
   * Returns whether the contents with this key are here. They become the most recently used ones.
   */
  find(key: string): boolean {
    const slot = this.slots.get(key);
    if (slot === undefined) return false;
    this.slots.delete(key);
    this.slots.set(key, slot);
    return true;
  }

  /** Keeps the contents of a block that the device evicts. */
  save(key: string, block: number): void {
    if (this.find(key)) return;
    const slot = this.free.pop() ?? this.dropOldest();
    this.copies.save(block, slot);
    this.slots.set(key, slot);
  }

  /** Copies the contents to a block of the device. Returns false if they are not here any more. */
  load(key: string, block: number): boolean {
    if (!this.find(key)) return false;
    this.copies.load(required(this.slots.get(key)), block);
    return true;
  }

  /** Drops all contents. */
  clear(): void {
    this.free.push(...this.slots.values());
    this.slots.clear();
  }

  private dropOldest(): number {
    const [[key, slot] = ['', 0]] = this.slots;
    this.slots.delete(key);
    return slot;
  }
}
