// POST /v1/chat/completions: a conversation to be answered.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import type { ChatMessage } from '../text/index.js';
import { ChatFormat } from './answer-format.js';
import { ApiError, invalid, unsupported } from './api-error.js';
import type { Asker } from './fair-queue.js';
import { type ParsedRequest, readDelivery, readOptions, TOP_LOGPROBS } from './parsed-request.js';
import type { ChatPromptOptions, PromptReader } from './prompt-reader.js';
import { RequestFields } from './request-fields.js';
import type { ServedModel } from './served-model.js';
import { readTools } from './tools.js';
import { requireSupported } from './unsupported.js';

const ROLES = ['system', 'developer', 'user', 'assistant', 'tool', 'function'];
/** Messages of one conversation. */
const MOST_MESSAGES = 4096;

/** Throws 400, naming the field that is wrong. */
export function readChat(body: JsonObject, served: ServedModel): ParsedRequest {
  const fields = new RequestFields(body);
  const prompt = readPrompt(fields, served);
  requireSupported(fields);
  const { options, asked } = readOptions(fields, served);
  const parsed: ParsedRequest = {
    model: fields.text('model') ?? null,
    options: { ...options, logprobs: logprobs(fields), beginsText: !continues(fields) },
    asked,
    delivery: readDelivery(fields, served),
    format: new ChatFormat(served.tokenizer),
    promptField: 'messages',
    echo: null,
    prompts: async (asker) => [await prompt(asker)],
  };
  fields.requireKnown();
  return parsed;
}

/** Returns a function that tokenizes the messages. Throws 400 with the name of the wrong field. */
export function readPrompt(
  fields: RequestFields,
  served: ServedModel,
): (asker: Asker) => Promise<number[]> {
  const reader = requireTemplate(served);
  const tools = readTools(fields, reader.knowsTools);
  const messages = messagesOf(fields.any('messages'));
  const options = { ...chatOptions(fields), ...(tools.length > 0 ? { tools } : {}) };
  return (asker) => reader.chat(messages, options, asker);
}

function requireTemplate({ canChat, reader }: ServedModel): PromptReader {
  if (canChat && reader) return reader;
  const message =
    'messages: expected a model with a chat template, got a model without one. Use /v1/completions, or start the server with --chat-template.';
  throw new ApiError(400, message, { param: 'messages', code: 'no_chat_template' });
}

function logprobs(fields: RequestFields): number | undefined {
  const wanted = fields.flag('logprobs') ?? false;
  const top = fields.integer('top_logprobs', 0, TOP_LOGPROBS);
  if (top !== undefined && !wanted) {
    throw invalid('top_logprobs', '"logprobs": true with it', 'top_logprobs only');
  }
  return wanted ? (top ?? 0) : undefined;
}

/** Whether the answer continues the last message. */
const continues = (fields: RequestFields): boolean =>
  fields.flag('continue_final_message') ?? false;

/** The names are vLLM's. */
function chatOptions(fields: RequestFields): ChatPromptOptions {
  const continueFinalMessage = continues(fields);
  const addGenerationPrompt = fields.flag('add_generation_prompt') ?? !continueFinalMessage;
  if (addGenerationPrompt && continueFinalMessage) {
    const expected = 'false with continue_final_message';
    throw invalid('add_generation_prompt', expected, 'true');
  }
  const variables = fields.object('chat_template_kwargs') ?? {};
  return { addGenerationPrompt, continueFinalMessage, variables };
}

function messagesOf(given: JsonValue | undefined): ChatMessage[] {
  const isList = Array.isArray(given) && given.length > 0;
  if (!isList) throw invalid('messages', 'a list of messages', formatValue(given));
  if (given.length > MOST_MESSAGES) {
    throw invalid('messages', `at most ${MOST_MESSAGES}`, `${given.length}`);
  }
  return given.map((message, i) => messageOf(message, `messages[${i}]`));
}

function messageOf(given: JsonValue, location: string): ChatMessage {
  if (!isObject<JsonObject>(given))
    throw invalid(location, 'an object with role and content', formatValue(given));
  const { role, content, name, tool_call_id: call, reasoning_content: thought, ...others } = given;
  if (typeof role !== 'string' || !ROLES.includes(role)) {
    throw invalid(`${location}.role`, ROLES.join(', '), formatValue(role));
  }
  // Clients send answers of this server back, with null and empty fields.
  const [other] = Object.entries(others).filter(([, value]) => !isNothing(value));
  if (other) throw unsupported(`${location}.${other[0].slice(0, 60)}`, 'messages are texts');
  const said = { role, content: textOf(content, `${location}.content`) };
  const texts = { name, tool_call_id: call, reasoning_content: thought };
  const named = Object.entries(texts).filter(([, one]) => !isNothing(one));
  const odd = named.find(([, one]) => typeof one !== 'string');
  if (odd) throw invalid(`${location}.${odd[0]}`, 'a string', formatValue(odd[1]));
  return { ...said, ...Object.fromEntries(named) };
}

const isNothing = (value: JsonValue | undefined): boolean =>
  value === null || value === undefined || (Array.isArray(value) && value.length === 0);

/** A text, or a list of parts that are texts. */
function textOf(content: JsonValue | undefined, location: string): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) {
    throw invalid(location, 'a text, or a list of parts that are texts', formatValue(content));
  }
  const texts = content.map((part, i) => {
    const { type, text } = isObject<JsonObject>(part) ? part : {};
    if (type === 'text' && typeof text === 'string') return text;
    if (typeof type === 'string' && type !== 'text') {
      const got = type.slice(0, 60);
      throw unsupported(`${location}[${i}].type`, `"${got}" is no text, and the model reads texts`);
    }
    throw invalid(`${location}[${i}]`, '{ "type": "text", "text": "..." }', formatValue(part));
  });
  return texts.join('\n');
}
