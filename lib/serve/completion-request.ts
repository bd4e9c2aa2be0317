// Parses POST /v1/completions.

import type { JsonObject, JsonValue } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import { required } from '../runtime/required.js';
import type { Tokenizer } from '../text/index.js';
import { answerOpener } from './answer.js';
import { TextFormat } from './answer-format.js';
import { invalidError } from './api-error.js';
import type { QueueClient } from './fair-queue.js';
import { readFormatField } from './format-fields.js';
import { type ParsedRequest, readDelivery, readOptions, TOP_LOGPROBS } from './parsed-request.js';
import { isInteger, RequestFields } from './request-fields.js';
import type { ServedModel } from './served-model.js';
import { requireSupportedInTexts } from './unsupported.js';

/** OpenAI's default of max_tokens. */
const DEFAULT_TOKENS = 16;

type Prompt = string | readonly number[];

/** Parses the request. Throws 400, naming the wrong field. */
export function readCompletion(body: JsonObject, served: ServedModel): ParsedRequest {
  const { tokenizer } = served;
  const fields = new RequestFields(body);
  requireSupportedInTexts(fields);
  const prompts = readPrompts(fields.any('prompt'), served);
  const echo = fields.flag('echo') ?? false;
  // An echo needs no new token.
  const { options, requestedTokens, requestedField } = readOptions(fields, served, echo ? 0 : 1);
  const logprobs = fields.integer('logprobs', 0, TOP_LOGPROBS);
  if (echo && logprobs !== undefined && !served.engine.promptLogprobs) {
    throw invalidError('echo', 'false with logprobs: the engine computes none for prompts', 'true');
  }
  const formatField = readFormatField(fields, served);
  const parsed: ParsedRequest = {
    model: fields.text('model') ?? null,
    options: {
      maxNewTokens: DEFAULT_TOKENS,
      ...options,
      logprobs,
      ...(formatField && { format: formatField.format }),
    },
    formatField,
    requestedTokens,
    requestedField,
    delivery: readDelivery(fields, served),
    open: answerOpener(new TextFormat(tokenizer)),
    plan: null,
    promptField: 'prompt',
    echo: echo ? (index) => promptText(required(prompts[index]), tokenizer) : null,
    prompts: (queueClient) =>
      Promise.all(prompts.map((prompt) => tokenizePrompts(prompt, served, queueClient))),
  };
  fields.requireKnown();
  return parsed;
}

async function tokenizePrompts(
  prompt: Prompt,
  { reader }: ServedModel,
  queueClient: QueueClient,
): Promise<readonly number[]> {
  if (typeof prompt !== 'string') return prompt;
  const tokens = (await reader?.encode(prompt, queueClient)) ?? [];
  if (tokens.length > 0) return tokens;
  throw invalidError('prompt', 'at least one token', formatValue(prompt));
}

const promptText = (prompt: Prompt, tokenizer: Tokenizer | null): string =>
  typeof prompt === 'string'
    ? prompt
    : (tokenizer?.decode(prompt.filter((id) => tokenizer.hasToken(id))) ?? '');

/** Reads `prompt`: a text, a list of tokens, or a list of either. */
function readPrompts(value: JsonValue | undefined, served: ServedModel): Prompt[] {
  if (value === undefined) throw invalidError('prompt', 'a string or tokens', 'nothing');
  const isList = Array.isArray(value) && (value.length === 0 || typeof value[0] !== 'number');
  const prompts = isList ? value : [value];
  const { limits, tokenizer } = served;
  if (prompts.length === 0 || prompts.length > limits.prompts) {
    throw invalidError('prompt', `1 to ${limits.prompts} prompts`, `${prompts.length}`);
  }
  return prompts.map((prompt, i) => {
    const location = isList ? `prompt[${i}]` : 'prompt';
    if (typeof prompt === 'string' && tokenizer) return prompt;
    if (typeof prompt === 'string') {
      const expected = 'a list of tokens: this model came without tokenizer.json';
      throw invalidError(location, expected, 'a string');
    }
    return readTokens(location, prompt, served.vocabSize);
  });
}

function readTokens(location: string, prompt: JsonValue, vocabSize: number): readonly number[] {
  const isTokens = Array.isArray(prompt) && prompt.length > 0;
  if (isTokens && prompt.every((item) => isInteger(item, 0, vocabSize - 1))) {
    return prompt;
  }
  throw invalidError(
    location,
    `a string, or a list of tokens below ${vocabSize}`,
    formatValue(prompt),
  );
}
