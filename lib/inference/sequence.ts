// One text that grows: its tokens, how many of them are in the cache, and in which blocks.
import { blockKey, rootKey } from './block-pool.js';

/** Made for each text that is to be continued; the scheduler alone gives it blocks. */
export class Sequence {
  /** The prompt, and what has been sampled, as far as the host knows it. */
  readonly tokens: number[];
  /** Tokens of the prompt. */
  readonly promptLength: number;
  /**
   * Tokens whose keys and values are in the cache, or will be when the steps under way are done.
   */
  computed = 0;
  /** Where they lie, in the order of the text. */
  blocks: number[] = [];
  /** Of `blocks`, those that others may find. */
  sealed = 0;
  /** Tokens of the prompt that were found in the cache when it was first admitted; null before. */
  cached: number | null = null;
  /** Place in the order of arrival. */
  order = -1;
  /**
   * Among the tokens that the last step has sampled, its next one, which the device alone knows.
   */
  private row = -1;
  private readonly keys: string[] = [];

  constructor(
    prompt: readonly number[],
    /** Most tokens that it may come to, the prompt's among them. */
    readonly limit: number,
    /** Keys and values are shared among sequences with one salt alone. */
    private readonly salt = '',
  ) {
    this.tokens = [...prompt];
    this.promptLength = prompt.length;
  }

  /** Tokens with the one that only the device knows. */
  get length(): number {
    return this.tokens.length + (this.row < 0 ? 0 : 1);
  }

  /** Tokens that have not been computed. */
  get pending(): number {
    return this.length - this.computed;
  }

  /** Whether the host has yet to learn a token. */
  get isAhead(): boolean {
    return this.row >= 0;
  }

  /** Whether the token under way is its last, whatever it is. */
  get isFull(): boolean {
    return this.isAhead && this.length >= this.limit;
  }

  /** A step samples its next token, as number `row` of that step. */
  expect(row: number): void {
    this.row = row;
  }

  /** The next token is known. */
  learn(token: number): void {
    this.tokens.push(token);
    this.row = -1;
  }

  /** Token `index` as FeedTokens takes it: below 0 one that the last step has sampled. */
  fed(index: number): number {
    return this.tokens[index] ?? -1 - this.row;
  }

  /** The key of its full block `index`, of `size` tokens. */
  keyOf(index: number, size: number): string {
    for (let i = this.keys.length; i <= index; ++i) {
      const parent = this.keys[i - 1] ?? rootKey(this.salt);
      this.keys.push(blockKey(parent, this.tokens.slice(i * size, (i + 1) * size)));
    }
    return this.keys[index] as string;
  }
}
