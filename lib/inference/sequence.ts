// A growing sequence: its tokens, and the number of tokens in the cache.
import { required } from '../runtime/required.js';
import { blockKey, rootKey } from './block-pool.js';

/** Client and urgency of a sequence, for the scheduling policy. */
export interface SequenceTurn {
  /** Clients take turns. */
  readonly client: string;
  /** Lower is earlier. */
  readonly priority: number;
}

/**
 * A client with sequences in progress, or without sequences but with a time ahead of the others.
 */
export interface ScheduledClient {
  /** Order of appearance, for equal times. */
  readonly id: number;
  /**
   * Virtual time in tokens: the lowest time of the present clients when it came, and the tokens
   * computed for it since.
   */
  time: number;
  running: number;
  waiting: number;
}

/** State of a sequence in the scheduling policy. */
export interface QueuePosition {
  readonly client: ScheduledClient;
  /** Lower is earlier. */
  readonly urgency: number;
  isRunning: boolean;
  /** Step at which it entered the queue. */
  since: number;
  /** True once it has waited too long. It then stays the most urgent one of its client. */
  isOverdue: boolean;
  /** Tokens before this index are charged: a client does not pay twice after a preemption. */
  charged: number;
}

/** A sequence to continue. Only the scheduler allocates its blocks. */
export class Sequence implements SequenceTurn {
  /** The prompt and the sampled tokens that the host has received. */
  readonly tokens: number[];
  /** Number of tokens of the prompt. */
  readonly promptLength: number;
  readonly client: string;
  readonly priority: number;
  /** Tokens with keys and values in the cache, including steps in flight. */
  computed = 0;
  /** The block table, in token order. */
  blocks: number[] = [];
  /** The slot of its recurrent states; -1: none. */
  state = -1;
  /** Number of leading blocks that other sequences can find. */
  sealed = 0;
  /** Prompt tokens found in the prefix cache on the first admission; null before. */
  cached: number | null = null;
  /** Order of arrival. */
  order = -1;
  /** Only the policy reads and writes it; null before submit() and after remove(). */
  queuePosition: QueuePosition | null = null;
  /**
   * Tokens that may follow `tokens`. The next step verifies them; learn() appends the accepted
   * tokens.
   */
  proposals: readonly number[] = [];
  /** Row of its newest token in the last step's samples, while only the device has it; else -1. */
  private row = -1;
  /** Sampled tokens that only the device has: at most one per step in flight, so at most 2. */
  private ahead = 0;
  private readonly keys: string[] = [];

  constructor(
    prompt: readonly number[],
    /** Maximum number of tokens, including the prompt. */
    readonly limit: number,
    /** Only sequences with equal salts share cached blocks. */
    private readonly salt = '',
    /** Slot of the adapter of its tokens; -1: none. */
    readonly adapter = -1,
    { client = '', priority = 0 }: Partial<SequenceTurn> = {},
  ) {
    this.client = client;
    this.priority = priority;
    this.tokens = [...prompt];
    this.promptLength = prompt.length;
  }

  /** Number of tokens, including tokens that only the device has. */
  get length(): number {
    return this.tokens.length + this.ahead;
  }

  /** Tokens not yet computed. */
  get pending(): number {
    return this.length - this.computed;
  }

  /** True if the host has not received the last token yet. */
  get isAhead(): boolean {
    return this.ahead > 0;
  }

  /** True if the token in flight is the last one by the length limit. */
  get isFull(): boolean {
    return this.isAhead && this.length >= this.limit;
  }

  /** Records that a step samples its next token in row `row`. */
  expect(row: number): void {
    this.row = row;
    this.ahead++;
  }

  /**
   * Appends a token that the host has received. A newer token may still be in flight. If the token
   * differs from the proposal at its position, the cache has keys and values of other tokens from
   * that position on.
   */
  learn(token: number): void {
    const [proposed, ...others] = this.proposals;
    const isAccepted = proposed === undefined || proposed === token;
    if (!isAccepted) this.computed = Math.min(this.computed, this.tokens.length);
    this.proposals = isAccepted ? others : [];
    this.tokens.push(token);
    this.forget();
  }

  /** Drops the oldest token in flight, if any. */
  forget(): void {
    this.ahead = Math.max(0, this.ahead - 1);
    if (this.ahead === 0) this.row = -1;
  }

  /** Number of tokens, including proposals. */
  get extent(): number {
    return this.length + this.proposals.length;
  }

  /** Token `index` as input of FeedTokens: a negative value refers to a sample of the last step. */
  inputToken(index: number): number {
    const { tokens, proposals } = this;
    return tokens[index] ?? proposals[index - tokens.length] ?? -1 - this.row;
  }

  /** Returns the key of its full block `index`; `size` is the number of tokens in a block. */
  keyOf(index: number, size: number): string {
    for (let i = this.keys.length; i <= index; ++i) {
      const parent = this.keys[i - 1] ?? rootKey(this.salt);
      this.keys.push(blockKey(parent, this.tokens.slice(i * size, (i + 1) * size)));
    }
    return required(this.keys[index]);
  }
}
