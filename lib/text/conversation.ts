// Reads a conversation from a row with the keys of TRL or ShareGPT: messages, tools and template
// variables.

import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { ownValue } from '../runtime/own-value.js';
import type { ChatMessage } from './chat-template.js';
import type { Row } from './row-reader.js';

/** A row of a conversation as Tokenizer.applyChatTemplate() takes it. */
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
 * Returns null for a row without a conversation, and for one with `input_ids`. Throws DS_DATA for
 * an unknown speaker, and as inputsIn() does.
 */
export function conversationIn(row: Row, location: () => string): Conversation | null {
  const { messages, conversations, system, input_ids: ids } = row;
  const inputs = () => inputsIn(row, location);
  if (messages !== undefined && messages !== null) {
    return { messages: messagesOf(messages, location), inputs: inputs() };
  }
  if (conversations === undefined || conversations === null) return null;
  if (ids !== undefined && ids !== null) return null;
  const said = messagesOf(conversations, location);
  const hasSystemColumn = typeof system === 'string' && system !== '' && said[0]?.role !== 'system';
  const first = hasSystemColumn ? [{ role: 'system', content: system }] : [];
  return { messages: hasSystemColumn ? [...first, ...said] : said, inputs: inputs() };
}

/**
 * Converts ShareGPT's `from` and `value` to `role` and `content`. Other values than lists pass
 * through: the template refuses them. Throws DS_DATA.
 */
export function messagesOf(list: unknown, location: () => string): readonly ChatMessage[] {
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
 * The tools of a row, a list or one as JSON, and its `chat_template_kwargs`. Throws DS_DATA for
 * others.
 */
export function inputsIn(
  { tools, chat_template_kwargs: variables }: Row,
  location: () => string,
): TemplateInputs {
  const hasVariables = variables !== undefined && variables !== null;
  if (hasVariables && !isObject(variables)) {
    const expected = 'an object under chat_template_kwargs';
    throw dataError(location(), expected, formatValue(variables));
  }
  const listed = toolsOf(tools, location);
  return { ...(listed && { tools: listed }), ...(hasVariables && { variables }) };
}

function toolsOf(given: unknown, location: () => string): object[] | null {
  if (given === undefined || given === null || given === '') return null;
  const list = typeof given === 'string' ? parseText(given) : given;
  if (Array.isArray(list)) return list;
  throw dataError(location(), 'tools as a list, or as the JSON of one', formatValue(given));
}

function parseText(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null; // The caller refuses null.
  }
}
