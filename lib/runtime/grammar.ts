// Vocabularies, grammars and matchers of the addon: which tokens may follow a text.
import { addon } from './addon.js';
import type { Buffer } from './buffer.js';
import { finalizers } from './finalizers.js';
import { awaitNative, native } from './native.js';

/** An object of the addon. It is released by dispose(), or when it is garbage-collected. */
class Handled {
  private static readonly lost = finalizers<() => void>((release) => release());

  protected constructor(
    private number: number,
    private readonly free: (handle: number) => void,
  ) {
    Handled.lost.register(this, () => free(number), this);
  }

  /** Native handle; 0 after dispose(). */
  get handle(): number {
    return this.number;
  }

  /** Frees the native object. A second call does nothing. */
  dispose(): void {
    if (this.number === 0) return;
    Handled.lost.unregister(this);
    const { number } = this;
    this.number = 0;
    native(() => this.free(number));
  }
}

/** The bytes of all tokens, as a trie. */
export class TokenTrie extends Handled {
  private constructor(
    handle: number,
    /** Number of tokens. */
    readonly size: number,
  ) {
    super(handle, (number) => addon.releaseVocabulary(number));
  }

  /**
   * Builds the trie on a native thread. Tokens without bytes are never allowed. Rejects with
   * DS_ARGUMENT.
   */
  static async build(tokens: readonly Uint8Array[]): Promise<TokenTrie> {
    const offsets = new Int32Array(tokens.length + 1);
    let end = 0;
    for (const [i, { length }] of tokens.entries()) {
      end += length;
      offsets[i + 1] = end;
    }
    const bytes = new Uint8Array(end);
    for (const [i, token] of tokens.entries()) bytes.set(token, offsets[i]);
    const handle = await awaitNative(() => addon.createVocabulary(bytes, offsets));
    return new TokenTrie(handle, tokens.length);
  }

  /** 32-bit words of a mask. */
  get words(): number {
    return Math.ceil(this.size / 32);
  }
}

/** A compiled grammar over the tokens of a trie. */
export class NativeGrammar extends Handled {
  private constructor(
    handle: number,
    readonly trie: TokenTrie,
  ) {
    super(handle, (number) => addon.releaseGrammar(number));
  }

  /**
   * Compiles a description (csrc/grammar/program.h) on a native thread. Rejects with DS_ARGUMENT if
   * no text matches, with DS_LIMIT beyond a limit of csrc/grammar/limits.h.
   */
  static async build(trie: TokenTrie, words: Int32Array): Promise<NativeGrammar> {
    const handle = await awaitNative(() => addon.createGrammar(trie.handle, words));
    return new NativeGrammar(handle, trie);
  }

  /** Bytes of its cached states and masks. The caches grow with use. */
  get bytes(): number {
    return native(() => addon.grammarBytes(this.handle));
  }
}

/** Compares one text with a grammar, token by token. It keeps its grammar alive. */
export class Matcher extends Handled {
  /** `ends` are the end tokens: allowed when the text matches the grammar as a whole. */
  constructor(
    readonly grammar: NativeGrammar,
    ends: Iterable<number>,
  ) {
    super(
      native(() => addon.createMatcher(grammar.handle, Int32Array.from(ends))),
      (number) => addon.releaseMatcher(number),
    );
  }

  /** Appends a token. Returns false, without an effect, if the grammar does not allow it. */
  accept(token: number): boolean {
    return native(() => addon.acceptToken(this.handle, token));
  }

  /** Removes the last `count` tokens. Throws DS_ARGUMENT if there are fewer. */
  rollback(count: number): void {
    native(() => addon.rollbackTokens(this.handle, count));
  }

  /** Whether the text matches the grammar as a whole. */
  get isComplete(): boolean {
    return native(() => addon.matcherComplete(this.handle));
  }

  /** Whether only an end token may follow. */
  get isDone(): boolean {
    return native(() => addon.matcherDone(this.handle));
  }

  /**
   * Fills the mask of the next token on this thread: bit t % 32 of word t / 32 is 1 if token t may
   * follow. Throws DS_ARGUMENT for another number of words, DS_LIMIT beyond a limit of
   * csrc/grammar/limits.h.
   */
  fill(words: Int32Array): void {
    native(() => addon.fillMask(this.handle, words));
  }

  /** Returns the text at the start of every valid continuation; often "". */
  forced(): string {
    return native(() => addon.forcedText(this.handle));
  }
}

/** A matcher, and the row of its mask in a table of masks. */
export interface MaskRow {
  readonly matcher: Matcher;
  readonly row: number;
}

/**
 * Fills rows of `target`, masks [rows, words] in host memory, on the threads of the process. The
 * matchers must not change before the promise settles. Rejects with DS_LIMIT.
 */
export async function fillMasks(rows: readonly MaskRow[], target: Buffer): Promise<void> {
  const positions = new Float64Array(2 * rows.length);
  for (const [i, { matcher, row }] of rows.entries()) {
    positions[2 * i] = matcher.handle;
    positions[2 * i + 1] = row * matcher.grammar.trie.words * 4;
  }
  await awaitNative(() => addon.fillMasks(positions, target.handle));
}
