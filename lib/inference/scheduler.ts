// Continuous batching: selects the tokens of the next step within a token budget, and allocates
// blocks.

import { DsError } from '../errors.js';
import { required } from '../runtime/required.js';
import { BlockPool } from './block-pool.js';
import type { HostBlocks } from './host-blocks.js';
import { type PolicySettings, SchedulePolicy } from './schedule-policy.js';
import type { Sequence } from './sequence.js';

/** Limits of a step and of the cache. */
export interface SchedulerLimits {
  /** Maximum number of tokens of a step. */
  tokens: number;
  /** Maximum number of running sequences. */
  sequences: number;
  /** Blocks of the cache. */
  blocks: number;
  /** Tokens in a block. */
  blockSize: number;
  /** Enables prefix caching. */
  sharesPrefixes: boolean;
  /** Blocks of host memory for evicted prefixes. Default: 0. */
  hostBlocks?: number;
  /** Turns of clients and requests. Default: DEFAULT_POLICY of schedule-policy.ts. */
  policy?: PolicySettings;
}

/** Consecutive tokens of one sequence that a step computes. */
export interface Slice {
  readonly sequence: Sequence;
  /** Index of the first token in the sequence. */
  readonly first: number;
  /** Number of tokens. */
  readonly count: number;
}

/** Counters of the scheduler. */
export interface ScheduleCounts {
  /** Sequences with blocks. */
  running: number;
  /** Sequences in the queue. */
  waiting: number;
  /** Blocks in use. */
  blocksUsed: number;
  /** Blocks of the cache. */
  blocks: number;
  /** Tokens looked up in the prefix cache on admission. */
  prefixQueries: number;
  /** Tokens found in the prefix cache. */
  prefixHits: number;
  /** Found tokens that were loaded from host memory. */
  hostHits: number;
  /** Preempted sequences. They lose their blocks and are recomputed later. */
  preemptions: number;
}

/**
 * Schedules sequences in the order of the policy. A step takes tokens until its budget is spent:
 *
 *   1. running sequences with one pending token (decode)
 *   2. running sequences with more pending tokens (chunked prefill), and waiting sequences while
 *      sequence slots and blocks are free
 *
 * If a running sequence finds no free block, the policy selects the sequence to preempt: the
 * scheduler frees its blocks and recomputes them later. Sources: Yu et al. 2022 (Orca); Agrawal et
 * al. 2023 (Sarathi); Kwon et al. 2023 (vLLM) for preemption by recomputation.
 */
export class Scheduler {
  private pool: BlockPool;
  private running: Sequence[] = [];
  private waiting: Sequence[] = [];
  private slices: Slice[] = [];
  /** Free slots of recurrent states; each running sequence uses one. */
  private readonly states: number[];
  private readonly policy: SchedulePolicy;
  private budget = 0;
  private arrivals = 0;
  private prefixQueries = 0;
  private prefixHits = 0;
  private hostHits = 0;
  private preemptions = 0;

  constructor(
    readonly limits: SchedulerLimits,
    /** Null: evicted blocks are lost. */
    private readonly host: HostBlocks | null = null,
  ) {
    this.pool = this.emptyPool();
    this.policy = new SchedulePolicy(limits.policy);
    this.states = Array.from({ length: limits.sequences }, (_, i) => limits.sequences - 1 - i);
  }

  /** True if no sequence is left to compute. */
  get isIdle(): boolean {
    return this.running.length + this.waiting.length === 0;
  }

  /** Drops the contents of all blocks. No sequence may be in progress. */
  forget(): void {
    this.pool = this.emptyPool();
    this.host?.clear();
  }

  private emptyPool(): BlockPool {
    return new BlockPool(this.limits.blocks, (key, block) => this.host?.save(key, block));
  }

  /** Queues a sequence. Throws DS_LIMIT if it would not fit into an empty cache. */
  submit(sequence: Sequence): void {
    const { blocks, blockSize } = this.limits;
    const neededBlocks = this.blocksFor(sequence.limit);
    if (neededBlocks > blocks) {
      throw new DsError({
        code: 'DS_LIMIT',
        op: 'InferenceEngine',
        expected: `a request that fits the cache of ${blocks} blocks of ${blockSize} tokens (${blocks * blockSize} tokens)`,
        got: `${sequence.promptLength} tokens of the prompt and ${sequence.limit - sequence.promptLength} new ones: ${neededBlocks} blocks`,
        hint: 'Shorten the prompt, lower maxNewTokens, or give the cache more blocks (kv_cache.blocks).',
      });
    }
    sequence.order = this.arrivals++;
    this.waiting.push(sequence);
    this.policy.enter(sequence);
  }

