// Reads and checks generation requests.

import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import type { NativeGrammar } from '../runtime/grammar.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { notice } from '../runtime/notice.js';
import {
  boolean,
  callback,
  declareOption,
  integer,
  type Options,
  readDeclared,
  string,
} from '../runtime/option.js';
import { readOptions } from '../runtime/options.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import type { ChatMessage, Tokenizer } from '../text/index.js';
import { type BeamRequest, readBeams } from './beam-request.js';
import { BEAMS } from './beams.js';
import { encodeConversation } from './chat-prompt.js';
import { type AnswerReading, constrainAnswer } from './constrained-answer.js';
import { type Format, type ReadFormat, readFormat } from './grammar/format.js';
import { MAX_SEQUENCES, SAMPLING, type SamplingOptions, tokenOptions } from './sampling-options.js';

/** Limits and vocabulary for the check of requests. */
export interface RequestLimits {
  tokenizer: Tokenizer | null;
  vocabSize: number;
  /** Maximum number of tokens of a prompt and its continuation. */
  maxTokens: number;
  /** Minimum number of new tokens for which a sequence must have space. */
  minNewTokens: number;
  /** End tokens of the model. */
  endTokens: readonly number[];
  /** Throws DS_ARGUMENT unless an adapter has this name. Absent: no adapter is loaded. */
  requireAdapter?: ((op: string, name: string) => void) | null;
}

/** A conversation, as the alternative to a prompt. */
const CONVERSATION = {
  /**
   * A conversation. The tokenizer's chat template writes it as the prompt, and the continuation is
   * the next answer.
   */
  messages: declareOption(
    (_, messages: readonly ChatMessage[]) => messages,
    'a conversation for the chat template',
  ),
  /** Functions that the chat template writes into the prompt; see also chat(). Default: none. */
  tools: declareOption((_, tools: readonly object[]) => tools, 'functions for the chat template', {
    default: [],
    shown: 'none',
  }),
  /** Other variables that the chat template reads, such as enable_thinking. Default: none. */
  variables: declareOption(
    (_, variables: Record<string, unknown>) => variables,
    'variables of the chat template',
    { default: {}, shown: 'none' },
  ),
};

/** How the engine runs a request; these options do not change its texts. */
const EXECUTION = {
  /**
   * Aborts the request and frees its blocks. generate() then rejects with the signal's reason; the
   * pieces of stream() end with "abort".
   */
  signal: declareOption(requireSignal, 'aborts the request', { default: null }),
  /**
   * Requests with different salts share no cached blocks. This prevents timing leaks between
   * tenants. Default: one common salt.
   */
  cacheSalt: string('requests with different salts share no cached blocks', {
    default: '',
    shown: 'one common salt',
  }),
  /**
   * Of the requests of one client, those with a lower priority value run earlier. Default: 0.
   * See scheduling.policy.
   */
  priority: integer('requests with a lower value run earlier', { default: 0 }),
  /** Clients take turns by tokens, however many requests they have. Default: one common client. */
  client: string('clients take turns by tokens', { default: '', shown: 'one common client' }),
  /** Called before the first step of the request. */
  onStart: callback<() => void>('called before the first step of the request'),
};

