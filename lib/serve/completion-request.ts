// POST /v1/completions: texts or tokens to be continued.

import type { JsonObject, JsonValue } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import { required } from '../runtime/required.js';
import type { Tokenizer } from '../text/index.js';
import { answersIn } from './answer.js';
import { TextFormat } from './answer-format.js';
import { invalid } from './api-error.js';
import type { QueueClient } from './fair-queue.js';
import { formatOf } from './format-fields.js';
import { type ParsedRequest, readDelivery, readOptions, TOP_LOGPROBS } from './parsed-request.js';
import { isInteger, RequestFields } from './request-fields.js';
import type { ServedModel } from './served-model.js';
import { requireSupportedInTexts } from './unsupported.js';

/** OpenAI's default of max_tokens. */
const USUAL_TOKENS = 16;

type Prompt = string | readonly number[];

/** Throws 400, naming the field that is wrong. */
export function readCompletion(body: JsonObject, served: ServedModel): ParsedRequest {
  const { tokenizer } = served;
  const fields = new RequestFields(body);
  requireSupportedInTexts(fields);
  const prompts = promptsOf(fields.any('prompt'), served);
  const echo = fields.flag('echo') ?? false;
  // An echo needs no new token.
  const { options, asked, askedField } = readOptions(fields, served, echo ? 0 : 1);
  const logprobs = fields.integer('logprobs', 0, TOP_LOGPROBS);
  if (echo && logprobs !== undefined && !served.engine.promptLogprobs) {
    throw invalid('echo', 'false with logprobs: the engine computes none for prompts', 'true');
  }
  const formatField = formatOf(fields, served);
  const parsed: ParsedRequest = {
    model: fields.text('model') ?? null,
    options: {
      maxNewTokens: USUAL_TOKENS,
      ...options,
      logprobs,
      ...(formatField && { format: formatField.format }),
    },
    formatField,
    asked,
    askedField,
    delivery: readDelivery(fields, served),
    open: answersIn(new TextFormat(tokenizer)),
    plan: null,
    promptField: 'prompt',
    echo: echo ? (index) => textOf(required(prompts[index]), tokenizer) : null,
    prompts: (asker) => Promise.all(prompts.map((prompt) => tokensOf(prompt, served, asker))),
  };
  fields.requireKnown();
  return parsed;
}

async function tokensOf(
  prompt: Prompt,
  { reader }: ServedModel,
  asker: QueueClient,
): Promise<readonly number[]> {
  if (typeof prompt !== 'string') return prompt;
  const tokens = (await reader?.text(prompt, asker)) ?? [];
  if (tokens.length > 0) return tokens;
  throw invalid('prompt', 'at least one token', formatValue(prompt));
}

const textOf = (prompt: Prompt, tokenizer: Tokenizer | null): string =>
  typeof prompt === 'string'
    ? prompt
    : (tokenizer?.decode(prompt.filter((id) => tokenizer.hasToken(id))) ?? '');

/** A text, a list of tokens, or a list of either. */
function promptsOf(given: JsonValue | undefined, served: ServedModel): Prompt[] {
  if (given === undefined) throw invalid('prompt', 'a string or tokens', 'nothing');
  const isList = Array.isArray(given) && (given.length === 0 || typeof given[0] !== 'number');
  const prompts = isList ? given : [given];
  const { limits, tokenizer } = served;
  if (prompts.length === 0 || prompts.length > limits.prompts) {
    throw invalid('prompt', `1 to ${limits.prompts} prompts`, `${prompts.length}`);
  }
  return prompts.map((prompt, i) => {
    const location = isList ? `prompt[${i}]` : 'prompt';
    if (typeof prompt === 'string' && tokenizer) return prompt;
    if (typeof prompt === 'string') {
      const expected = 'a list of tokens: this model came without tokenizer.json';
      throw invalid(location, expected, 'a string');
    }
    return promptTokens(location, prompt, served.vocabSize);
  });
}

function promptTokens(location: string, prompt: JsonValue, vocabSize: number): readonly number[] {
  const isTokens = Array.isArray(prompt) && prompt.length > 0;
  if (isTokens && prompt.every((item) => isInteger(item, 0, vocabSize - 1))) {
    return prompt;
  }
  throw invalid(location, `a string, or a list of tokens below ${vocabSize}`, formatValue(prompt));
}
