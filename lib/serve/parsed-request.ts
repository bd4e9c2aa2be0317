// A checked request: the fields that completions and chats share.
import type { JsonValue } from '../../types/json.js';
import { SAMPLING } from '../inference/sampling-options.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { declareOption, integer, number } from '../runtime/option.js';
import { requireInteger } from '../runtime/require-number.js';
import type { Answer, AnswerSetup, Delivery } from './answer.js';
import { ApiError, invalid, TOO_LONG, tooLong } from './api-error.js';
import type { QueueClient } from './fair-queue.js';
import type { FormatField } from './format-fields.js';
import { isInteger, type RequestFields } from './request-fields.js';
import type { ContinuationOptions } from './served-engine.js';
import type { ServedModel } from './served-model.js';
import type { CallPlan } from './tools.js';

/** The sampling of a request. */
export type Options = ContinuationOptions & { n: number };

/** A checked request. */
export interface ParsedRequest {
  /** The requested model; null: the model of the server. */
  model: string | null;
  /** `maxNewTokens`: the server's default, if it has one. */
  options: Options;
  /** The requested number of tokens, if the request has one. */
  asked: number | undefined;
  /** The field of `asked`, for messages about it. */
  askedField: string;
  delivery: Delivery;
  /** Opens the answer, in the format of its route. */
  open: (setup: AnswerSetup) => Answer;
  /** How the text of an answer is read; null if all of it is content. */
  plan: CallPlan | null;
  /** The field that gives `options.format`; null, or absent, for any text. */
  formatField?: FormatField | null;
  /** The field with the prompt, for messages about its length. */
  promptField: string;
  /** Text before each choice of a prompt (`echo`); null without echo. */
  echo: ((prompt: number) => string) | null;
  /** Tokens of each prompt. Rejects with the reason of the asker's signal when it is aborted. */
  prompts(asker: QueueClient): Promise<readonly (readonly number[])[]>;
}

/** Texts of `stop`: OpenAI takes 4. */
const STOPS = 16;
/** Tokens that logit_bias may name. */
const BIASED = 1024;
/** Maximum number of alternatives of a token. */
export const TOP_LOGPROBS = 20;
const { doSample: _, ...OPTIONS } = SAMPLING;

/** The engine's options with the limits of OpenAI and vLLM. */
const SAMPLED = {
  ...OPTIONS,
  temperature: number('', { min: 0, max: 2 }),
  /** 0 would leave no token to sample. */
  topP: number('', { above: 0, max: 1 }),
  /** -1 stands for all tokens, as in vLLM. */
  topK: declareOption((op, k: number) => Math.max(0, requireInteger(op, k, -1)), ''),
  presencePenalty: number('', { min: -2, max: 2 }),
  frequencyPenalty: number('', { min: -2, max: 2 }),
  priority: integer(''),
  /** The seeds of the engine are not negative. */
  seed: declareOption((op, seed: number) => {
    const given = requireInteger(op, seed, Number.MIN_SAFE_INTEGER);
    return given < 0 ? Number(BigInt.asUintN(53, BigInt(given))) : given;
  }, ''),
};

/** Sampling options of the request over the defaults, and its number of tokens. */
export function readOptions(
  fields: RequestFields,
  { vocabSize, limits, defaults, tokenizer }: ServedModel,
  minTokens = 1,
): Pick<ParsedRequest, 'options' | 'asked' | 'askedField'> {
  const given: ContinuationOptions = {
    ...fields.declared(SAMPLED),
    logitBias: logitBias(fields.any('logit_bias'), vocabSize),
    stop: fields.texts('stop', STOPS),
    stopTokens: fields.tokens('stop_token_ids', vocabSize),
    ignoreEos: fields.flag('ignore_eos'),
    cacheSalt: fields.text('cache_salt'),
  };
  if (given.stop && !tokenizer) {
    throw invalid('stop', 'stop_token_ids of a model without a tokenizer', 'strings');
  }
  const givenEntries = Object.entries(given).filter(([, value]) => value !== undefined);
  const n = fields.integer('n', 1, limits.answers) ?? 1;
  const options = { ...defaults, ...Object.fromEntries(givenEntries), n };
  return { options, ...maxNewTokens(fields, minTokens) };
}

/** How the answer of a request is sent. */
export function readDelivery(fields: RequestFields, { tokenizer }: ServedModel): Delivery {
  const stream = fields.flag('stream') ?? false;
  const options = fields.inside('stream_options');
  if (options && !stream) throw invalid('stream_options', '"stream": true with it', 'no stream');
  const includeUsage = options?.flag('include_usage') ?? false;
  options?.flag('include_obfuscation'); // Pads events, and leaves the answer as it is.
  options?.requireKnown();
  // Without a tokenizer, an answer has only token ids.
  const tokenIds = fields.flag('return_token_ids') ?? tokenizer === null;
  return { stream, includeUsage, tokenIds };
}

/**
 * The requested number of tokens, and the field of the request that has it, for messages. A request
 * may set both names to one value.
 */
function maxNewTokens(
  fields: RequestFields,
  min: number,
): Pick<ParsedRequest, 'asked' | 'askedField'> {
  const old = fields.integer('max_tokens', min);
  const max = fields.integer('max_completion_tokens', min);
  if (old !== undefined && max !== undefined && old !== max) {
    throw invalid('max_tokens', `max_completion_tokens, ${max}, or nothing`, `${old}`);
  }
  return max === undefined
    ? { asked: old, askedField: 'max_tokens' }
    : { asked: max, askedField: 'max_completion_tokens' };
}

function logitBias(
  given: JsonValue | undefined,
  vocabSize: number,
): Record<number, number> | undefined {
  if (given === undefined) return undefined;
  if (!isObject(given)) throw invalid('logit_bias', 'an object of numbers', formatValue(given));
  const entries = Object.entries(given);
  if (entries.length > BIASED) {
    throw invalid('logit_bias', `at most ${BIASED} tokens`, `${entries.length}`);
  }
  for (const [token, bias] of entries) {
    const location = `logit_bias[${token.slice(0, 20)}]`;
    if (!/^\d+$/.test(token) || !isInteger(Number(token), 0, vocabSize - 1)) {
      throw invalid(location, `tokens below ${vocabSize} as keys`, formatValue(token));
    }
    if (typeof bias !== 'number' || bias < -100 || bias > 100) {
      throw invalid(location, 'a number from -100 to 100', formatValue(bias));
    }
  }
  return given as Record<number, number>;
}

/**
 * The options with `maxNewTokens` for a prompt of `length` tokens. Throws 400 if the prompt or
 * the requested number does not fit, or if `min_tokens` is larger.
 */
export function withinContext(
  { options, asked, promptField, askedField }: ParsedRequest,
  length: number,
  { maxTokens, maxPromptTokens }: ServedModel,
): Options {
  const room = maxTokens - length;
  if (length > maxPromptTokens) throw tooLong(promptField, `${length}`, maxPromptTokens);
  if (asked !== undefined && asked > room) {
    const message = `${askedField}: expected at most ${maxTokens} tokens of prompt and answer, got ${length} and ${asked}. Lower ${askedField}, or shorten the prompt.`;
    throw new ApiError(400, message, { param: askedField, code: TOO_LONG });
  }
  const maxNewTokens = asked ?? Math.min(options.maxNewTokens ?? room, room);
  const { minTokens = 0 } = options;
  if (minTokens > maxNewTokens) {
    const expected = `at most the ${maxNewTokens} new tokens of the answer`;
    throw invalid('min_tokens', expected, `${minTokens}`);
  }
  return { ...options, maxNewTokens };
}
