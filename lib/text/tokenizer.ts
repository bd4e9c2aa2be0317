// Tokenizer: converts text to tokens and back as Hugging Face's tokenizers do, from the files of a
// model's folder.
import { createHash } from 'node:crypto';
import { DsError } from '../errors.js';
import { findCachedFolder } from '../hub/local-folder.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError, valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { type ChatMessage, ChatTemplate, type RenderedChat, type Span } from './chat-template.js';
import {
  type DecodeOptions,
  DecodeStream,
  type DecodeStreamOptions,
  REPLACEMENT,
} from './decode-stream.js';
import { type EncodedPair, encodePair } from './encode-pair.js';
import { hasPatterns, readTokenizer, tokenizerLocation } from './gguf-tokenizer.js';
import { fewestTokens } from './min-tokens.js';
import { type PaddedBatch, padRows } from './padding.js';
import { maskOddPieces, TokenSpans } from './token-spans.js';
import type { Role, Side, TokenizerFolder } from './tokenizer-folder.js';
import type {
  BatchOptions,
  ChatOptions,
  EncodeChatOptions,
  EncodedChat,
  EncodeOptions,
  TokenizerOptions,
} from './tokenizer-options.js';
import { TOKENIZER_RULES } from './tokenizer-rules.js';
import { CoreTokenizer } from './tokenizers/core.js';
import type { Bounds } from './tokenizers/post-processors.js';

/**
 * Number of tokens before a stream that affect how its first tokens decode: more than a character
 * has bytes.
 */
const CONTEXT_TOKENS = 8;
/** Larger values of model_max_length mean no limit. */
const NO_LIMIT = 1e9;

/**
 * Converts text to token ids and back; fromPretrained() creates it. Ids and texts equal
 * transformers' results.
 */
export class Tokenizer {
  /** One more than the largest id, added tokens included. */
  readonly vocabSize: number;
  /** `model_max_length` of tokenizer_config.json; null if it is missing. */
  readonly modelMaxLength: number | null;
  /** Id of the token that begins a text; null without one. */
  readonly bosId: number | null;
  /** Id of the token that ends a text; null without one. */
  readonly eosId: number | null;
  /** Id of the padding token; null without one. */
  readonly padId: number | null;
  /** Id of the unknown token; null without one. */
  readonly unkId: number | null;
  /** Id of the mask token; null without one. */
  readonly maskId: number | null;
  /** Padding side: `padding_side` of tokenizer_config.json. Default: "right". */
  readonly paddingSide: Side;
  /** Truncation side: `truncation_side` of tokenizer_config.json. Default: "right". */
  readonly truncationSide: Side;
  /** Ids that skipSpecialTokens leaves out. */
  readonly specialIds: ReadonlySet<number>;
  private readonly templates: ReadonlyMap<string, ChatTemplate>;
  private readonly spans: TokenSpans;
  private readonly cleansUp: boolean;
  private digest: string | null = null;
  private bound: ((text: string) => number) | null | undefined;
  private readonly bounds: Bounds;

  private constructor(
    private readonly core: CoreTokenizer,
    private readonly parts: TokenizerFolder,
    /** @internal The option `chatTemplate`; null if the template is that of the folder. */
    readonly ownTemplate: string | null,
  ) {
    const { config, location, tokenizer, templates } = parts;
    const added = [...core.added.values()];
    this.vocabSize = core.vocab.length;
    const limit = config.model_max_length;
    this.modelMaxLength = typeof limit === 'number' && limit < NO_LIMIT ? limit : null;
    this.bosId = this.roleId('bos_token');
    this.eosId = this.roleId('eos_token');
    this.padId = this.roleId('pad_token');
    this.unkId = this.roleId('unk_token');
    this.maskId = this.roleId('mask_token');
    this.paddingSide = parts.sides.padding;
    this.truncationSide = parts.sides.truncation;
    this.specialIds = new Set(added.filter(({ special }) => special).map(({ id }) => id));
    const named = Object.entries(templates);
    this.templates = new Map(
      named.map(([name, text]) => [
        name,
        new ChatTemplate(text, `${location}, chat template "${name}"`),
      ]),
    );
    this.spans = new TokenSpans(core, tokenizer);
    // The clean-up is for WordPiece; in other tokenizers it would remove spaces of the text.
    // transformers 5 does the same.
    const isWordPiece = (tokenizer.model as { type?: unknown }).type === 'WordPiece';
    this.cleansUp = isWordPiece && config.clean_up_tokenization_spaces === true;
    this.bounds = this.findBounds();
  }

