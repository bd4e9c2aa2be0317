// Converts messages of /v1/messages, which are lists of blocks, to chat messages.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import { formatValue } from '../../runtime/format-value.js';
import { isObject } from '../../runtime/is-object.js';
import { invalidError, unsupportedError } from '../api-error.js';

/** Maximum number of messages in a request. */
const MAX_MESSAGES = 8192;

/**
 * Start of a text that Claude Code writes first into the system prompt. It differs in each request,
 * so with it no prompt would be found in the prefix cache.
 */
const BILLING = 'x-anthropic-billing-header:';

/** A message of a chat request. */
interface Message {
  [key: string]: JsonValue;
  role: string;
}

/** Reads `system` and `messages` as chat messages. Throws 400 with the name of the wrong field. */
export function blocksToMessages(
  system: JsonValue | undefined,
  messages: JsonValue | undefined,
): Message[] {
  if (!Array.isArray(messages) || messages.length === 0) {
    throw invalidError('messages', 'a list of messages', formatValue(messages));
  }
  if (messages.length > MAX_MESSAGES) {
    throw invalidError('messages', `at most ${MAX_MESSAGES}`, `${messages.length}`);
  }
  const instructions = system === undefined ? [] : textsOf(system, 'system');
  const systemTexts = instructions.filter((text) => text !== '' && !text.startsWith(BILLING));
  const chat = new ChatBuilder();
  if (systemTexts.length > 0) chat.add('system', systemTexts.join('\n'));
  for (const [i, message] of messages.entries()) addMessage(chat, message, `messages[${i}]`);
  return chat.messages;
}

/** Collects chat messages. Texts of the same role in a row become one message. */
class ChatBuilder {
  readonly messages: Message[] = [];

  add(role: string, text: string): void {
    const last = this.messages.at(-1);
    if (last?.role === role && !last.tool_calls) {
      last.content = last.content === null ? text : `${last.content as string}\n${text}`;
    } else this.messages.push({ role, content: text });
  }

  addThought(text: string): void {
    const message = this.openAssistant();
    message.reasoning_content = `${message.reasoning_content ?? ''}${text}`;
  }

  addCall(call: JsonObject): void {
    const message = this.openAssistant();
    if (Array.isArray(message.tool_calls)) message.tool_calls.push(call);
    else message.tool_calls = [call];
  }

  addResult(call: string, content: string): void {
    this.messages.push({ role: 'tool', tool_call_id: call, content });
  }

  private openAssistant(): Message {
    const last = this.messages.at(-1);
    if (last?.role === 'assistant') return last;
    const opened = { role: 'assistant', content: null };
    this.messages.push(opened);
    return opened;
  }
}

function addMessage(chat: ChatBuilder, message: JsonValue, location: string): void {
  if (!isObject<JsonObject>(message))
    throw invalidError(location, 'an object with role and content', formatValue(message));
  const { role, content } = message;
  if (role !== 'user' && role !== 'assistant' && role !== 'system') {
    throw invalidError(`${location}.role`, '"user" or "assistant"', formatValue(role));
  }
  if (role === 'system') {
    // Claude Code sends notes in the middle of a conversation. Many templates have one system
    // message at the start, and refuse or drop others.
    const text = textsOf(content ?? null, `${location}.content`).join('\n');
    chat.add('user', `<system>\n${text}\n</system>`);
    return;
  }
  if (typeof content === 'string') {
    chat.add(role, content);
    return;
  }
  if (!Array.isArray(content)) {
    const expected = 'a string, or a list of blocks';
    throw invalidError(`${location}.content`, expected, formatValue(content));
  }
  for (const [i, block] of content.entries()) {
    const place = `${location}.content[${i}]`;
    if (!isObject<JsonObject>(block)) throw invalidError(place, 'a block', formatValue(block));
    if (role === 'assistant') addAnswerBlock(chat, block, place);
    else addUserBlock(chat, block, place);
  }
}

function addUserBlock(chat: ChatBuilder, block: JsonObject, place: string): void {
  if (block.type !== 'tool_result') {
    chat.add('user', textOf(block, place));
    return;
  }
  const { tool_use_id: id, content = '' } = block;
  if (typeof id !== 'string') throw invalidError(`${place}.tool_use_id`, 'an id', formatValue(id));
  chat.addResult(id, textsOf(content ?? '', `${place}.content`).join('\n'));
}

function addAnswerBlock(chat: ChatBuilder, block: JsonObject, place: string): void {
  const { type, thinking, id, name, input = {} } = block;
  if (type === 'redacted_thinking') return; // Only the model that wrote it can read it.
  if (type === 'thinking') {
    if (typeof thinking !== 'string')
      throw invalidError(`${place}.thinking`, 'a string', formatValue(thinking));
    chat.addThought(thinking);
  } else if (type === 'tool_use') {
    if (typeof id !== 'string') throw invalidError(`${place}.id`, 'an id', formatValue(id));
    if (typeof name !== 'string' || name === '')
      throw invalidError(`${place}.name`, 'a name', formatValue(name));
    if (!isObject<JsonObject>(input))
      throw invalidError(`${place}.input`, 'an object', formatValue(input));
    chat.addCall({ id, type: 'function', function: { name, arguments: input } });
  } else chat.add('assistant', textOf(block, place));
}

/** Returns the texts of a content: a string, or a list of text blocks. */
function textsOf(content: JsonValue, location: string): string[] {
  if (typeof content === 'string') return [content];
  if (!Array.isArray(content)) {
    throw invalidError(location, 'a string, or a list of text blocks', formatValue(content));
  }
  return content.map((block, i) => textOf(block, `${location}[${i}]`));
}

function textOf(block: JsonValue, location: string): string {
  const { type, text, source } = isObject<JsonObject>(block) ? block : {};
  if (type === 'text' && typeof text === 'string') return text;
  const { type: kind, data } = isObject<JsonObject>(source) ? source : {};
  if (type === 'document' && kind === 'text' && typeof data === 'string') return data;
  if (typeof type !== 'string' || type === 'text') {
    throw invalidError(location, '{ "type": "text", "text": "..." }', formatValue(block));
  }
  const got = type.slice(0, 60);
  const reason = `"${got}" is not text, and the model reads only text`;
  throw unsupportedError(`${location}.type`, reason);
}
