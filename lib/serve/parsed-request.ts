// A checked request, and the fields that completions and chats share.
import type { JsonValue } from '../../types/json.js';
import { SAMPLING } from '../inference/sampling-options.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { declareOption, integer, number } from '../runtime/option.js';
import { requireInteger } from '../runtime/require-number.js';
import type { Answer, AnswerSetup, Delivery } from './answer.js';
import { ApiError, invalidError, TOO_LONG, tooLongError } from './api-error.js';
import type { QueueClient } from './fair-queue.js';
import type { FormatField } from './format-fields.js';
import { isInteger, type RequestFields } from './request-fields.js';
import type { ContinuationOptions } from './served-engine.js';
import type { ServedModel } from './served-model.js';
import type { CallPlan } from './tools.js';

/** Sampling options of a request. */
export type Options = ContinuationOptions & { n: number };

/** A checked request. */
export interface ParsedRequest {
  /** The requested model; null for the model of the server. */
  model: string | null;
  /** The request's sampling options over the model's defaults. limitToContext() completes them. */
  options: Options;
  /** The requested number of tokens; absent if the request sets none. */
  requestedTokens: number | undefined;
  /** The name of the field with that number, for messages. */
  requestedField: string;
  delivery: Delivery;
  /** Opens the answer in the format of its route. */
  open: (setup: AnswerSetup) => Answer;
  /** How to split the answer into content, reasoning and calls; null if all of it is content. */
  plan: CallPlan | null;
  /** The field that sets `options.format`; null or absent without a format. */
  formatField?: FormatField | null;
  /** The field with the prompt, for messages about its length. */
  promptField: string;
  /** Returns the text to send before each choice of a prompt (`echo`); null without echo. */
  echo: ((prompt: number) => string) | null;
  /** Resolves with the tokens of each prompt. Rejects with the reason of the client's signal. */
  prompts(queueClient: QueueClient): Promise<readonly (readonly number[])[]>;
}

/** Maximum number of `stop` texts; OpenAI permits 4. */
const MAX_STOPS = 16;
/** Maximum number of tokens in `logit_bias`. */
const MAX_BIASED = 1024;
/** Maximum number of alternatives of a token. */
export const TOP_LOGPROBS = 20;
const { doSample: _, ...OPTIONS } = SAMPLING;

/** The engine's options within the limits of OpenAI and vLLM. */
const SAMPLING_FIELDS = {
  ...OPTIONS,
  temperature: number('', { min: 0, max: 2 }),
  /** 0 would leave no token to sample. */
  topP: number('', { above: 0, max: 1 }),
  /** -1 stands for all tokens, as in vLLM. */
  topK: declareOption((op, k: number) => Math.max(0, requireInteger(op, k, -1)), ''),
  presencePenalty: number('', { min: -2, max: 2 }),
  frequencyPenalty: number('', { min: -2, max: 2 }),
  priority: integer(''),
  /** Maps negative seeds to positive seeds, which the engine needs. */
  seed: declareOption((op, seed: number) => {
    const given = requireInteger(op, seed, Number.MIN_SAFE_INTEGER);
    return given < 0 ? Number(BigInt.asUintN(53, BigInt(given))) : given;
  }, ''),
};

/** Reads the sampling options over the defaults, and the number of tokens. */
export function readOptions(
  fields: RequestFields,
  { vocabSize, limits, defaults, tokenizer }: ServedModel,
  minTokens = 1,
): Pick<ParsedRequest, 'options' | 'requestedTokens' | 'requestedField'> {
  const requested: ContinuationOptions = {
    ...fields.declared(SAMPLING_FIELDS),
    logitBias: readLogitBias(fields.any('logit_bias'), vocabSize),
    stop: fields.texts('stop', MAX_STOPS),
    stopTokens: fields.tokens('stop_token_ids', vocabSize),
    ignoreEos: fields.flag('ignore_eos'),
    cacheSalt: fields.text('cache_salt'),
  };
  if (requested.stop && !tokenizer) {
    throw invalidError('stop', 'stop_token_ids of a model without a tokenizer', 'strings');
  }
  const entries = Object.entries(requested).filter(([, value]) => value !== undefined);
  const n = fields.integer('n', 1, limits.answers) ?? 1;
  const options = { ...defaults, ...Object.fromEntries(entries), n };
  return { options, ...readMaxTokens(fields, minTokens) };
}

