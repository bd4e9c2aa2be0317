// Which tokens of which texts the next step computes, and which blocks they get: continuous
// batching by a budget of tokens.
import { DsError } from '../errors.js';
import { BlockPool } from './block-pool.js';
import type { Sequence } from './sequence.js';

/** What a step, and the cache, have room for. */
export interface SchedulerLimits {
  /** Most tokens of a step. */
  tokens: number;
  /** Most sequences that are computed in turn. */
  sequences: number;
  /** Blocks that there are. */
  blocks: number;
  /** Tokens in a block. */
  blockSize: number;
  /** Whether sequences share the blocks of a common beginning. */
  sharesPrefixes: boolean;
}

/** Tokens of one sequence that a step computes. */
export interface Slice {
  readonly sequence: Sequence;
  /** Place of the first one in the sequence. */
  readonly first: number;
  /** How many there are. */
  readonly count: number;
}

/** What the scheduler has counted. */
export interface ScheduleCounts {
  /** Sequences that have blocks. */
  running: number;
  /** Sequences that wait for some. */
  waiting: number;
  /** Blocks in use. */
  blocksUsed: number;
  /** Blocks in all. */
  blocks: number;
  /** Tokens that were looked for in the cache when their sequence was admitted. */
  prefixQueries: number;
  /** Those that were found. */
  prefixHits: number;
  /** Sequences that gave their blocks back before they were done. */
  preemptions: number;
}

/**
 * Sequences in the order of their arrival. A step takes the running ones first, those with one
 * token to compute before those whose prompt is read in pieces, then admits waiting ones while its
 * budget, its sequences and the blocks last. When a running one finds no block, the newest gives
 * its own back and is computed again later. Sources: Yu et al. 2022 (Orca); Agrawal et al. 2023
 * (Sarathi); Kwon et al. 2023 (vLLM), for preemption by recomputation.
 */
export class Scheduler {
  private readonly pool: BlockPool;
  private running: Sequence[] = [];
  private waiting: Sequence[] = [];
  private slices: Slice[] = [];
  private budget = 0;
  private arrivals = 0;
  private prefixQueries = 0;
  private prefixHits = 0;
  private preemptions = 0;

  constructor(readonly limits: SchedulerLimits) {
    this.pool = new BlockPool(limits.blocks);
  }

  /** Whether nothing is left to compute. */
  get isIdle(): boolean {
    return this.running.length + this.waiting.length === 0;
  }

  /** Joins the queue. Throws DS_LIMIT for a sequence that would not fit an empty cache. */
  submit(sequence: Sequence): void {
    const { blocks, blockSize } = this.limits;
    const needed = this.blocksFor(sequence.limit);
    if (needed > blocks) {
      throw new DsError({
        code: 'DS_LIMIT',
        op: 'InferenceEngine',
        expected: `a request that fits the cache of ${blocks} blocks of ${blockSize} tokens (${blocks * blockSize} tokens)`,
        got: `${sequence.promptLength} tokens of the prompt and ${sequence.limit - sequence.promptLength} new ones: ${needed} blocks`,
        hint: 'Shorten the prompt, lower maxNewTokens, or give the cache more blocks (kv_cache.blocks).',
      });
    }
    sequence.order = this.arrivals++;
    this.waiting.push(sequence);
  }

  /**
   * Gives up a sequence, done or not: its blocks are free at once. One that is not there is left.
   */
  remove(sequence: Sequence): void {
    this.seal(sequence);
    const isOther = (other: Sequence): boolean => other !== sequence;
    this.running = this.running.filter(isOther);
    this.waiting = this.waiting.filter(isOther);
    this.giveBack(sequence);
  }

  /**
   * The tokens of the next step, at most one slice of a sequence; none where nothing is left but
   * what is under way. The token that follows a step may be computed before the host knows it.
   */
  plan(): readonly Slice[] {
    this.slices = [];
    this.budget = this.limits.tokens;
    const before = this.preemptions;
    const running = [...this.running];
    for (const sequence of running) if (sequence.pending === 1) this.take(sequence);
    for (const sequence of running) if (sequence.pending > 1) this.take(sequence);
    if (this.preemptions === before) this.admit();
    return this.slices;
  }