/** Declares the options that end the continuation, or select its visible text. */
const endOptions = (limits: RequestLimits) => ({
  /**
   * Maximum number of tokens to sample. Default: 20 after a prompt, with a notice; after messages
   * the rest of the engine's maxTokens.
   */
  maxNewTokens: integer('maximum number of tokens to sample', {
    min: 1,
    shown: '20 after a prompt, as many as fit after messages',
  }),
  /** Stop strings; the text ends before the first match. Special tokens are allowed. */
  stop: declareOption(
    (op, stop: string | readonly string[]) => requireStops(op, stop, limits.tokenizer),
    'strings that end the text before them',
    { default: [], shown: 'none' },
  ),
  /**
   * End tokens, in addition to the end tokens of the model's generation_config.json and tokenizer.
   */
  stopTokens: declareOption(
    (op, tokens: readonly number[]) => requireTokens(op, tokens, limits),
    'end tokens, added to those of the model',
    { default: [], shown: 'none' },
  ),
  /** Treats the model's end tokens as ordinary tokens. Default: false. */
  ignoreEos: boolean("treat the model's end tokens as ordinary tokens", { default: false }),
  /**
   * True if the continuation is a separate text, such as a chat answer. SentencePiece tokenizers
   * then drop the space before its first word. Default: false, the continuation extends the prompt.
   */
  beginsText: boolean('the continuation is a separate text', { default: false }),
  /** Special tokens that the text shows, such as markers of tool calls. Default: none. */
  visibleTokens: declareOption(
    (op, tokens: readonly number[]) => requireTokens(op, tokens, limits),
    'special tokens that the text shows',
    { default: [], shown: 'none' },
  ),
});

/** Declares the options of a request besides sampling, for the limits of an engine. */
const requestOptions = (limits: RequestLimits) => ({
  /**
   * Text or tokens. The engine's tokenizer encodes text and adds special tokens. A request has
   * either a prompt or messages.
   */
  prompt: declareOption(
    (op, prompt: string | ArrayLike<number>) => readPrompt(op, prompt, limits),
    'text or tokens',
  ),
  ...CONVERSATION,
  ...endOptions(limits),
  /**
   * Number of continuations, at most 16384; they share the prompt's keys and values. Default: 1.
   */
  n: integer('number of continuations', { min: 1, max: MAX_SEQUENCES, default: 1 }),
  /** Name of a loaded adapter, which the tokens of the request use. Default: the model alone. */
  adapter: declareOption(
    (op, name: string) => requireAdapter(op, name, limits),
    'name of an adapter',
    {
      default: null,
      shown: 'the model alone',
    },
  ),
  /**
   * The texts that the model may write: a JSON schema, a Standard Schema (zod 4.2), `{ regex }`,
   * `{ choice }`, `{ grammar }` or `{ jsonObject: true }`. See docs/structured-output.md. Needs a
   * tokenizer. Default: any text.
   */
  format: declareOption(
    (op, format: Format) => readFormat(op, format),
    'the texts that the model may write',
    { default: null, shown: 'any text' },
  ),
  ...EXECUTION,
});

/** A prompt and its generation options. */
export interface GenerateRequest
  extends SamplingOptions,
    BeamRequest,
    Options<ReturnType<typeof requestOptions>> {}

/** A checked request with its prompt as tokens and with all defaults. */
export interface ReadRequest {
  prompt: readonly number[];
  maxNewTokens: number;
  /** Tokens before the continuation, as context for the decoder. */
  textBefore: readonly number[];
  stop: readonly string[];
  stopTokens: ReadonlySet<number>;
  visibleTokens: readonly number[];
  n: number;
  signal: AbortSignal | null;
  cacheSalt: string;
  priority: number;
  client: string;
  /** Null: the model alone. */
  adapter: string | null;
  onStart: (() => void) | null;
  /** Null for any text. */
  format: ReadFormat | null;
  /** The compiled format; null for any text. */
  grammar: NativeGrammar | null;
  /** How to separate reasoning from the text; null: it stays in the text. */
  reading: AnswerReading | null;
  sampling: SamplingOptions;
  /** Null without beam search. */
  beams: BeamRequest | null;
}

const OP = 'InferenceEngine request';

/** Returns the options of a request: `own`. `names` also has the options of sampling. */
function declareRequest(limits: RequestLimits) {
  const own = { ...requestOptions(limits), ...BEAMS };
  return { own, names: { ...own, ...SAMPLING, ...tokenOptions(limits) } };
}

/** The options under the limits of an engine: each of its requests has the same. */
const declaredRequests = new WeakMap<RequestLimits, ReturnType<typeof declareRequest>>();

