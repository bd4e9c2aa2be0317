// Converts items of /v1/responses to chat messages.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import { formatValue } from '../../runtime/format-value.js';
import { isObject } from '../../runtime/is-object.js';
import { ApiError, invalidError, unsupportedError } from '../api-error.js';
import { chatName } from './namespaces.js';

/** Maximum number of items in a conversation. */
const MAX_ITEMS = 8192;

/** A message of a chat request. */
interface Message {
  [key: string]: JsonValue;
  role: string;
}

/**
 * Reads `input`: a text, or a list of items. Resolves item references with `findItem`. Throws 400.
 */
export function readItems(
  input: JsonValue | undefined,
  findItem: (id: string) => JsonObject | null,
): JsonObject[] {
  if (input === undefined) return [];
  if (typeof input === 'string') return [{ type: 'message', role: 'user', content: input }];
  if (!Array.isArray(input))
    throw invalidError('input', 'a string, or a list of items', formatValue(input));
  if (input.length > MAX_ITEMS)
    throw invalidError('input', `at most ${MAX_ITEMS}`, `${input.length}`);
  return input.map((item, i) => {
    const location = `input[${i}]`;
    if (!isObject<JsonObject>(item)) throw invalidError(location, 'an item', formatValue(item));
    if (item.type !== 'item_reference') return item;
    const stored = typeof item.id === 'string' ? findItem(item.id) : null;
    if (stored) return stored;
    const message = `${location}.id: expected the id of an item in memory, got ${formatValue(item.id)}. Send the item itself, or set "store": false.`;
    throw new ApiError(404, message, { param: `${location}.id`, code: 'item_not_found' });
  });
}

/**
 * Converts items to messages. `offset`: number of items of earlier turns, for error locations.
 * Throws 400.
 */
export function itemsToMessages(items: readonly JsonObject[], offset: number): Message[] {
  const messages: Message[] = [];
  let assistant: Message | null = null;
  const openAssistant = (isNext: (current: Message) => boolean): Message => {
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
      const target = openAssistant((message) => message.content === null && !message.tool_calls);
      target.reasoning_content = `${target.reasoning_content ?? ''}${reasoningText(item)}`;
    } else if (type === 'function_call') {
      const { call_id: id = '', name = '', arguments: args = '' } = item;
      const message = openAssistant(() => true);
      const calls = Array.isArray(message.tool_calls) ? message.tool_calls : [];
      message.tool_calls = [
        ...calls,
        {
          id,
          type: 'function',
          function: { name: chatName(item.namespace, name), arguments: args },
        },
      ];
    } else if (type === 'function_call_output') {
      assistant = null;
      const { call_id: id, output } = item;
      if (typeof id !== 'string')
        throw invalidError(`${location}.call_id`, 'a string', formatValue(id));
      const content = readText(output, `${location}.output`);
      messages.push({ role: 'tool', tool_call_id: id, content });
    } else if (type === 'message') {
      const { role = null } = item;
      const content = readText(item.content, `${location}.content`);
      if (role === 'assistant') {
        openAssistant((message) => message.content === null && !message.tool_calls).content =
          content;
      } else {
        assistant = null;
        messages.push({ role: role as string, content });
      }
    } else {
      const got = typeof type === 'string' ? `"${type.slice(0, 60)}"` : formatValue(type);
      throw unsupportedError(`${location}.type`, `the server has no items of the type ${got}`);
    }
  }
  return messages;
}

const INSTRUCTING: ReadonlySet<string> = new Set(['system', 'developer']);

/**
 * Joins the instructions at the start of a conversation to one message: many templates have one
 * system message, and Codex sends several.
 */
export function joinInstructions(messages: readonly JsonObject[]): JsonObject[] {
  const end = messages.findIndex(({ role }) => !INSTRUCTING.has(role as string));
  const instructions = messages.slice(0, end < 0 ? messages.length : end);
  const [first] = instructions;
  if (!first || instructions.length === 1) return [...messages];
  const content = instructions.map((message) => message.content as string).join('\n\n');
  return [{ ...first, content }, ...messages.slice(instructions.length)];
}

/** Types of content parts with text. */
const TEXTS: ReadonlySet<unknown> = new Set([
  'input_text',
  'output_text',
  'text',
  'summary_text',
  'reasoning_text',
]);

function readText(content: JsonValue | undefined, location: string): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content))
    throw invalidError(location, 'a string, or a list of parts', formatValue(content));
  const texts = content.map((part, i) => {
    const { type, text, refusal } = isObject<JsonObject>(part) ? part : {};
    if (TEXTS.has(type) && typeof text === 'string') return text;
    if (type === 'refusal' && typeof refusal === 'string') return refusal;
    if (typeof type === 'string' && !TEXTS.has(type)) {
      const got = type.slice(0, 60);
      throw unsupportedError(
        `${location}[${i}].type`,
        `"${got}" is not text, and the model reads only text`,
      );
    }
    throw invalidError(
      `${location}[${i}]`,
      '{ "type": "input_text", "text": ".." }',
      formatValue(part),
    );
  });
  return texts.join('\n');
}

/** Returns the text of a reasoning item: clients send back the summary, or the reasoning itself. */
function reasoningText({ summary, content }: JsonObject): string {
  const parts = [content, summary].find((item) => Array.isArray(item) && item.length > 0);
  const texts = Array.isArray(parts) ? parts : [];
  return texts
    .map((part) => (isObject<JsonObject>(part) && typeof part.text === 'string' ? part.text : ''))
    .join('\n');
}