  /**
   * Reads the tokenizer of a model's folder: tokenizer.json and, if present, tokenizer_config.json,
   * special_tokens_map.json and chat templates. `source` is the folder, a GGUF file, or a name of
   * the hub that hub.pull() or nn.models.fromPretrained() has downloaded: this function is
   * synchronous. Throws DS_DATA with the file's path if a file is missing, damaged or not
   * supported. Throws DS_HUB if the cache lacks the name, and DS_ARGUMENT if `source` or
   * `chatTemplate` is not a string.
   */
  static fromPretrained(source: string, given: TokenizerOptions = {}): Tokenizer {
    const op = 'Tokenizer.fromPretrained';
    requireType(op, source, 'string');
    const { revision, chatTemplate = null } = readOptions(op, given, namesOf.TokenizerOptions);
    if (chatTemplate !== null) requireType(`${op} chatTemplate`, chatTemplate, 'string');
    const folder = findCachedFolder(op, source, { need: 'tokenizer', revision });
    const parts = readTokenizer(folder);
    if (chatTemplate !== null) parts.templates.default = chatTemplate;
    const core = new CoreTokenizer(tokenizerLocation(folder), parts.tokenizer);
    return new Tokenizer(core, parts, chatTemplate);
  }

  /** Folder of the tokenizer. */
  get folder(): string {
    return this.parts.location;
  }

  /** @internal Whether the tokenizer splits texts by regular expressions. */
  get hasPatterns(): boolean {
    return hasPatterns(this.parts);
  }

  /** A digest of everything that affects ids or chat texts, including the version of the rules. */
  get fingerprint(): string {
    this.digest ??= this.computeDigest();
    return this.digest;
  }

  private computeDigest(): string {
    const { location: _, ...content } = this.parts;
    const deciding = JSON.stringify([TOKENIZER_RULES, content]);
    return createHash('sha256').update(deciding).digest('hex');
  }

  /** Returns the id of a token; null if the vocabulary lacks it. */
  tokenToId(token: string): number | null {
    return this.core.idOf(token) ?? null;
  }

  /** Returns whether a token has this id. Model heads may be padded beyond the vocabulary. */
  hasToken(id: number): boolean {
    return this.core.vocab[id] !== undefined;
  }

  /**
   * Returns a token as the vocabulary spells it. Throws DS_INDEX for an id outside of the
   * vocabulary.
   */
  idToToken(id: number): string {
    this.requireIds('Tokenizer.idToToken', [id]);
    return required(this.core.vocab[id]);
  }

  /**
   * Returns the bytes of a token, possibly a part of a character. The bytes of all tokens of a
   * text, joined, are the text. Throws DS_INDEX for an id outside of the vocabulary.
   */
  tokenBytes(id: number): Uint8Array {
    this.requireIds('Tokenizer.tokenBytes', [id]);
    return this.spans.bytesOf(id) ?? Buffer.from(this.decodeIds([id], false));
  }

  /** Returns ids of a text. Throws DS_ARGUMENT if `text` is not a string or an option is wrong. */
  encode(text: string, given: EncodeOptions = {}): Int32Array {
    const op = 'Tokenizer.encode';
    return this.encodeText(op, text, readOptions(op, given, namesOf.EncodeOptions));
  }

  /**
   * Returns ids of two texts in one row. If they are longer than `maxLength`, the longer text is
   * cut at its end. Throws DS_ARGUMENT for an unknown option, or unless `maxLength` is an integer
   * from 1.
   */
  encodePair(
    first: string,
    second: string,
    given: Pick<EncodeOptions, 'maxLength'> = {},
  ): EncodedPair {
    const { maxLength } = readOptions('Tokenizer.encodePair', given, { maxLength: true });
    return encodePair(this.core, [first, second], maxLength);
  }

  /**
   * @internal A lower bound of the text's number of tokens, computed without encoding it. 0 if the
   * tokenizer has no bound.
   */
  fewestTokens(text: string): number {
    if (this.bound === undefined) {
      const added = [...this.core.added.values()];
      this.bound = fewestTokens({ ...this.parts, vocab: this.core.vocab, added });
    }
    return this.bound?.(text) ?? 0;
  }

  /**
   * Encodes texts as i32 tensors [B, T]: ids, mask (1 for tokens, 0 for padding), positions (from
   * each row's first token) and documents (0 for tokens, -1 for padding). The caller owns them.
   * Throws DS_ARGUMENT for wrong options, and if rows differ in length without a padding token.
   */
  encodeBatch(texts: readonly string[], given: BatchOptions = {}): PaddedBatch {
    const op = 'Tokenizer.encodeBatch';
    const options = readOptions(op, given, namesOf.BatchOptions);
    if (!Array.isArray(texts) || texts.length === 0) {
      throw valueError(op, 'a list of strings', texts);
    }
    const rows = texts.map((text) => this.encodeText(op, text, options));
    const { paddingSide = this.paddingSide } = options;
    return padRows(op, rows, this.padId ?? this.eosId, { ...options, paddingSide });
  }