/** Checks a request. Throws DS_ARGUMENT for invalid options, DS_LIMIT for one that is too long. */
export function readRequest(given: GenerateRequest, limits: RequestLimits): ReadRequest {
  const options = declaredRequests.get(limits) ?? declareRequest(limits);
  declaredRequests.set(limits, options);
  const { own: declared, names } = options;
  const all = Object.entries(readOptions(OP, given, names));
  const isSampling = ([name]: [string, unknown]): boolean => !Object.hasOwn(declared, name);
  const declaredValues = Object.fromEntries(all.filter((entry) => !isSampling(entry)));
  const { numBeams, lengthPenalty, earlyStopping, ...read } = readDeclared(
    OP,
    declaredValues,
    declared,
  );
  const { prompt: promptOption, messages, tools, variables, ...others } = read;
  const { maxNewTokens, stop, stopTokens, ignoreEos, beginsText, ...remaining } = others;
  if ((promptOption === undefined) === (messages === undefined)) {
    throw argumentError(OP, 'prompt or messages', promptOption === undefined ? 'neither' : 'both');
  }
  const chat = messages && encodeConversation(OP, limits.tokenizer, { messages, tools, variables });
  const prompt = chat ? requireTokens(`${OP} messages`, chat, limits) : required(promptOption);
  const ends = ignoreEos ? [] : limits.endTokens;
  const beams = readBeams({ numBeams, lengthPenalty, earlyStopping }, stop, read.format !== null);
  if (beams && read.adapter !== null) {
    throw argumentError(`${OP} adapter`, 'no adapter with numBeams', formatValue(read.adapter));
  }
  return {
    ...remaining,
    prompt,
    maxNewTokens: limitNewTokens(prompt.length, limits, {
      requested: maxNewTokens,
      least: Number(all.find(([name]) => name === 'minTokens')?.[1] ?? 0),
      isChat: messages !== undefined,
    }),
    textBefore: beginsText || messages ? [] : prompt,
    stop,
    stopTokens: new Set([...ends, ...stopTokens, ...findSpecialStops(stop, limits)]),
    onStart: read.onStart ?? null,
    grammar: null,
    reading: null,
    ...(chat && limits.tokenizer && declaredValues.format
      ? constrainAnswer(`${OP} format`, prompt, {
          tokenizer: limits.tokenizer,
          format: declaredValues.format as Format,
        })
      : {}),
    sampling: Object.fromEntries(all.filter(isSampling)),
    beams,
  };
}

function requireAdapter(op: string, name: string, limits: RequestLimits): string {
  requireType(op, name, 'string');
  if (limits.requireAdapter) limits.requireAdapter(op, name);
  else throw argumentError(op, 'no adapter: the engine has none', formatValue(name), ADAPTERS_HINT);
  return name;
}

const ADAPTERS_HINT = 'Load adapters with the option adapters of initInference().';

function requireSignal(op: string, signal: AbortSignal): AbortSignal {
  if (signal instanceof AbortSignal) return signal;
  throw valueError(op, 'an AbortSignal', signal);
}

function readPrompt(
  op: string,
  prompt: string | ArrayLike<number>,
  limits: RequestLimits,
): readonly number[] {
  if (typeof prompt === 'string' && !limits.tokenizer) {
    const hint = 'initInference(folder) reads the tokenizer in the folder of the model.';
    throw argumentError(op, 'tokens, for an engine without a tokenizer', 'a string', hint);
  }
  const encoded = typeof prompt === 'string' ? encodeText(prompt, limits) : prompt;
  const tokens = requireTokens(op, encoded, limits);
  if (tokens.length > 0) return tokens;
  const hint = 'Start with the token that begins a text, usually bosId of the tokenizer.';
  throw argumentError(op, 'at least one token', 'an empty prompt', hint);
}