  /**
   * A step with these slices is under way: later steps find what it fills, as far as the host knows
   * the tokens.
   */
  commit(slices: readonly Slice[]): void {
    for (const { sequence, count } of slices) {
      if (sequence.blocks.length === 0) continue;
      sequence.computed += count;
      this.seal(sequence);
    }
  }

  /** Others may find its full blocks. */
  private seal(sequence: Sequence): void {
    const { blockSize, sharesPrefixes } = this.limits;
    if (!sharesPrefixes) return;
    const known = Math.min(sequence.computed, sequence.tokens.length);
    for (; (sequence.sealed + 1) * blockSize <= known; ++sequence.sealed) {
      const block = sequence.blocks[sequence.sealed] as number;
      this.pool.seal(block, sequence.keyOf(sequence.sealed, blockSize));
    }
  }

  /** What it has counted so far. */
  counts(): ScheduleCounts {
    const { blocks } = this.limits;
    return {
      running: this.running.length,
      waiting: this.waiting.length,
      blocksUsed: blocks - this.pool.free,
      blocks,
      prefixQueries: this.prefixQueries,
      prefixHits: this.prefixHits,
      preemptions: this.preemptions,
    };
  }

  private blocksFor(tokens: number): number {
    return Math.ceil(tokens / this.limits.blockSize);
  }

  /** A slice of a running sequence, unless the budget is spent or it has lost its blocks. */
  private take(sequence: Sequence): void {
    const count = Math.min(sequence.pending, this.budget);
    if (count === 0 || sequence.blocks.length === 0 || sequence.isFull) return;
    const needed = this.blocksFor(sequence.computed + count) - sequence.blocks.length;
    while (this.pool.free < needed) {
      const newest = this.running.reduce((a, b) => (a.order > b.order ? a : b));
      this.preempt(newest);
      if (newest === sequence) return;
    }
    for (let i = 0; i < needed; ++i) sequence.blocks.push(this.pool.take());
    this.slices.push({ sequence, first: sequence.computed, count });
    this.budget -= count;
  }

  /** It waits again, before all that came after it. */
  private preempt(sequence: Sequence): void {
    const slice = this.slices.find((taken) => taken.sequence === sequence);
    if (slice) this.budget += slice.count;
    this.slices = this.slices.filter((taken) => taken !== slice);
    this.running = this.running.filter((other) => other !== sequence);
    this.waiting.unshift(sequence);
    this.giveBack(sequence);
    this.preemptions++;
  }

  private giveBack(sequence: Sequence): void {
    this.pool.release(sequence.blocks);
    sequence.blocks = [];
    sequence.computed = 0;
    sequence.sealed = 0;
  }

  /** Takes in waiting sequences, oldest first, each with blocks for all that it has to compute. */
  private admit(): void {
    while (this.budget > 0 && this.running.length < this.limits.sequences) {
      const [sequence] = this.waiting;
      // One that gave way with a token under way is admitted when all of it is known.
      if (!sequence || sequence.isAhead) return;
      const shared = this.sharedBlocks(sequence);
      const fresh = this.blocksFor(sequence.tokens.length) - shared.length;
      const revived = shared.filter((block) => this.pool.usersOf(block) === 0).length;
      // Each running sequence is left a block to grow into, lest it take this one's back at once.
      if (fresh + revived + this.running.length > this.pool.free) return;
      this.waiting.shift();
      for (const block of shared) this.pool.share(block);
      for (let i = 0; i < fresh; ++i) sequence.blocks.push(this.pool.take());
      sequence.blocks.unshift(...shared);
      this.start(sequence, shared.length * this.limits.blockSize);
    }
  }

  private start(sequence: Sequence, cached: number): void {
    this.prefixQueries += this.limits.sharesPrefixes ? sequence.tokens.length : 0;
    this.prefixHits += cached;
    sequence.cached ??= cached;
    sequence.computed = cached;
    sequence.sealed = cached / this.limits.blockSize;
    this.running.push(sequence);
    this.take(sequence);
  }

  /** The full blocks of its beginning that are there; never that of its last token. */
  private sharedBlocks(sequence: Sequence): number[] {
    const shared: number[] = [];
    if (!this.limits.sharesPrefixes) return shared;
    const most = Math.floor((sequence.tokens.length - 1) / this.limits.blockSize);
    while (shared.length < most) {
      const block = this.pool.find(sequence.keyOf(shared.length, this.limits.blockSize));
      if (block === null) break;
      shared.push(block);
    }
    return shared;
  }
}
