// Handles POST /tokenize and /detokenize, with the fields of vLLM.
import type { JsonObject } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import type { Tokenizer } from '../text/index.js';
import { findAdapter } from './adapters.js';
import { ApiError, invalidError } from './api-error.js';
import { readPrompt } from './chat-request.js';
import type { QueueClient } from './fair-queue.js';
import type { PromptReader } from './prompt-reader.js';
import { RequestFields } from './request-fields.js';
import type { ServedModel } from './served-model.js';

/** The tokenizer of a model, and the reader that runs it in threads. */
interface TokenizerParts {
  tokenizer: Tokenizer;
  reader: PromptReader;
}

/** Returns the tokens of `prompt`, or of `messages` in the chat template. Throws 400, 404. */
export async function tokenize(
  body: JsonObject,
  served: ServedModel,
  queueClient: QueueClient,
): Promise<JsonObject> {
  const fields = new RequestFields(body);
  const { tokenizer, reader } = requireTokenizer(fields, served);
  const withStrings = fields.flag('return_token_strs') ?? false;
  const read = readTokenizeInput(fields, served, reader);
  fields.requireKnown();
  const tokens = await read(queueClient);
  return {
    count: tokens.length,
    max_model_len: served.maxTokens,
    tokens,
    token_strs: withStrings ? tokens.map((id) => tokenizer.idToToken(id)) : null,
  };
}

function readTokenizeInput(
  fields: RequestFields,
  served: ServedModel,
  reader: PromptReader,
): (queueClient: QueueClient) => Promise<number[]> {
  const prompt = fields.any('prompt');
  if (fields.any('messages') === undefined) {
    if (typeof prompt !== 'string') throw invalidError('prompt', 'a string', formatValue(prompt));
    const addSpecialTokens = fields.flag('add_special_tokens') ?? true;
    return (queueClient) => reader.encodeAny(prompt, addSpecialTokens, queueClient);
  }
  if (prompt !== undefined) throw invalidError('prompt', 'either prompt or messages', 'both');
  return readPrompt(fields, served).prompt;
}

/** Returns the text of `tokens`. Throws 400, 404. */
export async function detokenize(
  body: JsonObject,
  served: ServedModel,
  queueClient: QueueClient,
): Promise<JsonObject> {
  const fields = new RequestFields(body);
  const { tokenizer, reader } = requireTokenizer(fields, served);
  const tokens = fields.tokens('tokens', served.vocabSize);
  if (!tokens) throw invalidError('tokens', 'a list of tokens', 'nothing');
  fields.requireKnown();
  return {
    prompt: await reader.decode(
      tokens.filter((id) => tokenizer.hasToken(id)),
      queueClient,
    ),
  };
}

/** Returns the special tokens and the chat template, for clients that tokenize themselves. */
export function describeTokenizer({ tokenizer }: ServedModel): JsonObject {
  if (!tokenizer) throw noTokenizerError();
  const nameOf = (id: number | null): string | null =>
    id === null ? null : tokenizer.idToToken(id);
  const { bosId, eosId, padId, unkId, modelMaxLength } = tokenizer;
  return {
    tokenizer_class: 'PreTrainedTokenizerFast',
    bos_token: nameOf(bosId),
    eos_token: nameOf(eosId),
    pad_token: nameOf(padId),
    unk_token: nameOf(unkId),
    model_max_length: modelMaxLength,
    chat_template: tokenizer.templateText('default'),
  };
}

function noTokenizerError(): ApiError {
  const message = 'This model has no tokenizer: its prompts and answers are tokens.';
  return new ApiError(400, message, { code: 'no_tokenizer' });
}

function requireTokenizer(fields: RequestFields, served: ServedModel): TokenizerParts {
  const { tokenizer, reader } = served;
  findAdapter(served, fields.text('model'));
  if (tokenizer && reader) return { tokenizer, reader };
  throw noTokenizerError();
}
