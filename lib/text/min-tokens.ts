// Computes a lower bound of a text's number of tokens without encoding: its bytes divided by the
// bytes of the longest token.
import { listSteps } from './tokenizer-folder.js';
import type { AddedToken } from './tokenizers/added-tokens.js';
import { BYTE_LETTERS } from './tokenizers/characters.js';

type Json = Record<string, unknown>;

/** The parts of a tokenizer that determine the bound. */
interface TokenizerParts {
  /** The content of tokenizer.json. */
  readonly tokenizer: Json;
  /** The content of tokenizer_config.json. */
  readonly config: Json;
  readonly vocab: readonly (string | undefined)[];
  readonly added: readonly AddedToken[];
}

/**
 * Maximum number of characters that canonical composition merges into one. Source: UAX 15, U+1F82.
 */
const MAX_COMPOSED = 4;

/**
 * Returns a function that computes the bound; null for a tokenizer that may drop parts of a text.
 * Tokenizers over all bytes (GPT-2, Llama 3, Qwen) keep every byte.
 */
export function fewestTokens(parts: TokenizerParts): ((text: string) => number) | null {
  const { tokenizer, config, vocab, added } = parts;
  const forms = listSteps(tokenizer.normalizer).map(({ type }) => type);
  const keepsAll =
    isByteModel((tokenizer.model ?? {}) as Json, new Set(vocab)) &&
    keepsBytes(listSteps(tokenizer.pre_tokenizer)) &&
    forms.every((type) => type === 'NFC') &&
    tokenizer.truncation == null &&
    !config.remove_space &&
    !config.do_lowercase_and_remove_accent &&
    added.every(({ lstrip, rstrip }) => !lstrip && !rstrip);
  if (!keepsAll) return null;
  const lengths = vocab.map((token) => token?.length ?? 0);
  const contents = added.map(({ content }) => Buffer.byteLength(content));
  const longest = [...lengths, ...contents].reduce((max, length) => Math.max(max, length), 1);
  const bytesOf = forms.length > 0 ? composedBytes : Buffer.byteLength;
  return (text) => Math.ceil(bytesOf(text) / longest);
}

/** Returns whether the model is byte-pair encoding with a token for each byte. */
function isByteModel(model: Json, vocab: ReadonlySet<string | undefined>): boolean {
  const { type, unk_token: unknown, dropout } = model;
  const affixes = [model.continuing_subword_prefix, model.end_of_word_suffix];
  const isPlain = affixes.every((affix) => affix == null || affix === '');
  const isWhole = type === 'BPE' && unknown == null && !dropout && isPlain;
  return isWhole && BYTE_LETTERS.every((letter) => vocab.has(letter));
}

function keepsBytes(steps: readonly Json[]): boolean {
  const isKept = ({ type, behavior, invert }: Json): boolean =>
    type === 'ByteLevel' || (type === 'Split' && behavior === 'Isolated' && !invert);
  return steps.some(({ type }) => type === 'ByteLevel') && steps.every(isKept);
}

/**
 * Returns a lower bound of a text's bytes after composition (NFC): an ASCII character stays unless
 * a non-ASCII character follows it.
 */
function composedBytes(text: string): number {
  let [keptBytes, others] = [0, 0];
  for (let i = 0; i < text.length; ++i) {
    const isAscii = text.charCodeAt(i) < 0x80;
    const next = text.charCodeAt(i + 1); // NaN after the last one.
    if (isAscii && !(next >= 0x80)) keptBytes++;
    else if (!(text.charCodeAt(i) >= 0xdc00 && text.charCodeAt(i) < 0xe000)) others++;
  }
  return keptBytes + Math.floor(others / MAX_COMPOSED);
}
