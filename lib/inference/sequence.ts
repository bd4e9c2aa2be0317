// One text that grows: its tokens, how many of them are in the cache, and in which blocks.
import { blockKey, rootKey } from './block-pool.js';

/** Made for each text that is to be continued; the scheduler alone gives it blocks. */
export class Sequence {
  /** The prompt, and what has been sampled. */
  readonly tokens: number[];
  /** Tokens of the prompt. */
  readonly promptLength: number;
  /** Tokens whose keys and values are in the cache. */
  computed = 0;
  /** Where they lie, in the order of the text. */
  blocks: number[] = [];
  /** Tokens of the prompt that were found in the cache when it was first admitted; null before. */
  cached: number | null = null;
  /** Place in the order of arrival. */
  order = -1;
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

  /** Tokens that have not been computed. */
  get pending(): number {
    return this.tokens.length - this.computed;
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
