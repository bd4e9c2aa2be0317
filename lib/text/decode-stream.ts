// Decodes tokens to text one by one, without cutting characters.

/** Options of decoding. */
export interface DecodeOptions {
  /** Leaves special tokens out. Default: false. */
  skipSpecialTokens?: boolean;
}

/** Options of decoding in a stream. */
export interface DecodeStreamOptions extends DecodeOptions {
  /**
   * Tokens of a text that the stream continues, such as a prompt. Tokenizers that drop a space at
   * the start of a text then keep it. Default: none.
   */
  after?: ArrayLike<number>;
  /** Special tokens that appear in the text even if `skipSpecialTokens` is set. Default: none. */
  visible?: readonly number[];
}

/** An incomplete character decodes to at most three of these, one per byte. */
export const REPLACEMENT = '\uFFFD';
const MAX_CUT = 3;
/**
 * Maximum tokens of invalid bytes in a row; after them, the stream returns replacement characters.
 */
const MAX_INVALID = 64;

/**
 * Decodes generated tokens: push() returns complete characters, end() the remaining text. The
 * joined texts equal the decoding of all tokens, except that only the stream keeps the valid bytes
 * in a run of invalid UTF-8. Up to three U+FFFD are delayed. Source: the sliding window of
 * text-generation-inference.
 */
export class DecodeStream {
  /** Tokens that are decoded together with the next token. */
  private window: number[] = [];
  /** Characters of the window's text that were returned already. */
  private returned = 0;

  /** `before`: the last tokens of a text that the stream continues. */
  constructor(
    private readonly decode: (ids: number[]) => string,
    before: readonly number[] = [],
  ) {
    if (before.length === 0) return;
    const text = decode([...before]);
    if (unfinishedLength(text) > 0) return; // Later tokens may complete its last character.
    this.window = [...before];
    this.returned = text.length;
  }

  /**
   * Takes one or more tokens and returns complete characters. Throws DS_INDEX for an invalid token
   * id.
   */
  push(ids: number | ArrayLike<number>): string {
    const more = typeof ids === 'number' ? [ids] : Array.from(ids);
    const text = this.decode([...this.window, ...more]);
    this.window.push(...more);
    const isStuck = this.window.length > MAX_INVALID + more.length;
    const end = isStuck ? text.length : text.length - unfinishedLength(text);
    const fresh = text.slice(this.returned, Math.max(end, this.returned));
    this.returned = Math.max(end, this.returned);
    // The last tokens stay as context, although their text was returned: a decoder may treat the
    // start of a text differently.
    if (end === text.length && fresh !== '') {
      this.window = more;
      this.returned = this.decode(more).length;
    }
    return fresh;
  }

  /** Returns the remaining text, with U+FFFD for an incomplete character, and resets the stream. */
  end(): string {
    const rest = this.decode(this.window).slice(this.returned);
    this.window = [];
    this.returned = 0;
    return rest;
  }
}

/** Returns the number of characters at the end that later tokens may change. */
function unfinishedLength(text: string): number {
  let count = 0;
  while (count < MAX_CUT && text[text.length - 1 - count] === REPLACEMENT) count++;
  return count;
}