  /**
   * Removes a sequence, finished or not, and frees its blocks. Does nothing for an unknown
   * sequence.
   */
  remove(sequence: Sequence): void {
    this.seal(sequence);
    const isOther = (other: Sequence): boolean => other !== sequence;
    this.running = this.running.filter(isOther);
    this.waiting = this.waiting.filter(isOther);
    this.policy.leave(sequence);
    this.freeBlocks(sequence);
  }

  /**
   * Returns the slices of the next step, at most one per sequence. The list is empty if all pending
   * work is in flight. A slice may include one token that the host has not received yet.
   */
  plan(): readonly Slice[] {
    this.slices = [];
    this.budget = this.limits.tokens;
    this.policy.countStep();
    const before = this.preemptions;
    const { decoding } = this;
    const isShort = decoding.length > this.budget;
    for (const sequence of isShort ? this.policy.inOrder(decoding) : decoding) this.take(sequence);
    this.takePrompts(() => this.preemptions === before);
    return this.slices;
  }

  /** Continues running prompts and starts waiting sequences, in the order of their turns. */
  private takePrompts(mayAdmit: () => boolean): void {
    let open = this.running.filter(({ pending }) => pending > 1);
    const isFull = this.running.length >= this.limits.sequences;
    let isOpen = this.waiting.length > 0 && (!isFull || this.policy.isShared);
    while (this.budget > 0) {
      const running = this.policy.first(open);
      const waiting = isOpen && mayAdmit() ? this.policy.first(this.waiting) : undefined;
      const turns = [running, waiting].filter((item) => item !== undefined);
      const next = this.policy.first(turns);
      if (!next) return;
      if (next === running) {
        open = open.filter((sequence) => sequence !== next);
        this.take(next);
      } else isOpen = this.admit(next) && this.waiting.length > 0;
    }
  }

  /** Records a launched step. Its blocks become findable once the host has all their tokens. */
  commit(slices: readonly Slice[]): void {
    for (const { sequence, count } of slices) {
      if (sequence.blocks.length === 0) continue;
      sequence.computed += count;
      this.seal(sequence);
    }
  }

  /** Makes the full blocks of a sequence findable. */
  private seal(sequence: Sequence): void {
    const { blockSize, sharesPrefixes } = this.limits;
    if (!sharesPrefixes) return;
    const knownTokens = Math.min(sequence.computed, sequence.tokens.length);
    for (; (sequence.sealed + 1) * blockSize <= knownTokens; ++sequence.sealed) {
      const block = required(sequence.blocks[sequence.sealed]);
      this.pool.seal(block, sequence.keyOf(sequence.sealed, blockSize));
    }
  }

  /** Running sequences that compute one token in the next step. */
  get decoding(): readonly Sequence[] {
    return this.running.filter(({ pending }) => pending === 1);
  }

  /** Returns the current counters. */
  counts(): ScheduleCounts {
    const { blocks } = this.limits;
    return {
      running: this.running.length,
      waiting: this.waiting.length,
      blocksUsed: blocks - this.pool.free,
      blocks,
      prefixQueries: this.prefixQueries,
      prefixHits: this.prefixHits,
      hostHits: this.hostHits,
      preemptions: this.preemptions,
    };
  }

  private blocksFor(tokens: number): number {
    return Math.ceil(tokens / this.limits.blockSize);
  }

  /** Adds a slice of a running sequence. Skips it if the budget is spent or its blocks are lost. */
  private take(sequence: Sequence): void {
    let count = Math.min(sequence.pending, this.budget);
    if (count === 0 || sequence.blocks.length === 0 || sequence.isFull) return;
    const neededBlocks = this.blocksFor(sequence.computed + count) - sequence.blocks.length;
    while (this.pool.free < neededBlocks) {
      const victim = this.policy.victim(this.running);
      this.preempt(victim);
      if (victim === sequence) return;
    }
    for (let i = 0; i < neededBlocks; ++i) sequence.blocks.push(this.pool.take());
    count += this.addProposals(sequence, count);
    this.slices.push({ sequence, first: sequence.computed, count });
    this.policy.charge(sequence, sequence.computed, sequence.computed + count);
    this.budget -= count;
  }

  /**
   * Cuts the proposals of a sequence to the budget and to spare blocks, and adds blocks for them.
   * Returns their number. Each other running sequence keeps a token of the budget and a free block.
   */
  private addProposals(sequence: Sequence, count: number): number {
    if (sequence.proposals.length === 0) return 0;
    const { blockSize } = this.limits;
    const { blocks, computed } = sequence;
    const spare = Math.max(0, this.pool.free - this.running.length);
    const room = (blocks.length + spare) * blockSize - computed - count;
    const max = Math.max(0, Math.min(room, this.budget - count - this.running.length));
    const isPending = count === sequence.pending;
    sequence.proposals = isPending ? sequence.proposals.slice(0, max) : [];
    const added = sequence.proposals.length;
    const neededBlocks = this.blocksFor(computed + count + added) - blocks.length;
    for (let i = 0; i < neededBlocks; ++i) blocks.push(this.pool.take());
    return added;
  }

