// Checks the messages of a program, so that no text of a conversation is lost silently.
import type { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { CLIENT_FIELDS, messageAdapter } from '../text/adapt-messages.js';
import type { ChatMessage } from '../text/index.js';
import { findLostMessage } from '../text/lost-messages.js';

/** Renders messages with the template. Throws if the template refuses them. */
type Render = (messages: readonly ChatMessage[]) => string;

/** Fields that messages may have, although some templates leave them out. */
const FIELDS: ReadonlySet<string> = new Set([
  ...['role', 'content', 'name', 'tool_call_id', 'tool_calls', 'reasoning_content'],
  ...CLIENT_FIELDS,
]);

/**
 * Returns messages as `template` expects them, with lists of text parts joined by line breaks.
 * Throws DS_ARGUMENT for a message without content, and for parts other than text. Messages of
 * tools may have any content.
 */
export function readMessages(
  op: string,
  messages: readonly ChatMessage[],
  template: string,
): ChatMessage[] {
  const adapt = messageAdapter(template);
  return messages.map((message, i) => {
    if (!isObject(message)) return message;
    const content = readContent(`${op} messages[${i}].content`, message);
    return adapt(content === undefined ? message : { ...message, content });
  });
}

/** Returns the content as text; undefined if it stays as it is. */
function readContent(location: string, { role, content }: ChatMessage): string | undefined {
  if (typeof content === 'string' || role === 'tool') return undefined;
  if (content === undefined || content === null) {
    // An answer may consist of calls or reasoning. The template checks other roles.
    if (!['system', 'developer', 'user'].includes(role)) return undefined;
  }
  const expected = 'a string, or a list of text parts';
  if (!Array.isArray(content)) throw argumentError(location, expected, formatValue(content));
  const texts = content.map((part: unknown, i) => {
    const { type, text } = isObject(part) ? part : {};
    if (type === 'text' && typeof text === 'string') return text;
    const hint = 'The model reads only text.';
    const wanted = '{ type: "text", text: "..." }';
    const got = typeof type === 'string' ? `type ${formatValue(type)}` : formatValue(part);
    throw argumentError(`${location}[${i}]`, wanted, got, hint);
  });
  return texts.join('\n');
}

/**
 * Throws DS_ARGUMENT for a message that the template leaves out of `text`, and for a field that it
 * does not read. `render` wrote `text` from the messages.
 */
export function requireWritten(
  op: string,
  messages: readonly ChatMessage[],
  text: string,
  { render, template }: { render: Render; template: string },
): void {
  const lost = findLostMessage(messages, text, render);
  if (lost >= 0) {
    const got = `"${messages[lost]?.role}" with content that it leaves out`;
    const hint = 'Write it into a message of the user.';
    const expected = 'a message that the chat template writes into the prompt';
    throw argumentError(`${op} messages[${lost}].role`, expected, got, hint);
  }
  for (const [i, message] of messages.entries()) {
    for (const [field, value] of Object.entries(message)) {
      const isKnown = FIELDS.has(field) || isAbsent(value) || isNamed(template, field);
      if (isKnown || render(withoutField(messages, i, field)) !== text) continue;
      throw unreadError(`${op} messages[${i}]`, field);
    }
  }
}

const isAbsent = (value: unknown): boolean =>
  value === null || value === undefined || (Array.isArray(value) && value.length === 0);

/** Returns whether the template names a field. It may read the field under a condition. */
const isNamed = (template: string, field: string): boolean =>
  /^\w+$/.test(field) && new RegExp(`\\b${field}\\b`).test(template);

const withoutField = (
  messages: readonly ChatMessage[],
  index: number,
  field: string,
): ChatMessage[] =>
  messages.map((message, i) => {
    if (i !== index) return message;
    const { [field]: _, ...rest } = message;
    return rest as ChatMessage;
  });

function unreadError(location: string, field: string): DsError {
  const hint =
    field === 'reasoning' ? 'Name it "reasoning_content".' : 'Remove it, or write it into content.';
  const expected = 'fields that the chat template reads, such as role and content';
  return argumentError(location, expected, formatValue(field), hint);
}
