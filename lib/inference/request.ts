// Reads and checks generation requests.

import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import type { Tokenizer } from '../text/index.js';
import { type BeamRequest, readBeams } from './beam-request.js';
import { SAMPLING, type SamplingOptions } from './sampling.js';

/** A prompt and its generation options. */
export interface GenerateRequest extends SamplingOptions, BeamRequest {
  /**
   * Text or tokens. The engine's tokenizer encodes text and adds special tokens. For a chat, pass
   * the tokens of Tokenizer.applyChatTemplate(): the template has its own special tokens.
   */
  prompt: string | ArrayLike<number>;
  /** Most tokens to sample. Default: the rest of the engine's maxTokens. */
  maxNewTokens?: number;
  /** Stop strings; the text ends before the first match. Special tokens are allowed. */
  stop?: string | readonly string[];
  /** End tokens, added to the ones of the model's generation_config.json and tokenizer. */
  stopTokens?: readonly number[];
  /** Treats the model's end tokens as ordinary tokens. Default: false. */
  ignoreEos?: boolean;
  /** Number of continuations; they share the prompt's keys and values. Default: 1. */
  n?: number;
  /**
   * True if the continuation is a separate text, such as a chat answer. SentencePiece tokenizers
   * then drop the space before its first word. Default: false, the continuation extends the prompt.
   */
  beginsText?: boolean;
  /**
   * Aborts the request and frees its blocks. generate() then rejects with the signal's reason; the
   * pieces of stream() end with "abort".
   */
  signal?: AbortSignal;
  /**
   * Requests with different salts share no cached blocks. This prevents timing leaks between
   * tenants. Default: one common salt.
   */
  cacheSalt?: string;
  /** Called before the first step of the request. */
  onStart?: () => void;
}

const NAMES: OptionNames<GenerateRequest> = {
  ...SAMPLING,
  ...{ prompt: true, maxNewTokens: true, stop: true, stopTokens: true, ignoreEos: true },
  ...{ n: true, beginsText: true, signal: true, cacheSalt: true, onStart: true },
  ...{ numBeams: true, lengthPenalty: true, earlyStopping: true },
};

/** A checked request with its prompt as tokens and with all defaults. */
export interface ReadRequest {
  prompt: readonly number[];
  maxNewTokens: number;
  /** Tokens before the continuation, as context for the decoder. */
  textBefore: readonly number[];
  stop: readonly string[];
  stopTokens: ReadonlySet<number>;
  n: number;
  signal: AbortSignal | null;
  cacheSalt: string;
  onStart: (() => void) | null;
  sampling: SamplingOptions;
  /** Null without beam search. */
  beams: BeamRequest | null;
}

/** Limits and vocabulary for the check of requests. */
export interface RequestLimits {
  tokenizer: Tokenizer | null;
  vocabSize: number;
  /** Most tokens of a prompt and its continuation. */
  maxTokens: number;
  /** Minimum room for new tokens. */
  minNewTokens: number;
  /** End tokens of the model. */
  endTokens: readonly number[];
}

const OP = 'InferenceEngine request';

function refused(what: string, expected: string, got: string, hint = ''): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op: `${OP} ${what}`, expected, got, hint });
}

/** Checks a request. Throws DS_ARGUMENT for invalid options, DS_LIMIT for one that is too long. */
export function readRequest(given: GenerateRequest, limits: RequestLimits): ReadRequest {
  const read = readOptions(OP, given, NAMES);
  const { prompt, stop = [], stopTokens = [], ignoreEos = false, n = 1, signal, ...rest } = read;
  const { numBeams, lengthPenalty, earlyStopping, ...others } = rest;
  const { cacheSalt = '', maxNewTokens, onStart, beginsText = false, ...sampling } = others;
  const tokens = promptTokens(prompt, limits);
  if (signal !== undefined && !(signal instanceof AbortSignal)) {
    throw refused('signal', 'an AbortSignal', formatValue(signal));
  }
  if (typeof cacheSalt !== 'string') throw refused('cacheSalt', 'a string', formatValue(cacheSalt));
  if (onStart !== undefined && typeof onStart !== 'function') {
    throw refused('onStart', 'a function', formatValue(onStart));
  }
  requireType(`${OP} beginsText`, beginsText, 'boolean');
  const ends = ignoreEos ? [] : limits.endTokens;
  const stops = requireStops(stop, limits.tokenizer);
  const spoken = specialAmong(stops, limits);
  return {
    prompt: tokens,
    maxNewTokens: newTokens(tokens.length, maxNewTokens, limits),
    textBefore: beginsText ? [] : tokens,
    stop: stops,
    stopTokens: new Set([...ends, ...requireTokens('stopTokens', stopTokens, limits), ...spoken]),
    n: requireInteger(`${OP} n`, n, 1),
    signal: signal ?? null,
    cacheSalt,
    onStart: onStart ?? null,
    sampling,
    beams: readBeams({ numBeams, lengthPenalty, earlyStopping }, stops),
  };
}