  /** Moves a sequence to the front of the queue and frees its blocks. */
  private preempt(sequence: Sequence): void {
    const slice = this.slices.find((taken) => taken.sequence === sequence);
    if (slice) this.budget += slice.count;
    this.slices = this.slices.filter((taken) => taken !== slice);
    this.running = this.running.filter((other) => other !== sequence);
    this.waiting.unshift(sequence);
    this.policy.stop(sequence);
    this.freeBlocks(sequence);
    this.preemptions++;
  }

  private freeBlocks(sequence: Sequence): void {
    this.pool.release(sequence.blocks);
    sequence.blocks = [];
    if (sequence.state >= 0) this.states.push(sequence.state);
    sequence.state = -1;
    sequence.computed = 0;
    sequence.sealed = 0;
    sequence.proposals = [];
  }

  /**
   * Admits a waiting sequence with blocks for all of its pending tokens. If there are too few free
   * blocks, a sequence of another client may be preempted. Returns false if the sequence has to
   * wait.
   */
  private admit(sequence: Sequence): boolean {
    // A preempted sequence with a token in flight is admitted once the host has the token.
    if (sequence.isAhead) return false;
    for (;;) {
      const shared = this.findSharedBlocks(sequence);
      if (this.hasRoom(sequence, shared)) {
        this.allocate(sequence, shared);
        return true;
      }
      const other = this.policy.victimFor(sequence, this.running);
      if (!other) return false;
      this.preempt(other);
    }
  }

  private hasRoom(sequence: Sequence, shared: readonly number[]): boolean {
    if (this.running.length >= this.limits.sequences) return false;
    const fresh = this.blocksFor(sequence.tokens.length) - shared.length;
    const revived = shared.filter((block) => this.pool.usersOf(block) === 0).length;
    // Reserve a free block per running sequence, so that this admission does not cause a
    // preemption.
    return fresh + revived + this.running.length <= this.pool.free;
  }

  private allocate(sequence: Sequence, shared: readonly number[]): void {
    this.waiting = this.waiting.filter((other) => other !== sequence);
    this.touchHost(sequence, shared.length);
    for (const block of shared) this.pool.retain(block);
    const fresh = this.blocksFor(sequence.tokens.length) - shared.length;
    for (let i = 0; i < fresh; ++i) sequence.blocks.push(this.pool.take());
    const restored = this.restore(sequence, shared.length);
    sequence.blocks.unshift(...shared);
    this.start(sequence, (shared.length + restored) * this.limits.blockSize);
  }

  /**
   * Marks the host blocks that restore() needs as recently used, so that evicted blocks do not
   * replace them.
   */
  private touchHost(sequence: Sequence, shared: number): void {
    const { host, limits } = this;
    if (!host || !limits.sharesPrefixes) return;
    const max = Math.floor((sequence.tokens.length - 1) / limits.blockSize);
    for (let i = shared; i < max; ++i) {
      if (!host.find(sequence.keyOf(i, limits.blockSize))) return;
    }
  }

  /**
   * Fills the first fresh blocks of a sequence from host memory, as far as its prefix is there.
   * Returns their number.
   */
  private restore(sequence: Sequence, shared: number): number {
    const { host, limits } = this;
    if (!host || !limits.sharesPrefixes) return 0;
    const { blockSize } = limits;
    const max = Math.floor((sequence.tokens.length - 1) / blockSize) - shared;
    let count = 0;
    while (count < max) {
      const key = sequence.keyOf(shared + count, blockSize);
      const block = required(sequence.blocks[count]);
      if (!host.load(key, block)) break;
      this.pool.seal(block, key);
      count++;
    }
    this.hostHits += count * blockSize;
    return count;
  }

  private start(sequence: Sequence, cached: number): void {
    this.prefixQueries += this.limits.sharesPrefixes ? sequence.tokens.length : 0;
    this.prefixHits += cached;
    sequence.cached ??= cached;
    sequence.computed = cached;
    sequence.state = required(this.states.pop());
    sequence.sealed = cached / this.limits.blockSize;
    this.running.push(sequence);
    this.policy.start(sequence);
    this.take(sequence);
  }

  /** Returns the cached full blocks of its prefix, without the block of its last token. */
  private findSharedBlocks(sequence: Sequence): number[] {
    const shared: number[] = [];
    if (!this.limits.sharesPrefixes) return shared;
    const max = Math.floor((sequence.tokens.length - 1) / this.limits.blockSize);
    while (shared.length < max) {
      const block = this.pool.find(sequence.keyOf(shared.length, this.limits.blockSize));
      if (block === null) break;
      shared.push(block);
    }
    return shared;
  }
}
