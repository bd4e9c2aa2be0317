// Converts the tokenizer of a GGUF file to the files of a tokenizer's folder, and back. Source:
// llama.cpp's conversion script, and the merges that transformers derives from scores.

import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { join } from 'node:path';
import {
  type GgufHeader,
  type GgufValue,
  readGgufHeader,
  type WrittenValue,
} from '../checkpoint/index.js';
import { dataError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { required } from '../runtime/required.js';
import { errorMessage } from '../runtime/system-error.js';
import { keysOf } from '../runtime/typed-keys.js';
import { PRE_TOKENIZERS, type PreTokenizer } from './gguf-pre-tokenizers.js';
import {
  hasTokenizerFiles,
  type Json,
  readTokenizerFolder,
  TOKENIZER_FILE,
  type TokenizerFolder,
} from './tokenizer-folder.js';

/** Kinds of tokens in tokenizer.ggml.token_type. */
const KIND = { normal: 1, unknown: 2, control: 3, added: 4, unused: 5, byte: 6 };

/** tokenizer.ggml.model of a file without a tokenizer. */
const NO_TOKENIZER = 'none';

const BYTES = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false };

/** Reads the tokenizer of a GGUF file. Throws DS_DATA for a damaged or unsupported one. */
function readGgufTokenizer(path: string): TokenizerFolder {
  const { metadata } = readHeader(path);
  const from = new TokenizerMetadata(path, metadata);
  const added = listAddedTokens(from);
  const tokenizer = { version: '1.0', truncation: null, padding: null, added_tokens: added };
  const parts = from.model === 'gpt2' ? readByteLevel(from) : readSentencePiece(from);
  const role = (name: string): string | undefined => {
    const id = metadata.get(`tokenizer.ggml.${name}_token_id`);
    return typeof id === 'number' ? from.tokens[id] : undefined;
  };
  const named = { bos_token: role('bos'), eos_token: role('eos'), pad_token: role('padding') };
  const all = { ...named, unk_token: from.model === 'gpt2' ? undefined : role('unknown') };
  const roles = Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined));
  const template = metadata.get('tokenizer.chat_template');
  return {
    location: path,
    tokenizer: { ...tokenizer, ...parts, post_processor: createPostProcessor(from, roles) },
    config: { ...roles },
    roles,
    sides: { padding: 'right', truncation: 'right' },
    templates: typeof template === 'string' ? { default: template } : {},
  };
}

/**
 * Reads the tokenizer of a folder or of a GGUF file. Throws DS_DATA if it is missing, damaged or
 * not supported.
 */
export const readTokenizer = (path: string): TokenizerFolder =>
  isGgufPath(path) ? readGgufTokenizer(path) : readTokenizerFolder(path);

/**
 * Returns tokenizer.json and tokenizer_config.json for the tokenizer of a GGUF file. Throws DS_DATA
 * if the file has none, or one that is not supported.
 */
export function createTokenizerFiles(path: string): Readonly<Record<string, string>> {
  const { tokenizer, config, templates } = readGgufTokenizer(path);
  const all = { ...config, ...(templates.default && { chat_template: templates.default }) };
  const kind = { tokenizer_class: 'PreTrainedTokenizerFast' };
  return {
    [TOKENIZER_FILE]: JSON.stringify(tokenizer),
    'tokenizer_config.json': JSON.stringify({ ...all, ...kind }, null, 2),
  };
}

/** Returns the file that errors name. */
export const tokenizerLocation = (path: string): string =>
  isGgufPath(path) ? path : join(path, TOKENIZER_FILE);

/** Returns whether a tokenizer splits texts by regular expressions. */
export function hasPatterns({ tokenizer: { model: _, ...steps } }: TokenizerFolder): boolean {
  return JSON.stringify(steps).includes('"Regex":');
}

/** Returns whether a folder or a GGUF file has a tokenizer. */
export function hasTokenizer(path: string): boolean {
  if (!isGgufPath(path)) return hasTokenizerFiles(path);
  const model = readHeader(path).metadata.get('tokenizer.ggml.model') ?? NO_TOKENIZER;
  return model !== NO_TOKENIZER;
}

