// Prompt lookup: proposes the text that followed an earlier occurrence of the last tokens.
import { required } from '../../runtime/required.js';

/** Maximum number of candidates that a lookup compares; bounds the time for repetitive texts. */
const MAX_CANDIDATES = 64;

/** Minimum and maximum n of the matched n-grams. */
export interface LookupSizes {
  readonly min: number;
  readonly max: number;
}

/**
 * An index of the n-grams of one growing sequence. Ends of equal n-grams of `min` tokens form a
 * list, the latest end first. Sources: Saxena 2023 (prompt lookup decoding); LZ77 for the lists.
 */
export class PromptLookup {
  /** The latest end (index after the last token) of each n-gram, by its hash. */
  private readonly latest = new Map<number, number>();
  /** For each end, the end before it with the same hash; 0 without one. */
  private readonly earlier: number[];
  private indexed: number;
  /** End of the last match, and the length of the text then. */
  private last = { end: 0, length: 0 };

  constructor(
    private readonly tokens: readonly number[],
    private readonly sizes: LookupSizes,
  ) {
    this.indexed = sizes.min - 1;
    this.earlier = new Array<number>(sizes.min).fill(0);
  }

  /**
   * Returns up to `max` tokens that may follow. It takes the longest match of the last tokens, and
   * the latest of equal matches. Without a match it resumes the last match, so that one replaced
   * token does not end a copy. If the continuation reaches the end of the text, it repeats.
   */
  propose(max: number): number[] {
    const { tokens } = this;
    const end = max > 0 ? this.findMatch() : 0;
    if (end > 0) this.last = { end: end, length: tokens.length };
    const from = max > 0 ? end || this.resumedEnd() : 0;
    if (from === 0) return [];
    const proposals: number[] = [];
    for (let i = from; proposals.length < max; ++i) {
      proposals.push(tokens[i] ?? required(proposals[i - tokens.length]));
    }
    return proposals;
  }

  /**
   * Returns the index in the earlier text that corresponds to the end of the tokens, so that a copy
   * continues after a replaced token. The last match must have predicted a token, and at most `min`
   * tokens may follow the last predicted one. Returns 0 otherwise.
   */
  private resumedEnd(): number {
    const { tokens, last } = this;
    const since = tokens.length - last.length;
    let right = 0;
    while (right < since && tokens[last.end + right] === tokens[last.length + right]) right++;
    const at = last.end + since;
    return right > 0 && since - right <= this.sizes.min && at < tokens.length ? at : 0;
  }

  /** Returns the end of the best match before the end of the text; 0 without one. */
  private findMatch(): number {
    const { tokens } = this;
    const { min, max } = this.sizes;
    if (tokens.length <= min) return 0;
    this.addNgrams();
    let [best, longest] = [0, min - 1];
    let end = this.latest.get(this.hashAt(tokens.length)) ?? 0;
    for (let i = 0; end > 0 && i < MAX_CANDIDATES; ++i, end = required(this.earlier[end])) {
      const length = this.commonBefore(end, max);
      if (length > longest) [best, longest] = [end, length];
      if (longest === max) break;
    }
    return best;
  }

  /** Adds all n-grams before the last token. */
  private addNgrams(): void {
    while (this.indexed < this.tokens.length - 1) {
      const end = ++this.indexed;
      const hash = this.hashAt(end);
      this.earlier[end] = this.latest.get(hash) ?? 0;
      this.latest.set(hash, end);
    }
  }

  private hashAt(end: number): number {
    let hash = 0;
    for (let i = end - this.sizes.min; i < end; ++i) {
      hash = (Math.imul(hash, 0x01000193) + required(this.tokens[i])) | 0;
    }
    return hash;
  }

  /**
   * Returns the number of equal tokens before `end` and before the end of the text, at most `max`.
   */
  private commonBefore(end: number, max: number): number {
    const { tokens } = this;
    let length = 0;
    while (length < Math.min(max, end)) {
      if (tokens[end - 1 - length] !== tokens[tokens.length - 1 - length]) break;
      length++;
    }
    return length;
  }
}
