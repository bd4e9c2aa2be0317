// Text from tokens as they come, which never cuts a character.

/** How tokens become text. */
export interface DecodeOptions {
  /** Leaves special tokens out. Default false. */
  skipSpecialTokens?: boolean;
}

/** How tokens become text as they come. */
export interface DecodeStreamOptions extends DecodeOptions {
  /**
   * Tokens of a text that the stream continues, as a prompt is: a space that a tokenizer leaves out
   * at the beginning of a text stays. Default: none.
   */
  after?: ArrayLike<number>;
  /** Special tokens that the text shows although `skipSpecialTokens` is set. Default: none. */
  visible?: readonly number[];
}

/** A cut character decodes to at most three of these, one for each byte. */
export const REPLACEMENT = '\uFFFD';
const MAX_CUT = 3;
/** Tokens after which a stream of nothing but invalid bytes is given up for text. */
const PATIENCE = 64;

/**
 * Text of tokens as they are generated: push() returns complete characters, end() the rest. The
 * returned texts, joined, are the decoding of all tokens. If a run of bytes is not UTF-8, only the
 * stream keeps its valid bytes. Up to three U+FFFD come late. Source: the sliding window of
 * text-generation-inference.
 */
export class DecodeStream {
  /** Tokens that the next text is decoded with. */
  private window: number[] = [];
  /** Characters of the window's text that have been returned. */
  private returned = 0;

  /** `before`: the last tokens of an existing text, which the stream continues. */
  constructor(
    private readonly decode: (ids: number[]) => string,
    before: readonly number[] = [],
  ) {
    if (before.length === 0) return;
    const text = decode([...before]);
    if (cutAtEnd(text) > 0) return; // Later tokens may change its last character.
    this.window = [...before];
    this.returned = text.length;
  }

  /** Takes one token or several. Throws DS_INDEX for a number that is no token. */
  push(ids: number | ArrayLike<number>): string {
    const more = typeof ids === 'number' ? [ids] : Array.from(ids);
    const text = this.decode([...this.window, ...more]);
    this.window.push(...more);
    const isStuck = this.window.length > PATIENCE + more.length;
    const end = isStuck ? text.length : text.length - cutAtEnd(text);
    const fresh = text.slice(this.returned, Math.max(end, this.returned));
    this.returned = Math.max(end, this.returned);
    // Tokens that gave text are the context of the next ones: a decoder may treat a text's
    // beginning otherwise.
    if (end === text.length && fresh !== '') {
      this.window = more;
      this.returned = this.decode(more).length;
    }
    return fresh;
  }

  /** Returns the rest, with U+FFFD for an incomplete character, and resets the stream. */
  end(): string {
    const rest = this.decode(this.window).slice(this.returned);
    this.window = [];
    this.returned = 0;
    return rest;
  }
}

/** Characters at the end that may yet become another one. */
function cutAtEnd(text: string): number {
  let count = 0;
  while (count < MAX_CUT && text[text.length - 1 - count] === REPLACEMENT) count++;
  return count;
}
