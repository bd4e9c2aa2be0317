// Compiles and caches the grammars of one engine, for the vocabulary of its tokenizer.
import { NativeGrammar, TokenTrie } from '../../runtime/grammar.js';
import { argumentError } from '../../runtime/input-errors.js';
import type { Tokenizer } from '../../text/index.js';
import { compileFormat } from './compile.js';
import type { ReadFormat } from './format.js';

/** Maximum number of cached grammars, and the bytes of states at which a grammar is rebuilt. */
const [MAX_GRAMMARS, MAX_BYTES] = [64, 2 ** 26];

export class Grammars {
  /** Token tries, by their visible special tokens. */
  private readonly tries = new Map<string, Promise<TokenTrie>>();
  /** The least recently used grammar comes first. */
  private readonly grammars = new Map<string, Promise<NativeGrammar>>();

  constructor(
    private readonly tokenizer: Tokenizer | null,
    private readonly vocabSize: number,
  ) {}

  /**
   * Returns the grammar of a format. `visible` are special tokens that may stand for their text,
   * such as tags. Rejects with DS_ARGUMENT for a format that is invalid, not expressible or matches
   * no text, and with DS_LIMIT.
   */
  async compile(format: ReadFormat, visible: readonly number[] = []): Promise<NativeGrammar> {
    const { tokenizer } = this;
    if (!tokenizer) {
      const hint = 'initInference() has the option `tokenizer`.';
      throw argumentError(
        'InferenceEngine request format',
        'an engine with a tokenizer',
        'an engine without one',
        hint,
      );
    }
    const { key: formatKey, words } = await compileFormat(format);
    const tokens = format.source.kind === 'answer' ? visible.join(' ') : '';
    const key = `${tokens} ${formatKey}`;
    const cached = await this.grammars.get(key);
    if (cached && cached.bytes < MAX_BYTES) {
      this.keep(key, Promise.resolve(cached));
      return cached;
    }
    const cachedTrie = this.tries.get(tokens);
    const trie = cachedTrie ?? buildTrie(tokenizer, this.vocabSize, tokens === '' ? [] : visible);
    this.tries.set(tokens, trie);
    const built = trie.then((trie) => NativeGrammar.build(trie, words));
    this.keep(key, built);
    built.catch(() => this.grammars.delete(key));
    return built;
  }

  private keep(key: string, grammar: Promise<NativeGrammar>): void {
    this.grammars.delete(key);
    this.grammars.set(key, grammar);
    const [oldest] = this.grammars.keys();
    if (this.grammars.size > MAX_GRAMMARS && oldest !== undefined) this.grammars.delete(oldest);
  }
}

const NO_TEXT = new Uint8Array(0);

/**
 * Builds the trie of a vocabulary. Special tokens and unused ids have no bytes, so no grammar
 * allows them. `visible` special tokens have the bytes of their text.
 */
function buildTrie(
  tokenizer: Tokenizer,
  vocabSize: number,
  visible: readonly number[],
): Promise<TokenTrie> {
  const isShown = (id: number): boolean => !tokenizer.specialIds.has(id) || visible.includes(id);
  const bytesOf = (id: number): Uint8Array =>
    tokenizer.hasToken(id) && isShown(id) ? tokenizer.tokenBytes(id) : NO_TEXT;
  return TokenTrie.build(Array.from({ length: vocabSize }, (_, id) => bytesOf(id)));
}