function promptTokens(
  prompt: string | ArrayLike<number>,
  limits: RequestLimits,
): readonly number[] {
  if (typeof prompt === 'string' && !limits.tokenizer) {
    const hint = 'initInference(folder) reads the tokenizer in the folder of the model.';
    throw refused('prompt', 'tokens, for an engine without a tokenizer', 'a string', hint);
  }
  const given = typeof prompt === 'string' ? encoded(prompt, limits) : prompt;
  const tokens = requireTokens('prompt', given, limits);
  if (tokens.length > 0) return tokens;
  const hint = 'Start with the token that begins a text, usually bosId of the tokenizer.';
  throw refused('prompt', 'at least one token', 'an empty prompt', hint);
}

/** Encodes a prompt. Throws DS_LIMIT before encoding if the text is certainly too long. */
function encoded(text: string, { tokenizer, maxTokens }: RequestLimits): Int32Array {
  const own = required(tokenizer);
  const fewest = own.fewestTokens(text);
  if (fewest >= maxTokens) throw tooLong(`a prompt of at least ${fewest}`, maxTokens);
  return own.encode(text);
}

/** Throws DS_ARGUMENT unless `given` is a list of token ids. */
function requireTokens(what: string, given: unknown, { vocabSize }: RequestLimits): number[] {
  const isList = Array.isArray(given) || ArrayBuffer.isView(given);
  const list = isList ? Array.from(given as ArrayLike<unknown>) : [];
  const wrong = list.findIndex(
    (id) => !(typeof id === 'number' && Number.isInteger(id) && id >= 0 && id < vocabSize),
  );
  if (isList && wrong < 0) return list as number[];
  const got = isList ? `${formatValue(list[wrong])} at ${wrong}` : formatValue(given);
  const hint = isList ? "Use the tokenizer of the model's training." : '';
  throw refused(what, `tokens from 0 to ${vocabSize - 1}`, got, hint);
}

/** Stop strings need a tokenizer. TextStream checks their contents. */
function requireStops(given: string | readonly string[], tokenizer: Tokenizer | null) {
  const stops = typeof given === 'string' ? [given] : given;
  if (!Array.isArray(stops))
    throw refused('stop', 'a string or a list of strings', formatValue(given));
  if (tokenizer || stops.length === 0) return stops;
  throw refused('stop', 'stopTokens, for an engine without a tokenizer', formatValue(given));
}

/** Returns the special tokens that equal a stop string: they decode to no text. */
function specialAmong(
  stops: readonly unknown[],
  { tokenizer, vocabSize }: RequestLimits,
): number[] {
  const special = [...(tokenizer?.specialIds ?? [])].filter((id) => id < vocabSize);
  return special.filter((id) => stops.includes(tokenizer?.idToToken(id)));
}

/** Returns the number of new tokens. Throws DS_LIMIT if the prompt and new tokens are too many. */
function newTokens(prompt: number, given: number | undefined, limits: RequestLimits): number {
  const { maxTokens, minNewTokens } = limits;
  const wanted = given === undefined ? null : requireInteger(`${OP} maxNewTokens`, given, 1);
  const room = maxTokens - prompt;
  if (room >= Math.max(minNewTokens, wanted ?? 1)) return wanted ?? room;
  const added = Math.max(minNewTokens, wanted ?? 1);
  throw tooLong(`a prompt of ${prompt} and ${added} new ones`, maxTokens);
}

function tooLong(got: string, maxTokens: number): DsError {
  return new DsError({
    code: 'DS_LIMIT',
    op: `${OP} prompt`,
    expected: `at most ${maxTokens} tokens of a prompt and its continuation`,
    got,
    hint: 'Shorten the prompt, lower maxNewTokens, or raise max_out_tokens (up to the longest sequence of the model) and kv_cache.blocks.',
  });
}
