// Wraps @huggingface/tokenizers. Its own types are written for ES modules, so this file declares
// the used part.
import { TextDecoder } from 'node:util';

import { computable, prefixing } from './computable.js';

export interface AddedToken {
  content: string;
  id: number;
  special: boolean;
  lstrip: boolean;
  rstrip: boolean;
}

/** `Tokenizer` of @huggingface/tokenizers, a port of the Rust crate. */
export interface BackendTokenizer {
  encode(text: string, options: { add_special_tokens: boolean }): { ids: number[] };
  decode(ids: number[], options: object): string;
  token_to_id(token: string): number | undefined;
  get_added_tokens_decoder(): Map<number, AddedToken>;
  readonly model: BackendModel;
  readonly decoder: BackendDecoder | null;
}

interface BackendModel {
  readonly vocab: readonly (string | undefined)[];
  readonly tokens_to_ids: ReadonlyMap<string, number>;
  /** Splits words into pieces; pieces outside the vocabulary are unknown. */
  encode(words: string[]): string[];
  /** Whether adjacent unknown pieces become one token. */
  readonly fuse_unk: boolean;
  /** encode(), then fuses unknown pieces. */
  _call(words: string[]): string[];
}

interface BackendDecoder {
  readonly config: Record<string, unknown>;
  readonly decoders?: readonly BackendDecoder[];
  text_decoder?: TextDecoder;
  decode_chain(tokens: string[]): string[];
}

/**
 * `tokenizer` and `config` are the contents of tokenizer.json and tokenizer_config.json. Errors of
 * the library pass through.
 */
export function backendTokenizer(tokenizer: object, config: object): BackendTokenizer {
  const { Tokenizer } = require('@huggingface/tokenizers') as {
    Tokenizer: new (tokenizer: object, config: object) => BackendTokenizer;
  };
  // Only the Python tokenizers of transformers read these keys; tokenizer.json has normalizers
  // instead.
  const python = { remove_space: false, do_lowercase_and_remove_accent: false };
  const made = new Tokenizer(computable(tokenizer), { ...config, ...python });
  if (made.decoder) decodeAsMeant(made.decoder);
  if (made.model.fuse_unk) fuseInWords(made.model);
  const { type, byte_fallback: isByBytes } = (tokenizer as { model: Record<string, unknown> })
    .model;
  if (type === 'Unigram' && isByBytes) spellByBytes(made.model);
  return made;
}

/** Encodes pieces outside the vocabulary by their bytes. The library does so only for BPE. */
function spellByBytes(model: BackendModel): void {
  const { tokens_to_ids: ids } = model;
  const encode = model.encode.bind(model);
  const bytesOf = (piece: string): string[] => {
    const hex = Array.from(Buffer.from(piece), (byte) => byte.toString(16).padStart(2, '0'));
    return hex.map((byte) => `<0x${byte.toUpperCase()}>`);
  };
  model.encode = (words) =>
    encode(words).flatMap((piece) => {
      const bytes = ids.has(piece) ? [] : bytesOf(piece);
      return bytes.length > 0 && bytes.every((byte) => ids.has(byte)) ? bytes : [piece];
    });
}

/** Fuses unknown pieces within a word. The library also fuses across words. */
function fuseInWords(model: BackendModel): void {
  const call = model._call.bind(model);
  model._call = (words) => words.flatMap((word) => call([word]));
}

/**
 * Keeps U+FEFF, which a TextDecoder drops as a byte order mark by default. A Metaspace with the
 * scheme "never" keeps the first token's marks as spaces; other schemes remove them.
 */
function decodeAsMeant(decoder: BackendDecoder): void {
  if (decoder.text_decoder) decoder.text_decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  for (const inner of decoder.decoders ?? []) decodeAsMeant(inner);
  if (decoder.config.type !== 'Metaspace') return;
  const { replacement: mark = '▁', prepend_scheme: scheme } = prefixing(decoder.config);
  const first = scheme === 'never' ? ' ' : '';
  decoder.decode_chain = (tokens) =>
    tokens.map((token, i) => token.replaceAll(mark as string, i === 0 ? first : ' '));
}