/** Whether a path names a GGUF file. */
export const isGgufPath = (path: string): boolean => path.endsWith('.gguf');

function readHeader(path: string): GgufHeader {
  let file: number;
  try {
    file = openSync(path, 'r');
  } catch (cause) {
    throw dataError(path, 'a readable file', errorMessage(cause));
  }
  try {
    const { size } = fstatSync(file);
    return readGgufHeader(path, size, (at, into) => {
      for (let done = 0; done < into.length; ) {
        const count = readSync(file, into, done, into.length - done, at + done);
        if (count === 0) throw dataError(path, `${into.length} bytes at ${at}`, 'its end');
        done += count;
      }
    });
  } finally {
    closeSync(file);
  }
}

/** The metadata of a file, with checked lists. */
class TokenizerMetadata {
  readonly model: string;
  readonly tokens: readonly string[];
  readonly kinds: readonly number[];

  constructor(
    readonly path: string,
    readonly metadata: GgufHeader['metadata'],
  ) {
    const model = metadata.get('tokenizer.ggml.model');
    if (model !== 'gpt2' && model !== 'llama' && model !== 'gemma4') {
      const hint = 'Pass the folder or the hub name of the original model as the tokenizer.';
      const got = model === undefined ? 'no tokenizer' : JSON.stringify(model);
      throw this.damageError(
        'model',
        '"gpt2" (BPE), "llama" or "gemma4" (SentencePiece BPE)',
        got,
        hint,
      );
    }
    this.model = model;
    this.tokens = this.list('tokens', 'string') as readonly string[];
    const kinds = metadata.has('tokenizer.ggml.token_type')
      ? (this.list('token_type', 'number') as readonly number[])
      : this.tokens.map(() => KIND.normal);
    this.kinds = kinds;
    if (kinds.length !== this.tokens.length) {
      throw this.damageError('token_type', `${this.tokens.length} numbers`, `${kinds.length}`);
    }
  }

  list(name: string, type: 'string' | 'number'): readonly GgufValue[] {
    const values = this.metadata.get(`tokenizer.ggml.${name}`);
    const isList = Array.isArray(values) && values.every((value) => typeof value === type);
    if (isList) return values as readonly GgufValue[];
    throw this.damageError(name, `a list of ${type}s`, typeof values);
  }

  flag(name: string, fallback: boolean): boolean {
    const value = this.metadata.get(`tokenizer.ggml.${name}`);
    return typeof value === 'boolean' ? value : fallback;
  }

  damageError(name: string, expected: string, got: string, hint = ''): Error {
    return dataError(`${this.path}: tokenizer.ggml.${name}`, expected, got, hint);
  }

  /** Ids of tokens that texts may have. */
  vocabulary(): Record<string, number> {
    return Object.fromEntries(this.tokens.map((token, id) => [token, id]));
  }
}

function listAddedTokens({ tokens, kinds, model }: TokenizerMetadata): Json[] {
  const isAdded = (kind: number | undefined): boolean =>
    kind === KIND.control || kind === KIND.added || (kind === KIND.unknown && model !== 'gpt2');
  return tokens.flatMap((content, id) => {
    const kind = kinds[id];
    if (!isAdded(kind)) return [];
    const plain = { single_word: false, lstrip: false, rstrip: false, normalized: false };
    return [{ id, content, ...plain, special: kind !== KIND.added }];
  });
}

function readByteLevel(from: TokenizerMetadata): Json {
  const pre = from.metadata.get('tokenizer.ggml.pre') ?? 'default';
  const preTokenizer = Object.entries(PRE_TOKENIZERS).find(
    ([name, { otherNames = [] }]) => name === pre || otherNames.includes(pre as string),
  );
  if (!preTokenizer) {
    const known = Object.entries(PRE_TOKENIZERS).flatMap(([name, { otherNames = [] }]) => [
      name,
      ...otherNames,
    ]);
    const hint = 'Pass the folder or the hub name of the original model as the tokenizer.';
    throw from.damageError('pre', known.join(', '), JSON.stringify(pre), hint);
  }
  const [, { normalizer, ignoresMerges = false }] = preTokenizer;
  const merges = readMerges(from);
  return {
    normalizer: normalizer ? { type: normalizer } : null,
    pre_tokenizer: createSteps(preTokenizer[1]),
    decoder: { ...BYTES, add_prefix_space: true, use_regex: true },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      fuse_unk: false,
      byte_fallback: false,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      ignore_merges: ignoresMerges,
      vocab: from.vocabulary(),
      merges,
    },
  };
}

