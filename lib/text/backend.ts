// The libraries behind this room, typed by what is used of them: their own types are written for ES
// modules.
import { TextDecoder } from 'node:util';

import { computable, prefixing } from './computable.js';
import { COMPARISONS, callComparisons } from './template-compare.js';
import { callPrints, PRINTS } from './template-print.js';
import { callStrips, STRIPS } from './template-strips.js';

export interface AddedToken {
  content: string;
  id: number;
  special: boolean;
  lstrip: boolean;
  rstrip: boolean;
}

/** `Tokenizer` of @huggingface/tokenizers, which computes what the Rust crate does. */
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
  /** Pieces of words; those that no token spells are unknown. */
  encode(words: string[]): string[];
  /** Whether unknown pieces that follow each other are one. */
  readonly fuse_unk: boolean;
  /** encode(), and what is unknown in it fused. */
  _call(words: string[]): string[];
}

interface BackendDecoder {
  readonly config: Record<string, unknown>;
  readonly decoders?: readonly BackendDecoder[];
  text_decoder?: TextDecoder;
  decode_chain(tokens: string[]): string[];
}

/** `Template` of @huggingface/jinja. */
export interface BackendTemplate {
  render(variables: Record<string, unknown>): string;
}

/**
 * Made from the contents of tokenizer.json and tokenizer_config.json. Throws what the library
 * throws.
 */
export function backendTokenizer(tokenizer: object, config: object): BackendTokenizer {
  const { Tokenizer } = require('@huggingface/tokenizers') as {
    Tokenizer: new (tokenizer: object, config: object) => BackendTokenizer;
  };
  // What transformers tells its tokenizers in Python alone; normalizers do it here.
  const python = { remove_space: false, do_lowercase_and_remove_accent: false };
  const made = new Tokenizer(computable(tokenizer), { ...config, ...python });
  if (made.decoder) decodeAsMeant(made.decoder);
  if (made.model.fuse_unk) fuseInWords(made.model);
  const { type, byte_fallback: isByBytes } = (tokenizer as { model: Record<string, unknown> })
    .model;
  if (type === 'Unigram' && isByBytes) spellByBytes(made.model);
  return made;
}

/** Made from a template's text. Throws what the library throws. */
export function backendTemplate(text: string): BackendTemplate {
  const { Template } = require('@huggingface/jinja') as {
    Template: new (text: string) => BackendTemplate & { parsed: unknown };
  };
  const made = new Template(text);
  callStrips(made.parsed);
  callComparisons(made.parsed);
  callPrints(made.parsed);
  const own = { ...STRIPS, ...COMPARISONS, ...PRINTS };
  return { render: (variables) => made.render({ ...variables, ...own }) };
}

/** What has no token is spelled by those of its bytes; the library knows that of BPE alone. */
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

/** Unknown pieces are one within a word; the library fuses those of its neighbours as well. */
function fuseInWords(model: BackendModel): void {
  const call = model._call.bind(model);
  model._call = (words) => words.flatMap((word) => call([word]));
}

/**
 * Bytes that decode to U+FEFF are text; a TextDecoder would take them for a mark and drop them. A
 * Metaspace that puts no mark before a text takes none away, any other all of the first token's.
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