/** Encodes a prompt. Throws DS_LIMIT before encoding if the text is certainly too long. */
function encodeText(text: string, { tokenizer, maxTokens }: RequestLimits): Int32Array {
  const encoder = required(tokenizer);
  const fewest = encoder.fewestTokens(text);
  if (fewest >= maxTokens) throw tooLongError(`a prompt of at least ${fewest}`, maxTokens);
  return encoder.encode(text);
}

/** Throws DS_ARGUMENT unless `given` is a list of token ids. */
function requireTokens(op: string, given: unknown, { vocabSize }: RequestLimits): number[] {
  const isList = Array.isArray(given) || ArrayBuffer.isView(given);
  const list = isList ? Array.from(given as ArrayLike<unknown>) : [];
  const wrong = list.findIndex(
    (id) => !(typeof id === 'number' && Number.isInteger(id) && id >= 0 && id < vocabSize),
  );
  if (isList && wrong < 0) return list as number[];
  const got = isList ? `${formatValue(list[wrong])} at ${wrong}` : formatValue(given);
  const hint = isList ? "Use the tokenizer of the model's training." : '';
  throw argumentError(op, `tokens from 0 to ${vocabSize - 1}`, got, hint);
}

/** Checks that stop strings have a tokenizer. TextStream checks their contents. */
function requireStops(
  op: string,
  given: string | readonly string[],
  tokenizer: Tokenizer | null,
): readonly string[] {
  const stops = typeof given === 'string' ? [given] : given;
  if (!Array.isArray(stops)) throw valueError(op, 'a string or a list of strings', given);
  if (tokenizer || stops.length === 0) return stops;
  throw valueError(op, 'stopTokens, for an engine without a tokenizer', given);
}

/**
 * Returns the special tokens that equal a stop string. They decode to no text, so TextStream cannot
 * find them.
 */
function findSpecialStops(
  stops: readonly unknown[],
  { tokenizer, vocabSize }: RequestLimits,
): number[] {
  const special = [...(tokenizer?.specialIds ?? [])].filter((id) => id < vocabSize);
  return special.filter((id) => stops.includes(tokenizer?.idToToken(id)));
}

/** New tokens after a prompt by default. Source: max_length of transformers. */
const DEFAULT_NEW_TOKENS = 20;

/** Engines that have emitted the notice about this default. */
const noted = new WeakSet<RequestLimits>();

interface NewTokens {
  requested: number | undefined;
  /** The fewest new tokens of a text. */
  least: number;
  /** Whether they answer a conversation: models end an answer by themselves. */
  isChat: boolean;
}

/**
 * Returns the number of new tokens. Throws DS_LIMIT if the prompt and the new tokens do not fit.
 */
function limitNewTokens(
  prompt: number,
  limits: RequestLimits,
  { requested, least, isChat }: NewTokens,
): number {
  const { maxTokens, minNewTokens } = limits;
  const room = maxTokens - prompt;
  const added = Math.max(minNewTokens, requested ?? 1);
  if (room < added) throw tooLongError(`a prompt of ${prompt} and ${added} new ones`, maxTokens);
  if (requested !== undefined || isChat) return requested ?? room;
  if (!noted.has(limits)) {
    noted.add(limits);
    notice(
      `maxNewTokens is ${DEFAULT_NEW_TOKENS} for a prompt by default, as in transformers. Set it to omit this notice.`,
    );
  }
  return Math.min(room, Math.max(DEFAULT_NEW_TOKENS, least));
}

function tooLongError(got: string, maxTokens: number): DsError {
  return new DsError({
    code: 'DS_LIMIT',
    op: `${OP} prompt`,
    expected: `at most ${maxTokens} tokens of a prompt and its continuation`,
    got,
    hint: 'Shorten the prompt, lower maxNewTokens, or raise max_out_tokens (up to the longest sequence of the model) and kv_cache.blocks.',
  });
}
