// Items of /v1/responses to messages of a chat.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import { formatValue } from '../../runtime/format-value.js';
import { isObject } from '../../runtime/is-object.js';
import { ApiError, invalid, unsupported } from '../api-error.js';

/** Items of one conversation. */
const MAX_ITEMS = 8192;

/** A message in the form of a chat request. */
interface Message {
  [key: string]: JsonValue;
  role: string;
}

/** The items of `input`: a text, or a list. Throws 400. */
export function itemsOf(
  given: JsonValue | undefined,
  refer: (id: string) => JsonObject | null,
): JsonObject[] {
  if (given === undefined) return [];
  if (typeof given === 'string') return [{ type: 'message', role: 'user', content: given }];
  if (!Array.isArray(given))
    throw invalid('input', 'a string, or a list of items', formatValue(given));
  if (given.length > MAX_ITEMS) throw invalid('input', `at most ${MAX_ITEMS}`, `${given.length}`);
  return given.map((item, i) => {
    const location = `input[${i}]`;
    if (!isObject<JsonObject>(item)) throw invalid(location, 'an item', formatValue(item));
    if (item.type !== 'item_reference') return item;
    const found = typeof item.id === 'string' ? refer(item.id) : null;
    if (found) return found;
    const message = `${location}.id: expected the id of an item in memory, got ${formatValue(item.id)}. Send the item itself, or set "store": false.`;
    throw new ApiError(404, message, { param: `${location}.id`, code: 'item_not_found' });
  });
}

/** The messages of a conversation. `offset`: items of earlier turns. Throws 400. */
export function messagesOf(items: readonly JsonObject[], offset: number): Message[] {
  const messages: Message[] = [];
  let assistant: Message | null = null;
  const open = (isNext: (current: Message) => boolean): Message => {
    if (assistant === null || !isNext(assistant)) {
      assistant = { role: 'assistant', content: null };
      messages.push(assistant);
    }
    return assistant;
  };
  for (const [i, item] of items.entries()) {
    const location = `input[${i - offset}]`;
    const { type = 'message' } = item;
    if (type === 'reasoning') {
      const said = open((message) => message.content === null && !message.tool_calls);
      said.reasoning_content = `${said.reasoning_content ?? ''}${reasoningText(item)}`;
    } else if (type === 'function_call') {
      const { call_id: id = '', name = '', arguments: own = '' } = item;
      const message = open(() => true);
      const calls = Array.isArray(message.tool_calls) ? message.tool_calls : [];
      message.tool_calls = [...calls, { id, type: 'function', function: { name, arguments: own } }];
    } else if (type === 'function_call_output') {
      assistant = null;
      const { call_id: id, output } = item;
      if (typeof id !== 'string') throw invalid(`${location}.call_id`, 'a string', formatValue(id));
      const content = textOf(output, `${location}.output`);
      messages.push({ role: 'tool', tool_call_id: id, content });
    } else if (type === 'message') {
      const { role = null } = item;
      const content = textOf(item.content, `${location}.content`);
      if (role === 'assistant') {
        open((message) => message.content === null && !message.tool_calls).content = content;
      } else {
        assistant = null;
        messages.push({ role: role as string, content });
      }
    } else {
      const got = typeof type === 'string' ? `"${type.slice(0, 60)}"` : formatValue(type);
      throw unsupported(`${location}.type`, `the server has no items of the type ${got}`);
    }
  }
  return messages;
}

/** Parts with texts. */
const TEXTS: ReadonlySet<unknown> = new Set([
  'input_text',
  'output_text',
  'text',
  'summary_text',
  'reasoning_text',
]);

function textOf(given: JsonValue | undefined, location: string): string {
  if (typeof given === 'string') return given;
  if (!Array.isArray(given))
    throw invalid(location, 'a string, or a list of parts', formatValue(given));
  const texts = given.map((part, i) => {
    const { type, text, refusal } = isObject<JsonObject>(part) ? part : {};
    if (TEXTS.has(type) && typeof text === 'string') return text;
    if (type === 'refusal' && typeof refusal === 'string') return refusal;
    if (typeof type === 'string' && !TEXTS.has(type)) {
      const got = type.slice(0, 60);
      throw unsupported(
        `${location}[${i}].type`,
        `"${got}" is not text, and the model reads only text`,
      );
    }
    throw invalid(`${location}[${i}]`, '{ "type": "input_text", "text": ".." }', formatValue(part));
  });
  return texts.join('\n');
}

/** Clients send back what they got: a summary, or the reasoning itself. */
function reasoningText({ summary, content }: JsonObject): string {
  const parts = [content, summary].find((item) => Array.isArray(item) && item.length > 0);
  const texts = Array.isArray(parts) ? parts : [];
  return texts
    .map((part) => (isObject<JsonObject>(part) && typeof part.text === 'string' ? part.text : ''))
    .join('\n');
}
