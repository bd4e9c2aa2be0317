// Allocates the blocks of the key-value cache and keeps free blocks for prefix caching.

import { createHash } from 'node:crypto';
import { DsError } from '../errors.js';
import { required } from '../runtime/required.js';

/**
 * Returns the key of a full block. It hashes the block's tokens, all tokens before them and the
 * cache salt. SHA-256 makes collisions between tenants infeasible.
 */
export function blockKey(parent: string, tokens: readonly number[]): string {
  const hash = createHash('sha256').update(parent, 'latin1');
  return hash.update(Int32Array.from(tokens)).digest('binary');
}

/** Returns the parent key of the first block of sequences with `salt`. */
export function rootKey(salt: string): string {
  return createHash('sha256').update(salt, 'utf8').digest('binary');
}

/**
 * Numbered blocks with reference counts. A free block keeps its contents until take() reuses it.
 * take() returns the block that was freed longest ago. Sources: Kwon et al. 2023; vLLM's prefix
 * caching.
 */
export class BlockPool {
  private readonly users: Int32Array;
  /** The key of each block's contents; null if find() must not return the block. */
  private readonly keys: (string | null)[];
  private readonly blockByKey = new Map<string, number>();
  /** The free list: a doubly linked ring, oldest first. Its sentinel has index `blocks`. */
  private readonly next: Int32Array;
  private readonly previous: Int32Array;
  private count: number;

  /** `evicted` gets the findable contents of a block before take() reuses it. */
  constructor(
    readonly blocks: number,
    private readonly evicted: (key: string, block: number) => void = () => {},
  ) {
    this.users = new Int32Array(blocks);
    this.keys = Array(blocks).fill(null);
    this.next = Int32Array.from({ length: blocks + 1 }, (_, i) => (i + 1) % (blocks + 1));
    this.previous = Int32Array.from({ length: blocks + 1 }, (_, i) => (i + blocks) % (blocks + 1));
    this.count = blocks;
  }

  /** Number of free blocks. */
  get free(): number {
    return this.count;
  }

  /** Reference count of `block`. */
  usersOf(block: number): number {
    return required(this.users[block]);
  }

  /** Returns the block with this key, in use or free, or null. */
  find(key: string): number | null {
    return this.blockByKey.get(key) ?? null;
  }

  /** Takes the block that was freed longest ago and drops its key. */
  take(): number {
    const block = required(this.next[this.blocks]);
    if (this.count === 0) throw brokenError('a free block', 'none');
    this.unlink(block);
    const key = this.keys[block];
    if (key != null) this.evicted(key, block);
    this.forget(block);
    this.users[block] = 1;
    return block;
  }

  /** Adds a reference to a block that find() returned. */
  retain(block: number): void {
    if (this.users[block] === 0) this.unlink(block);
    this.users[block] = required(this.users[block]) + 1;
  }

  /** Makes the complete contents of `block` findable by `key`, unless another block has the key. */
  seal(block: number, key: string): void {
    if (this.blockByKey.has(key)) return;
    this.forget(block);
    this.keys[block] = key;
    this.blockByKey.set(key, block);
  }

  /**
   * Drops a sequence's references to its blocks. Blocks without a key are reused first, then the
   * last blocks of a sequence: more sequences share its first blocks.
   */
  release(blocks: readonly number[]): void {
    for (let i = blocks.length - 1; i >= 0; --i) {
      const block = required(blocks[i]);
      if (this.users[block] === 0) throw brokenError('a block in use', `the free block ${block}`);
      this.users[block] = required(this.users[block]) - 1;
      if (this.users[block] === 0) this.link(block);
    }
  }

  private forget(block: number): void {
    const key = this.keys[block];
    if (key != null) this.blockByKey.delete(key);
    this.keys[block] = null;
  }

  private link(block: number): void {
    const before = this.keys[block] === null ? this.blocks : required(this.previous[this.blocks]);
    const after = required(this.next[before]);
    this.next[before] = block;
    this.previous[block] = before;
    this.next[block] = after;
    this.previous[after] = block;
    this.count++;
  }

  private unlink(block: number): void {
    const before = required(this.previous[block]);
    const after = required(this.next[block]);
    this.next[before] = after;
    this.previous[after] = before;
    this.count--;
  }
}

/** An internal error: the reference counts are inconsistent. */
function brokenError(expected: string, got: string): DsError {
  return new DsError({ code: 'DS_INTERNAL', op: 'BlockPool', expected, got });
}