  /** Returns the text of ids. Throws DS_INDEX for a number that is no token. */
  decode(ids: ArrayLike<number>, given: DecodeOptions = {}): string {
    const { skipSpecialTokens = false } = readOptions(
      'Tokenizer.decode',
      given,
      namesOf.DecodeOptions,
    );
    return this.decodeIds(Array.from(ids), skipSpecialTokens);
  }

  /** Returns a decoder of text as tokens arrive. Default: without special tokens. */
  decodeStream(given: DecodeStreamOptions = {}): DecodeStream {
    const options = readOptions('Tokenizer.decodeStream', given, namesOf.DecodeStreamOptions);
    const { skipSpecialTokens = true, after = [], visible = [] } = options;
    const visibleIds = new Set(visible);
    const isShown = (id: number): boolean => !this.specialIds.has(id) || visibleIds.has(id);
    const decode = (ids: number[]): string =>
      this.decodeIds(skipSpecialTokens ? ids.filter(isShown) : ids, false, true);
    return new DecodeStream(decode, this.contextTokens(after, skipSpecialTokens));
  }

  /** Returns the last tokens of a text, without invalid ids. They start at a complete character. */
  private contextTokens(ids: ArrayLike<number>, skipSpecialTokens: boolean): number[] {
    const last: number[] = [];
    for (let i = ids.length - 1; i >= 0 && last.length < CONTEXT_TOKENS; --i) {
      const id = required(ids[i]);
      const isSkipped = skipSpecialTokens && this.specialIds.has(id);
      if (this.hasToken(id) && !isSkipped) last.unshift(id);
    }
    // The first tokens may be the end of a character.
    while (last.length > 0 && this.decodeIds(last, false, true).startsWith(REPLACEMENT))
      last.shift();
    return last;
  }

  /** @internal The text of the chat template `name`; null without one. */
  templateText(name: string): string | null {
    return this.templates.get(name)?.text ?? null;
  }

  /** The names of its chat templates. */
  get chatTemplates(): string[] {
    return [...this.templates.keys()];
  }

  /**
   * Renders a conversation with the template. Throws DS_DATA with the template's message if it
   * refuses, and DS_ARGUMENT.
   */
  chatText(messages: readonly ChatMessage[], given: ChatOptions = {}): string {
    return this.render('Tokenizer.chatText', messages, given, false).text;
  }

  /**
   * Renders a conversation and encodes it. The template writes all special tokens, so the tokenizer
   * adds none. Throws as chatText() does. With `assistantMask`, throws DS_DATA if the template has
   * no {% generation %} or the tokens do not spell the text.
   */
  applyChatTemplate(messages: readonly ChatMessage[], given: EncodeChatOptions = {}): EncodedChat {
    const op = 'Tokenizer.applyChatTemplate';
    const { assistantMask = false, ...options } = readOptions(op, given, namesOf.EncodeChatOptions);
    const { text, spans } = this.render(op, messages, options, assistantMask);
    const ids = this.encode(text, { addSpecialTokens: false });
    return { text, ids, assistant: spans && this.assistantMask(ids, text, spans) };
  }

  private assistantMask(ids: Int32Array, text: string, spans: readonly Span[]): Uint8Array {
    const marks = spans.flatMap(({ start, end }) => [start, end]);
    const pieces = [0, ...marks].map((start, i) => text.slice(start, marks[i] ?? text.length));
    const normal = pieces.map((piece) => this.spans.normalize(piece));
    const starts = this.spans.find(ids, normal.join(''));
    if (starts !== null) return maskOddPieces(starts, normal);
    const expected = 'tokens that decode to the text, to find the tokens of the assistant';
    const hint = 'Train on whole conversations: this tokenizer changes the text.';
    throw dataError(this.folder, expected, 'other text', hint);
  }

  private render(
    op: string,
    messages: readonly ChatMessage[],
    given: ChatOptions,
    marked: boolean,
  ): RenderedChat {
    const options = readOptions(op, given, namesOf.ChatOptions);
    const { addGenerationPrompt = false, tools = null, documents = null } = options;
    if (addGenerationPrompt && options.continueFinalMessage) {
      throw argumentError(op, 'either addGenerationPrompt or continueFinalMessage', 'both', '');
    }
    const variables = {
      ...this.parts.roles,
      tools,
      documents,
      add_generation_prompt: addGenerationPrompt,
      ...options.variables,
    };
    const template = this.selectTemplate(op, options);
    const rendered = marked
      ? template.renderMarked(messages, variables)
      : template.render(messages, variables);
    return options.continueFinalMessage ? cutAfterContent(op, messages, rendered) : rendered;
  }