/** Reads how the answer is sent. */
export function readDelivery(fields: RequestFields, { tokenizer }: ServedModel): Delivery {
  const stream = fields.flag('stream') ?? false;
  const options = fields.inside('stream_options');
  if (options && !stream)
    throw invalidError('stream_options', '"stream": true with it', 'no stream');
  const includeUsage = options?.flag('include_usage') ?? false;
  options?.flag('include_obfuscation'); // Pads events, and leaves the answer as it is.
  options?.requireKnown();
  // Without a tokenizer, an answer has only token ids.
  const tokenIds = fields.flag('return_token_ids') ?? tokenizer === null;
  return { stream, includeUsage, tokenIds };
}

/**
 * Returns the requested number of tokens, and the name of its field for messages. Both names may be
 * set to the same value.
 */
function readMaxTokens(
  fields: RequestFields,
  min: number,
): Pick<ParsedRequest, 'requestedTokens' | 'requestedField'> {
  const old = fields.integer('max_tokens', min);
  const max = fields.integer('max_completion_tokens', min);
  if (old !== undefined && max !== undefined && old !== max) {
    throw invalidError('max_tokens', `max_completion_tokens, ${max}, or nothing`, `${old}`);
  }
  return max === undefined
    ? { requestedTokens: old, requestedField: 'max_tokens' }
    : { requestedTokens: max, requestedField: 'max_completion_tokens' };
}

function readLogitBias(
  value: JsonValue | undefined,
  vocabSize: number,
): Record<number, number> | undefined {
  if (value === undefined) return undefined;
  if (!isObject(value))
    throw invalidError('logit_bias', 'an object of numbers', formatValue(value));
  const entries = Object.entries(value);
  if (entries.length > MAX_BIASED) {
    throw invalidError('logit_bias', `at most ${MAX_BIASED} tokens`, `${entries.length}`);
  }
  for (const [token, bias] of entries) {
    const location = `logit_bias[${token.slice(0, 20)}]`;
    if (!/^\d+$/.test(token) || !isInteger(Number(token), 0, vocabSize - 1)) {
      throw invalidError(location, `tokens below ${vocabSize} as keys`, formatValue(token));
    }
    if (typeof bias !== 'number' || bias < -100 || bias > 100) {
      throw invalidError(location, 'a number from -100 to 100', formatValue(bias));
    }
  }
  return value as Record<number, number>;
}

/**
 * Sets `maxNewTokens` for a prompt of `length` tokens. Throws 400 if the prompt or the requested
 * number does not fit, or if `min_tokens` is larger.
 */
export function limitToContext(
  { options, requestedTokens, promptField, requestedField }: ParsedRequest,
  length: number,
  { maxTokens, maxPromptTokens }: ServedModel,
): Options {
  const room = maxTokens - length;
  if (length > maxPromptTokens) throw tooLongError(promptField, `${length}`, maxPromptTokens);
  if (requestedTokens !== undefined && requestedTokens > room) {
    const message = `${requestedField}: expected at most ${maxTokens} tokens of prompt and answer, got ${length} and ${requestedTokens}. Lower ${requestedField}, shorten the prompt, or raise --context.`;
    throw new ApiError(400, message, { param: requestedField, code: TOO_LONG });
  }
  const maxNewTokens = requestedTokens ?? Math.min(options.maxNewTokens ?? room, room);
  const { minTokens = 0 } = options;
  if (minTokens > maxNewTokens) {
    const expected = `at most the ${maxNewTokens} new tokens of the answer`;
    throw invalidError('min_tokens', expected, `${minTokens}`);
  }
  return { ...options, maxNewTokens };
}