/** The merges of a file, best first. */
const readMerges = (from: TokenizerMetadata): [string, string][] =>
  (from.list('merges', 'string') as readonly string[]).map((merge) => {
    const space = merge.indexOf(' ', 1);
    return [merge.slice(0, space), merge.slice(space + 1)];
  });

function createSteps({ splits, hasDigits }: PreTokenizer): Json {
  const split = (Regex: string): Json => {
    return { type: 'Split', pattern: { Regex }, behavior: 'Isolated', invert: false };
  };
  const digits = hasDigits ? [{ type: 'Digits', individual_digits: true }] : [];
  if (splits) return { type: 'Sequence', pretokenizers: [...splits.map(split), ...digits, BYTES] };
  const bytes = { ...BYTES, use_regex: true };
  return hasDigits ? { type: 'Sequence', pretokenizers: [...digits, bytes] } : bytes;
}

/**
 * Reads SentencePiece's BPE, which merges characters by Gemma 4's list or by the scores of tokens.
 * Merges of Gemma 4 do not cross the ends of lines.
 */
function readSentencePiece(from: TokenizerMetadata): Json {
  const isGemma = from.model === 'gemma4';
  const merges = isGemma
    ? readMerges(from)
    : deriveMerges(from, from.list('scores', 'number') as readonly number[]);
  const hasPrefix = from.flag('add_space_prefix', !isGemma);
  const lines = { type: 'Split', pattern: { Regex: '\\n+' }, behavior: 'Isolated', invert: false };
  const space = { type: 'Replace', pattern: { String: ' ' }, content: '\u2581' };
  const prepend = { type: 'Prepend', prepend: '\u2581' };
  const decoders = [
    { type: 'Replace', pattern: { String: '\u2581' }, content: ' ' },
    { type: 'ByteFallback' },
    { type: 'Fuse' },
    ...(hasPrefix ? [{ type: 'Strip', content: ' ', start: 1, stop: 0 }] : []),
  ];
  const unknown = from.tokens[from.kinds.indexOf(KIND.unknown)] ?? null;
  return {
    normalizer: { type: 'Sequence', normalizers: hasPrefix ? [prepend, space] : [space] },
    pre_tokenizer: isGemma ? lines : null,
    decoder: { type: 'Sequence', decoders },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: unknown,
      fuse_unk: true,
      byte_fallback: true,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      ignore_merges: false,
      vocab: from.vocabulary(),
      merges,
    },
  };
}

/** Returns all splits of a token into two tokens, tokens of high scores first. */
function deriveMerges(
  { tokens, kinds }: TokenizerMetadata,
  scores: readonly number[],
): [string, string][] {
  const ids = new Map(tokens.map((token, id) => [token, id]));
  const merges: { score: number; left: string; right: string; lengths: [number, number] }[] = [];
  for (const [id, token] of tokens.entries()) {
    if (kinds[id] !== KIND.normal && kinds[id] !== KIND.added) continue;
    const characters = [...token];
    const tokenMerges = characters.flatMap((_, cut) => {
      const left = characters.slice(0, cut).join('');
      const right = characters.slice(cut).join('');
      if (cut === 0 || !ids.has(left) || !ids.has(right)) return [];
      const lengths: [number, number] = [cut, characters.length - cut];
      return [{ score: scores[id] ?? 0, left, right, lengths }];
    });
    const idOf = (text: string): number => required(ids.get(text));
    tokenMerges.sort((a, b) => idOf(a.left) - idOf(b.left) || idOf(a.right) - idOf(b.right));
    for (const item of tokenMerges) merges.push(item);
  }
  merges.sort(
    (a, b) => b.score - a.score || b.lengths[0] - a.lengths[0] || b.lengths[1] - a.lengths[1],
  );
  return merges.map(({ left, right }) => [left, right]);
}