  private selectTemplate(op: string, { template, tools }: ChatOptions): ChatTemplate {
    if (template !== undefined) requireType(`${op} template`, template, 'string');
    if (template !== undefined && /[{\n]/.test(template)) {
      return new ChatTemplate(template, `${op} template`);
    }
    const usual = tools && this.templates.has('tool_use') ? 'tool_use' : 'default';
    const selected = this.templates.get(template ?? usual);
    if (selected) return selected;
    const availableNames = this.templates.size > 0 ? this.chatTemplates.join(', ') : 'none';
    const expected = `a chat template "${template ?? usual}" in ${this.folder}`;
    throw argumentError(
      op,
      expected,
      availableNames,
      'Base models have no chat template. Use the template of the chat model: Tokenizer.fromPretrained(folder, { chatTemplate }), or --chat_template_path of ds train.',
    );
  }

  private encodeText(op: string, text: unknown, options: EncodeOptions): Int32Array {
    if (typeof text !== 'string') throw valueError(op, 'a string', text);
    const {
      addSpecialTokens = true,
      maxLength,
      truncationSide: side = this.truncationSide,
    } = options;
    const bare = this.core.encode(text);
    const { prefix, suffix } = addSpecialTokens ? this.bounds : { prefix: [], suffix: [] };
    if (maxLength === undefined) return Int32Array.from([...prefix, ...bare, ...suffix]);
    const around = prefix.length + suffix.length;
    const room = requireInteger(`${op} maxLength`, maxLength, around) - around;
    requireSide(`${op} truncationSide`, side);
    const maxIds =
      side === 'right' ? bare.slice(0, room) : bare.slice(Math.max(0, bare.length - room));
    return Int32Array.from([...prefix, ...maxIds, ...suffix]);
  }

  /**
   * Returns the tokens around every text: the post-processor's, modified by add_bos_token and
   * add_eos_token.
   */
  private findBounds(): Bounds {
    const { prefix, suffix } = this.core.bounds;
    const { add_bos_token: bos, add_eos_token: eos } = this.parts.config;
    return {
      prefix: this.adjustBounds(prefix, bos, this.bosId),
      suffix: this.adjustBounds(suffix, eos, this.eosId),
    };
  }

  private adjustBounds(
    bound: readonly number[],
    wanted: unknown,
    id: number | null,
  ): readonly number[] {
    if (typeof wanted !== 'boolean' || id === null || bound.includes(id) === wanted) return bound;
    return wanted ? [...bound, id] : bound.filter((value) => value !== id);
  }

  private decodeIds(ids: number[], skipSpecialTokens: boolean, isPartial = false): string {
    this.requireIds('Tokenizer.decode', ids);
    const visibleIds = skipSpecialTokens ? ids.filter((id) => !this.specialIds.has(id)) : ids;
    if (visibleIds.length === 0) return '';
    const text = this.core.decode(visibleIds, isPartial);
    return this.cleansUp ? cleanUpSpaces(text) : text;
  }

  private requireIds(op: string, ids: readonly number[]): void {
    const invalid = ids.findIndex((id) => !this.hasToken(id));
    if (invalid < 0) return;
    const expected = `token ids of [0, ${this.vocabSize})`;
    const hint =
      'Labels may hold -100, and heads are padded beyond the vocabulary: leave both out.';
    throw new DsError({
      code: 'DS_INDEX',
      op,
      expected,
      got: `${ids[invalid]} at ${invalid}`,
      hint,
    });
  }

  private roleId(role: Role): number | null {
    const token = this.parts.roles[role];
    return token === undefined ? null : this.tokenToId(token);
  }
}

/** Cuts the text after the last message's content. */
function cutAfterContent(
  op: string,
  messages: readonly ChatMessage[],
  { text, spans }: RenderedChat,
): RenderedChat {
  const content = messages.at(-1)?.content;
  const trimmed = typeof content === 'string' ? content.trim() : '';
  const at = trimmed === '' ? -1 : text.lastIndexOf(trimmed);
  if (at < 0) {
    const expected = 'a template that writes the content of the last message';
    throw dataError(`${op} continueFinalMessage`, expected, formatValue(content));
  }
  // Keeps trailing whitespace of the content if the template keeps it.
  const contentText = (content as string).trimStart();
  const end = at + (text.startsWith(contentText, at) ? contentText.length : trimmed.length);
  const cutSpans = spans
    ?.filter(({ start }) => start < end)
    .map((part) => ({ ...part, end: Math.min(part.end, end) }));
  return { text: text.slice(0, end), spans: cutSpans ?? null };
}

/** clean_up_tokenization() of transformers. */
const cleanUpSpaces = (text: string): string =>
  text
    .replace(/ ([.?!,])/g, '$1')
    .replaceAll(" ' ", "'")
    .replace(/ (n't|'m|'s|'ve|'re)/g, '$1');

function requireSide(op: string, side: unknown): void {
  if (side !== 'left' && side !== 'right') throw valueError(op, '"left" or "right"', side);
}
