// Which blocks of a cache are whose, and which of the free ones still hold a text's beginning.
import { createHash } from 'node:crypto';
import { DsError } from '../errors.js';

/**
 * What full blocks of a text are known by: the tokens in it, all before them, and what keeps the
 * cache's users apart. SHA-256, so that no text can be made to meet another's.
 */
export function blockKey(parent: string, tokens: readonly number[]): string {
  const hash = createHash('sha256').update(parent, 'latin1');
  return hash.update(Int32Array.from(tokens)).digest('binary');
}

/** What the first block of texts with `salt` follows. */
export function rootKey(salt: string): string {
  return createHash('sha256').update(salt, 'utf8').digest('binary');
}

/**
 * Blocks by number, with a count of the sequences that use each. A block that nobody uses is free,
 * and keeps what it holds until it is taken: those freed longest ago are taken first. Source: Kwon
 * et al. 2023; vLLM's prefix caching.
 */
export class BlockPool {
  private readonly users: Int32Array;
  /** The key of what a block holds; null where nobody may find it. */
  private readonly keys: (string | null)[];
  private readonly found = new Map<string, number>();
  /** Free blocks in a ring through a place of no block, numbered `blocks`, oldest first. */
  private readonly next: Int32Array;
  private readonly previous: Int32Array;
  private count: number;

  constructor(readonly blocks: number) {
    this.users = new Int32Array(blocks);
    this.keys = Array(blocks).fill(null);
    this.next = Int32Array.from({ length: blocks + 1 }, (_, i) => (i + 1) % (blocks + 1));
    this.previous = Int32Array.from({ length: blocks + 1 }, (_, i) => (i + blocks) % (blocks + 1));
    this.count = blocks;
  }

  /** Blocks that nobody uses. */
  get free(): number {
    return this.count;
  }

  /** Sequences that use `block`. */
  usersOf(block: number): number {
    return this.users[block] as number;
  }

  /** The block with this key, in use or free; null where there is none. */
  find(key: string): number | null {
    return this.found.get(key) ?? null;
  }

  /** The block that was freed longest ago, for one sequence; what it held is forgotten. */
  take(): number {
    const block = this.next[this.blocks] as number;
    if (this.count === 0) throw broken('a free block', 'none');
    this.unlink(block);
    this.forget(block);
    this.users[block] = 1;
    return block;
  }

  /** One more sequence uses `block`, which find() gave. */
  share(block: number): void {
    if (this.users[block] === 0) this.unlink(block);
    (this.users[block] as number)++;
  }

  /** What `block` holds is complete, and may be found by `key` unless another block is. */
  seal(block: number, key: string): void {
    if (this.found.has(key)) return;
    this.forget(block);
    this.keys[block] = key;
    this.found.set(key, block);
  }

  /**
   * A sequence with these blocks uses them no more. The end of a text is taken before its
   * beginning, which more texts share, and what nobody can find before both.
   */
  release(blocks: readonly number[]): void {
    for (let i = blocks.length - 1; i >= 0; --i) {
      const block = blocks[i] as number;
      if (this.users[block] === 0) throw broken('a block in use', `the free block ${block}`);
      (this.users[block] as number)--;
      if (this.users[block] === 0) this.link(block);
    }
  }

  private forget(block: number): void {
    const key = this.keys[block];
    if (key != null) this.found.delete(key);
    this.keys[block] = null;
  }

  private link(block: number): void {
    const before = this.keys[block] === null ? this.blocks : (this.previous[this.blocks] as number);
    const after = this.next[before] as number;
    this.next[before] = block;
    this.previous[block] = before;
    this.next[block] = after;
    this.previous[after] = block;
    this.count++;
  }

  private unlink(block: number): void {
    const before = this.previous[block] as number;
    const after = this.next[block] as number;
    this.next[before] = after;
    this.previous[after] = before;
    this.count--;
  }
}

/** A mistake of the library: it has lost count of its blocks. */
function broken(expected: string, got: string): DsError {
  return new DsError({ code: 'DS_INTERNAL', op: 'BlockPool', expected, got });
}