/** Returns the post-processor that adds tokens before and after a text, or null. */
function createPostProcessor(from: TokenizerMetadata, roles: Json): Json | null {
  const isScored = from.model !== 'gpt2';
  const pre = from.metadata.get('tokenizer.ggml.pre');
  const adds = {
    bos_token: from.flag('add_bos_token', isScored || pre === 'llama-bpe'),
    eos_token: from.flag('add_eos_token', false),
  };
  const used = keysOf(adds).filter((key) => adds[key]);
  const names = used.map((item) => roles[item]).filter((value) => typeof value === 'string');
  if (names.length === 0) return isScored ? null : { ...BYTES, use_regex: true };
  const single = [
    ...(adds.bos_token && roles.bos_token
      ? [{ SpecialToken: { id: roles.bos_token, type_id: 0 } }]
      : []),
    { Sequence: { id: 'A', type_id: 0 } },
    ...(adds.eos_token && roles.eos_token
      ? [{ SpecialToken: { id: roles.eos_token, type_id: 0 } }]
      : []),
  ];
  const special = names.map((id) => {
    return [id, { id, ids: [from.tokens.indexOf(id)], tokens: [id] }] as const;
  });
  const pair = [...single, { Sequence: { id: 'B', type_id: 1 } }];
  return { type: 'TemplateProcessing', single, pair, special_tokens: Object.fromEntries(special) };
}

/**
 * Returns the metadata for the tokenizer in a folder, and a model of `vocabSize` tokens. Null
 * stands for no tokenizer. Throws DS_DATA for a tokenizer that llama.cpp lacks.
 */
export function createTokenizerMetadata(
  folder: string | null,
  vocabSize: number,
): ReadonlyMap<string, WrittenValue> {
  if (folder === null) return new Map([['tokenizer.ggml.model', NO_TOKENIZER]]);
  const { tokenizer, roles, templates, location } = readTokenizer(folder);
  const model = tokenizer.model as Json;
  const added = new Map(
    (tokenizer.added_tokens as Json[]).map((token) => [token.id as number, token]),
  );
  const vocabulary = readVocabulary(model, added, `${location}: model`);
  const size = Math.max(vocabSize, vocabulary.length);
  if (vocabulary.length > vocabSize) {
    throw dataError(
      location,
      `at most ${vocabSize} tokens, as the model has`,
      `${vocabulary.length}`,
    );
  }
  const tokens = Array.from({ length: size }, (_, id) => vocabulary[id] ?? `[PAD${id}]`);
  const isScored = model.byte_fallback === true;
  const kinds = tokens.map((token, id) => {
    const item = added.get(id);
    if (isScored && token === model.unk_token) return KIND.unknown;
    if (item) return item.special ? KIND.control : KIND.added;
    if (vocabulary[id] === undefined) return KIND.unused;
    return isScored && /^<0x[0-9A-F]{2}>$/.test(token) ? KIND.byte : KIND.normal;
  });
  const ids = { bos: roles.bos_token, eos: roles.eos_token, padding: roles.pad_token };
  const named = Object.entries({ ...ids, ...(isScored && { unknown: roles.unk_token }) });
  const template = templates.default;
  return new Map<string, WrittenValue>([
    ...(isScored
      ? createScoreMetadata(model, tokens, tokenizer)
      : createMergeMetadata(model, tokenizer, location)),
    ['tokenizer.ggml.tokens', tokens],
    ['tokenizer.ggml.token_type', Int32Array.from(kinds)],
    ...named.flatMap(([name, token]): [string, WrittenValue][] => {
      const id = token === undefined ? -1 : tokens.indexOf(token);
      return id < 0 ? [] : [[`tokenizer.ggml.${name}_token_id`, id]];
    }),
    ['tokenizer.ggml.add_bos_token', addsFirst(tokenizer, roles.bos_token)],
    ...(template === undefined ? [] : [['tokenizer.chat_template', template] as const]),
  ]);
}

