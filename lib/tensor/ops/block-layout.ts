// Block-sparse attention layouts by head, as the bits that the kernels read.

import type { DsError } from '../../errors.js';
import type { Device } from '../../runtime/device.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { requireInteger } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import { required } from '../../runtime/required.js';
import { within } from '../scope.js';
import { Tensor } from '../tensor.js';
import { requireBlock } from './require-block.js';

/** Sizes of a layout. */
export interface BlockLayoutSizes {
  /** Number of different layouts: one per attention head, or 1 shared layout. */
  heads: number;
  /** Number of blocks of tokens; the last one may be short. */
  blocks: number;
  /** Tokens per block: a power of two, at least 16. */
  block: number;
}

/**
 * Lets the queries of a block see the key blocks from `from` to before `to`, clipped to the
 * existing blocks. Throws DS_ARGUMENT if a bound is not an integer.
 */
export type SeeBlocks = (from: number, to: number) => void;

const BITS = 32;

/** A block layout: one bit for each pair of blocks of each head. */
export class BlockLayout {
  /** Number of different layouts; 1 if all heads share one. */
  readonly heads: number;
  /** Blocks of queries, and of keys. */
  readonly blocks: number;
  /** Tokens of a block. */
  readonly block: number;
  private readonly rowWords: number;
  private readonly words: Int32Array;
  private readonly copies = new Map<string, Tensor>();

  /**
   * Calls `fill` for each block of queries of each head. Throws DS_ARGUMENT unless the sizes are
   * integers in their ranges.
   */
  constructor(
    { heads, blocks, block }: BlockLayoutSizes,
    fill: (see: SeeBlocks, head: number, query: number) => void,
  ) {
    this.heads = requireInteger('BlockLayout heads', heads, 1);
    this.blocks = requireInteger('BlockLayout blocks', blocks, 0);
    this.block = requireBlock('BlockLayout block', block);
    requireType('BlockLayout fill', fill, 'function');
    this.rowWords = Math.ceil(blocks / BITS);
    this.words = new Int32Array(heads * blocks * this.rowWords);
    for (let head = 0; head < heads; ++head)
      for (let query = 0; query < blocks; ++query)
        fill((from, to) => this.see(head, query, from, to), head, query);
  }

  /** Returns whether queries of block `query` see keys of block `key`. */
  sees(head: number, query: number, key: number): boolean {
    const word = required(this.words[this.firstWord(head, query) + Math.floor(key / BITS)]);
    return ((word >>> (key % BITS)) & 1) === 1;
  }

  /** Number of visible pairs of blocks, over all different layouts. */
  get count(): number {
    let bits = 0;
    for (const word of this.words)
      for (let bitsLeft = word; bitsLeft !== 0; bitsLeft &= bitsLeft - 1) ++bits;
    return bits;
  }

  /** Returns [heads, blocks, words per row] i32 on `device`; cached as long as the layout lives. */
  on(device: Device): Tensor {
    const cached = this.copies.get(device.name);
    if (cached) return cached;
    const shape = [this.heads, this.blocks, this.rowWords];
    const created = within(null, () => Tensor.from(this.words, { shape, dtype: 'i32', device }));
    this.copies.set(device.name, created);
    return created;
  }

  /** Returns the mask [1, heads, queries, keys] of the last `queries` of `keys` tokens. */
  mask(queries: number, keys: number, device: Device): Tensor {
    const { heads, block } = this;
    const visible = new Uint8Array(heads * queries * keys);
    for (let head = 0, at = 0; head < heads; ++head)
      for (let t = keys - queries; t < keys; ++t)
        for (let s = 0; s < keys; ++s, ++at)
          visible[at] = Number(this.sees(head, Math.floor(t / block), Math.floor(s / block)));
    return Tensor.from(visible, { shape: [1, heads, queries, keys], dtype: 'bool', device });
  }

  private firstWord(head: number, query: number): number {
    return (head * this.blocks + query) * this.rowWords;
  }

  private see(head: number, query: number, from: number, to: number): void {
    if (!Number.isInteger(from) || !Number.isInteger(to)) throw notBlocksError(from, to);
    const first = this.firstWord(head, query);
    for (let key = Math.max(0, from); key < Math.min(to, this.blocks); ++key)
      this.words[first + Math.floor(key / BITS)]! |= 1 << (key % BITS);
  }
}

function notBlocksError(from: unknown, to: unknown): DsError {
  return argumentError(
    'BlockLayout see',
    'integers: the first block, and the block after the last one',
    `${formatValue(from)} and ${formatValue(to)}`,
  );
}
