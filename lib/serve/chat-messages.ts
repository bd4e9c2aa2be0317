// Parses the messages of a chat request for the chat template.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { CLIENT_FIELDS } from '../text/adapt-messages.js';
import type { ChatMessage } from '../text/index.js';
import { invalidError, unsupportedError } from './api-error.js';
import { isWithin, MAX_LEVELS } from './request-fields.js';
import { MAX_TOOLS } from './tools.js';

const ROLES = ['system', 'developer', 'user', 'assistant', 'tool', 'function'];
/** Maximum number of messages in a conversation. */
const MAX_MESSAGES = 4096;

/** Parses `messages`. Throws 400 with the name of the wrong field. */
export function parseMessages(messages: JsonValue | undefined): ChatMessage[] {
  const isList = Array.isArray(messages) && messages.length > 0;
  if (!isList) throw invalidError('messages', 'a list of messages', formatValue(messages));
  if (messages.length > MAX_MESSAGES) {
    throw invalidError('messages', `at most ${MAX_MESSAGES}`, `${messages.length}`);
  }
  return messages.map((message, i) => parseMessage(message, `messages[${i}]`));
}

function parseMessage(message: JsonValue, location: string): ChatMessage {
  if (!isObject<JsonObject>(message))
    throw invalidError(location, 'an object with role and content', formatValue(message));
  const { role, content, name, tool_call_id: call, tool_calls: calls, ...rest } = message;
  const { reasoning_content: thought, reasoning = thought, ...others } = rest;
  if (typeof role !== 'string' || !ROLES.includes(role)) {
    throw invalidError(`${location}.role`, ROLES.join(', '), formatValue(role));
  }
  // Clients send answers of this server back, with null and empty fields.
  const [other] = Object.entries(others).filter(
    ([key, value]) => !isAbsent(value) && !CLIENT_FIELDS.has(key),
  );
  if (other) throw unsupportedError(`${location}.${other[0].slice(0, 60)}`, 'messages are text');
  const texts = { name, tool_call_id: call, reasoning_content: thought ?? reasoning };
  const textFields = Object.entries(texts).filter(([, value]) => !isAbsent(value));
  const wrongField = textFields.find(([, item]) => typeof item !== 'string');
  if (wrongField)
    throw invalidError(`${location}.${wrongField[0]}`, 'a string', formatValue(wrongField[1]));
  const parsedCalls = isAbsent(calls) ? null : parseCalls(role, calls, `${location}.tool_calls`);
  // An answer may consist of calls or reasoning, or be empty.
  const isSilent = role === 'assistant' && isAbsent(content);
  const text = isSilent ? '' : readText(content, `${location}.content`);
  return {
    role,
    content: text,
    ...Object.fromEntries(textFields),
    ...(parsedCalls && { tool_calls: parsedCalls }),
  };
}

const isAbsent = (value: JsonValue | undefined): boolean =>
  value === null || value === undefined || (Array.isArray(value) && value.length === 0);

/** Parses the calls of an assistant message. */
function parseCalls(role: string, calls: JsonValue | undefined, location: string): object[] {
  if (role !== 'assistant')
    throw invalidError(location, 'calls of the role "assistant"', `"${role}"`);
  if (!Array.isArray(calls) || calls.length > MAX_TOOLS) {
    throw invalidError(location, `a list of at most ${MAX_TOOLS} calls`, formatValue(calls));
  }
  return calls.map((item, i) => parseCall(item, `${location}[${i}]`));
}

function parseCall(call: JsonValue, location: string): object {
  const { id, type = 'function', function: fn } = isObject<JsonObject>(call) ? call : {};
  if (type !== 'function' || !isObject<JsonObject>(fn)) {
    throw invalidError(location, '{ "type": "function", "function": { .. } }', formatValue(call));
  }
  const { name, arguments: rawArguments = '' } = fn;
  if (typeof name !== 'string' || name === '') {
    throw invalidError(`${location}.function.name`, 'a name', formatValue(name));
  }
  if (!isAbsent(id) && typeof id !== 'string') {
    throw invalidError(`${location}.id`, 'a string', formatValue(id));
  }
  const parsed = parseArguments(rawArguments, `${location}.function.arguments`);
  return { ...(id && { id }), type: 'function', function: { name, arguments: parsed } };
}

/** Parses `arguments` to an object, which templates expect. Throws 400 for other values. */
function parseArguments(rawArguments: JsonValue, location: string): JsonObject {
  const value = typeof rawArguments === 'string' ? parseJson(rawArguments) : rawArguments;
  if (!isObject<JsonObject>(value)) {
    throw invalidError(location, 'a JSON object as text', formatValue(rawArguments));
  }
  if (isWithin(value, MAX_LEVELS)) return value;
  throw invalidError(location, `at most ${MAX_LEVELS} levels of nesting`, 'more');
}

function parseJson(text: string): unknown {
  if (text.trim() === '') return {};
  try {
    return JSON.parse(text);
  } catch {
    return null; // The caller refuses null.
  }
}

/** Returns the text of a content: a string, or text parts joined by line breaks. */
function readText(content: JsonValue | undefined, location: string): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) {
    throw invalidError(location, 'a string, or a list of text parts', formatValue(content));
  }
  const texts = content.map((part, i) => {
    const { type, text } = isObject<JsonObject>(part) ? part : {};
    if (type === 'text' && typeof text === 'string') return text;
    if (typeof type === 'string' && type !== 'text') {
      const got = type.slice(0, 60);
      throw unsupportedError(
        `${location}[${i}].type`,
        `"${got}" is not text, and the model reads only text`,
      );
    }
    throw invalidError(`${location}[${i}]`, '{ "type": "text", "text": "..." }', formatValue(part));
  });
  return texts.join('\n');
}
