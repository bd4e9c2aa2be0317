// Keeps evicted blocks of the prefix cache in host memory, so that cold prefixes need no
// recomputation.
import { required } from '../runtime/required.js';

/** Copies blocks between the device and the slots of host memory, in stream order. */
export interface BlockCopies {
  /** Copies a block of the device to a slot. */
  save(block: number, slot: number): void;
  /** Copies a slot to a block of the device. */
  load(slot: number, block: number): void;
}

/**
 * Assigns slots of host memory to evicted blocks by key. A full pool drops the least recently used
 * block.
 */
export class HostBlocks {
  /** Slots by key, the least recently used first. */
  private readonly slots = new Map<string, number>();
  private readonly free: number[];

  constructor(
    count: number,
    private readonly copies: BlockCopies,
  ) {
    this.free = Array.from({ length: count }, (_, i) => count - 1 - i);
  }

  /** Returns whether the block is in host memory, and marks it as recently used. */
  find(key: string): boolean {
    const slot = this.slots.get(key);
    if (slot === undefined) return false;
    this.slots.delete(key);
    this.slots.set(key, slot);
    return true;
  }

  /** Copies a block that the device evicts to host memory. */
  save(key: string, block: number): void {
    if (this.find(key)) return;
    const slot = this.free.pop() ?? this.dropOldest();
    this.copies.save(block, slot);
    this.slots.set(key, slot);
  }

  /** Copies a block back to the device. Returns false if host memory no longer has it. */
  load(key: string, block: number): boolean {
    if (!this.find(key)) return false;
    this.copies.load(required(this.slots.get(key)), block);
    return true;
  }

  /** Drops all blocks. */
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