function readVocabulary(
  { type, vocab }: Json,
  added: ReadonlyMap<number, Json>,
  location: string,
): (string | undefined)[] {
  if (type !== 'BPE' || !isObject<Record<string, number>>(vocab)) {
    const hint = 'Keep the safetensors folder: only BPE tokenizers can be written to GGUF.';
    throw dataError(location, 'a BPE tokenizer', JSON.stringify(type), hint);
  }
  const tokens: (string | undefined)[] = [];
  for (const [token, id] of Object.entries(vocab)) tokens[id] = token;
  for (const [id, { content }] of added) tokens[id] = content as string;
  return tokens;
}

/** Returns the metadata of a byte-level BPE: its merges, and the name of its pre-tokenizer. */
function createMergeMetadata(
  model: Json,
  tokenizer: Json,
  location: string,
): [string, WrittenValue][] {
  const merges = (model.merges as (string | [string, string])[]).map((merge) =>
    typeof merge === 'string' ? merge : merge.join(' '),
  );
  const pre = Object.entries(PRE_TOKENIZERS).find(([, cutting]) => {
    const isSame = hasSameSteps(createSteps(cutting), tokenizer.pre_tokenizer);
    return isSame && (cutting.ignoresMerges ?? false) === (model.ignore_merges ?? false);
  });
  if (!pre) {
    const got = JSON.stringify(tokenizer.pre_tokenizer)?.slice(0, 300) ?? 'nothing';
    throw dataError(`${location}: pre_tokenizer`, Object.keys(PRE_TOKENIZERS).join(', '), got);
  }
  return [
    ['tokenizer.ggml.model', 'gpt2'],
    ['tokenizer.ggml.pre', pre[0]],
    ['tokenizer.ggml.merges', merges],
  ];
}

/** Returns whether two pre-tokenizers split texts equally. Offsets may differ. */
function hasSameSteps(a: unknown, b: unknown): boolean {
  const text = (item: unknown): string =>
    JSON.stringify(item, (key, value) => (key === 'trim_offsets' ? undefined : value));
  const flat = (value: unknown): unknown => {
    const steps = isObject<Json>(value) ? value.pretokenizers : undefined;
    return Array.isArray(steps) && steps.length === 1 ? steps[0] : value;
  };
  return text(sortValue(flat(a))) === text(sortValue(flat(b)));
}

/** Returns the same value with sorted keys. */
function sortValue(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sortValue);
  if (!isObject<Json>(value)) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, value]) => [key, sortValue(value)]));
}

/** Returns the metadata of a SentencePiece BPE. Tokens of early merges have high scores. */
function createScoreMetadata(
  model: Json,
  tokens: readonly string[],
  tokenizer: Json,
): [string, WrittenValue][] {
  const ranks = new Map<string, number>();
  for (const [rank, merge] of (model.merges as (string | [string, string])[]).entries()) {
    const merged = (typeof merge === 'string' ? merge.split(' ') : merge).join('');
    if (!ranks.has(merged)) ranks.set(merged, rank);
  }
  const last = ranks.size === 0 ? 0 : Math.max(...ranks.values()) + 1;
  const scores = tokens.map((token) => -(ranks.get(token) ?? last));
  const hasPrefix = /"Prepend"|"prepend_scheme":"(first|always)"/.test(JSON.stringify(tokenizer));
  return [
    ['tokenizer.ggml.model', 'llama'],
    ['tokenizer.ggml.pre', 'default'],
    ['tokenizer.ggml.scores', Float32Array.from(scores)],
    ['tokenizer.ggml.add_space_prefix', hasPrefix],
  ];
}

/** Returns whether the post-processor puts `token` before texts. */
function addsFirst(tokenizer: Json, token: string | undefined): boolean {
  const text = JSON.stringify(tokenizer.post_processor ?? null);
  return (
    token !== undefined && text.includes(`"single":[{"SpecialToken":{"id":${JSON.stringify(token)}`)
  );
}
