// What a row of a conversation says, by the keys of TRL and of ShareGPT: messages, tools, and what
// the template is told beside them.

import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { dataError } from '../runtime/refused.js';
import type { ChatMessage } from './chat-template.js';
import type { Row } from './row-reader.js';

/** A row of a conversation as Tokenizer.applyChatTemplate() takes it. */
export interface Conversation {
  messages: readonly ChatMessage[];
  told: Told;
}

/** What a row says to the template beside its messages. */
export interface Told {
  tools?: object[];
  variables?: Record<string, unknown>;
}

/** Who speaks in ShareGPT's messages, and the roles of templates. */
const SPEAKERS: Readonly<Record<string, string>> = {
  ...{ human: 'user', user: 'user', gpt: 'assistant', assistant: 'assistant' },
  ...{ system: 'system', tool: 'tool' },
};

/**
 * The conversation of a row, under `messages` or `conversations`, whose system prompt may stand
 * beside it; null where it has none, or conversations that are tokens already. Throws DS_DATA for a
 * speaker that no role is known of, and what toldIn() throws.
 */
export function conversationIn(row: Row, place: () => string): Conversation | null {
  const { messages, conversations, system, input_ids: ids } = row;
  const told = () => toldIn(row, place);
  if (messages !== undefined && messages !== null) {
    return { messages: messagesOf(messages, place), told: told() };
  }
  if (conversations === undefined || conversations === null) return null;
  if (ids !== undefined && ids !== null) return null;
  const said = messagesOf(conversations, place);
  const isBeside = typeof system === 'string' && system !== '' && said[0]?.role !== 'system';
  const first = isBeside ? [{ role: 'system', content: system }] : [];
  return { messages: isBeside ? [...first, ...said] : said, told: told() };
}

/**
 * Messages with `role` and `content` for ShareGPT's `from` and `value`; what is no list is left to
 * the template's own check. Throws DS_DATA.
 */
export function messagesOf(list: unknown, place: () => string): readonly ChatMessage[] {
  if (!Array.isArray(list)) return list as ChatMessage[];
  return list.map((message: unknown) => {
    if (!isObject(message) || message.role !== undefined || message.from === undefined) {
      return message as ChatMessage;
    }
    const { from, value, ...rest } = message;
    const role = typeof from === 'string' ? SPEAKERS[from] : undefined;
    if (role !== undefined) return { ...rest, role, content: value };
    const expected = `"from" of ${Object.keys(SPEAKERS).join(', ')}`;
    const hint = 'Rows with other speakers: write { role, content } as the chat template has them.';
    throw dataError(place(), expected, formatValue(from), hint);
  });
}

/**
 * The tools of a row, a list or one as JSON, and its `chat_template_kwargs`. Throws DS_DATA for
 * others.
 */
export function toldIn({ tools, chat_template_kwargs: variables }: Row, place: () => string): Told {
  const hasVariables = variables !== undefined && variables !== null;
  if (hasVariables && !isObject(variables)) {
    const expected = 'an object under chat_template_kwargs';
    throw dataError(place(), expected, formatValue(variables));
  }
  const listed = toolsOf(tools, place);
  return { ...(listed && { tools: listed }), ...(hasVariables && { variables }) };
}

function toolsOf(given: unknown, place: () => string): object[] | null {
  if (given === undefined || given === null || given === '') return null;
  const list = typeof given === 'string' ? parsed(given) : given;
  if (Array.isArray(list)) return list;
  throw dataError(place(), 'tools as a list, or as the JSON of one', formatValue(given));
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null; // Refused as what is no list.
  }
}
