// Reads a conversation from a row with TRL's or ShareGPT's keys: messages, tools and template
// variables.

import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { ownValue } from '../runtime/own-value.js';
import type { ChatMessage } from './chat-template.js';
import type { Row } from './row-reader.js';

/** The arguments of Tokenizer.applyChatTemplate() from a row. */
export interface Conversation {
  messages: readonly ChatMessage[];
  inputs: TemplateInputs;
}

/** The tools and template variables of a row. */
export interface TemplateInputs {
  tools?: object[];
  variables?: Record<string, unknown>;
}

/** Maps the speakers of ShareGPT's messages to the roles of templates. */
const SPEAKERS: Readonly<Record<string, string>> = {
  human: 'user',
  user: 'user',
  gpt: 'assistant',
  assistant: 'assistant',
  system: 'system',
  tool: 'tool',
};

/**
 * Reads `messages` or `conversations`; with the latter, `system` may hold the system prompt.
 * Returns null for a row without a conversation, and for a row with `input_ids`. Throws DS_DATA for
 * an unknown speaker, and as readInputs() does.
 */
export function readConversation(row: Row, location: () => string): Conversation | null {
  const { messages, conversations, system, input_ids: ids } = row;
  const inputs = () => readInputs(row, location);
  if (messages !== undefined && messages !== null) {
    return { messages: convertMessages(messages, location), inputs: inputs() };
  }
  if (conversations === undefined || conversations === null) return null;
  if (ids !== undefined && ids !== null) return null;
  const converted = convertMessages(conversations, location);
  const hasSystemColumn =
    typeof system === 'string' && system !== '' && converted[0]?.role !== 'system';
  const first = hasSystemColumn ? [{ role: 'system', content: system }] : [];
  return { messages: hasSystemColumn ? [...first, ...converted] : converted, inputs: inputs() };
}

/**
 * Converts ShareGPT's `from` and `value` to `role` and `content`. Returns other values unchanged;
 * the template refuses them. Throws DS_DATA for an unknown `from`.
 */
export function convertMessages(list: unknown, location: () => string): readonly ChatMessage[] {
  if (!Array.isArray(list)) return list as ChatMessage[];
  return list.map((message: unknown) => {
    if (!isObject(message) || message.role !== undefined || message.from === undefined) {
      return message as ChatMessage;
    }
    const { from, value, ...rest } = message;
    const role = typeof from === 'string' ? ownValue(SPEAKERS, from) : undefined;
    if (role !== undefined) return { ...rest, role, content: value };
    const expected = `"from" of ${Object.keys(SPEAKERS).join(', ')}`;
    const hint = 'Rows with other speakers: write { role, content } as the chat template has them.';
    throw dataError(location(), expected, formatValue(from), hint);
  });
}

/**
 * Reads the tools of a row (a list, or its JSON) and `chat_template_kwargs`. Throws DS_DATA for
 * other values.
 */
export function readInputs(
  { tools, chat_template_kwargs: variables }: Row,
  location: () => string,
): TemplateInputs {
  const hasVariables = variables !== undefined && variables !== null;
  if (hasVariables && !isObject(variables)) {
    const expected = 'an object under chat_template_kwargs';
    throw dataError(location(), expected, formatValue(variables));
  }
  const listed = readTools(tools, location);
  return { ...(listed && { tools: listed }), ...(hasVariables && { variables }) };
}

function readTools(tools: unknown, location: () => string): object[] | null {
  if (tools === undefined || tools === null || tools === '') return null;
  const list = typeof tools === 'string' ? parseJson(tools) : tools;
  if (Array.isArray(list)) return list;
  throw dataError(location(), 'tools as a list, or as the JSON of one', formatValue(tools));
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null; // The caller refuses null.
  }
}
