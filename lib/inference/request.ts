// What is asked of the engine, read and checked before anything is computed.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import type { Tokenizer } from '../text/index.js';
import { type BeamRequest, readBeams } from './beam-request.js';
import { SAMPLING, type SamplingOptions } from './sampling.js';

/** One prompt to be continued, and how. */
export interface GenerateRequest extends SamplingOptions, BeamRequest {
  /**
   * A text, which the engine's tokenizer encodes with the special tokens that it puts around one,
   * or tokens. A chat template writes its own: give what Tokenizer.applyChatTemplate() makes of it.
   */
  prompt: string | ArrayLike<number>;
  /** Most tokens to sample. Default: as many as fit the engine's maxTokens. */
  maxNewTokens?: number;
  /** Strings that end the text, which is cut before them; special tokens, too. */
  stop?: string | readonly string[];
  /**
   * Tokens that end the text, beside those of the model's generation_config.json and the
   * tokenizer's end token.
   */
  stopTokens?: readonly number[];
  /** Whether the model's own tokens for an end are tokens as any other. Default false. */
  ignoreEos?: boolean;
  /** How many continuations; they share the prompt's keys and values. Default 1. */
  n?: number;
  /**
   * Whether a text of its own follows the prompt, as an answer to a chat does: a tokenizer of
   * SentencePiece's leaves out the space before its first word. Default false: the text goes on
   * where the prompt ends.
   */
  beginsText?: boolean;
  /**
   * Ends the request, and frees its blocks at once. generate() then rejects with the signal's
   * reason; the pieces of stream() end with "abort".
   */
  signal?: AbortSignal;
  /**
   * Requests find the keys and values of common beginnings among those of the same salt alone, so
   * that nobody can tell by the time it takes what others have asked. Default: one for all.
   */
  cacheSalt?: string;
  /** Is called when the prompt's first tokens are about to be computed. */
  onStart?: () => void;
}

const NAMES: OptionNames<GenerateRequest> = {
  ...SAMPLING,
  ...{ prompt: true, maxNewTokens: true, stop: true, stopTokens: true, ignoreEos: true },
  ...{ n: true, beginsText: true, signal: true, cacheSalt: true, onStart: true },
  ...{ numBeams: true, lengthPenalty: true, earlyStopping: true },
};

/** A request with its prompt as tokens and all that it left out. */
export interface ReadRequest {
  prompt: readonly number[];
  maxNewTokens: number;
  /** Tokens whose text the continuation goes on from. */
  textBefore: readonly number[];
  stop: readonly string[];
  stopTokens: ReadonlySet<number>;
  n: number;
  signal: AbortSignal | null;
  cacheSalt: string;
  onStart: (() => void) | null;
  sampling: SamplingOptions;
  /** Null where it is no beam search. */
  beams: BeamRequest | null;
}

/** What requests are read against. */
export interface RequestLimits {
  tokenizer: Tokenizer | null;
  vocabSize: number;
  /** Most tokens of a prompt and its continuation. */
  maxTokens: number;
  /** Fewest new tokens for which there must be room. */
  minNewTokens: number;
  /** Tokens that end a text by the model's own account. */
  endTokens: readonly number[];
}

const OP = 'InferenceEngine request';

function refused(what: string, expected: string, got: string, hint = ''): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op: `${OP} ${what}`, expected, got, hint });
}

/** Throws DS_ARGUMENT for what cannot be, DS_LIMIT for what does not fit. */
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
    throw refused('prompt', 'tokens, for an engine without a tokenizer', 'a text', hint);
  }
  const given = typeof prompt === 'string' ? encoded(prompt, limits) : prompt;
  const tokens = requireTokens('prompt', given, limits);
  if (tokens.length > 0) return tokens;
  const hint =
    'A model continues something: give it the token that begins a text, as a rule bosId.';
  throw refused('prompt', 'a token or more', 'none', hint);
}

/** Throws DS_LIMIT, before it encodes it, for a text that is certain to be too long. */
function encoded(text: string, { tokenizer, maxTokens }: RequestLimits): Int32Array {
  const own = tokenizer as Tokenizer;
  const fewest = own.fewestTokens(text);
  if (fewest >= maxTokens) throw tooLong(`a prompt of at least ${fewest}`, maxTokens);
  return own.encode(text);
}

/** Whole numbers below the vocabulary's size. */
function requireTokens(what: string, given: unknown, { vocabSize }: RequestLimits): number[] {
  const isList = Array.isArray(given) || ArrayBuffer.isView(given);
  const list = isList ? Array.from(given as ArrayLike<unknown>) : [];
  const wrong = list.findIndex(
    (id) => !(Number.isInteger(id) && (id as number) >= 0 && (id as number) < vocabSize),
  );
  if (isList && wrong < 0) return list as number[];
  const got = isList ? `${formatValue(list[wrong])} at ${wrong}` : formatValue(given);
  const hint = isList ? 'Tokens are those of the tokenizer that the model was trained with.' : '';
  throw refused(what, `tokens from 0 to ${vocabSize - 1}`, got, hint);
}

/** Strings are found in text, which takes a tokenizer. TextStream checks what they are. */
function requireStops(given: string | readonly string[], tokenizer: Tokenizer | null) {
  const stops = typeof given === 'string' ? [given] : given;
  if (!Array.isArray(stops)) throw refused('stop', 'a text or a list of texts', formatValue(given));
  if (tokenizer || stops.length === 0) return stops;
  throw refused('stop', 'stopTokens, for an engine without a tokenizer', formatValue(given));
}

/** Special tokens give no text: those that a stop string spells are found as tokens. */
function specialAmong(
  stops: readonly unknown[],
  { tokenizer, vocabSize }: RequestLimits,
): number[] {
  const special = [...(tokenizer?.specialIds ?? [])].filter((id) => id < vocabSize);
  return special.filter((id) => stops.includes(tokenizer?.idToToken(id)));
}

/** How many tokens may be sampled. Throws DS_LIMIT where prompt and new ones are too many. */
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
