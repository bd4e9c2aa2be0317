// The messages of a chat request, as the chat template reads them.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import type { ChatMessage } from '../text/index.js';
import { invalid, unsupported } from './api-error.js';
import { isWithin, LEVELS } from './request-fields.js';
import { MAX_TOOLS } from './tools.js';

const ROLES = ['system', 'developer', 'user', 'assistant', 'tool', 'function'];
/** Messages of one conversation. */
const MAX_MESSAGES = 4096;

/** Fields of answers that clients send back, and that no template reads. */
const IGNORED: ReadonlySet<string> = new Set([
  'refusal',
  'annotations',
  'parsed',
  'token_ids',
  'provider_specific_fields',
]);

/** Throws 400 with the name of the wrong field. */
export function messagesOf(given: JsonValue | undefined): ChatMessage[] {
  const isList = Array.isArray(given) && given.length > 0;
  if (!isList) throw invalid('messages', 'a list of messages', formatValue(given));
  if (given.length > MAX_MESSAGES) {
    throw invalid('messages', `at most ${MAX_MESSAGES}`, `${given.length}`);
  }
  return given.map((message, i) => messageOf(message, `messages[${i}]`));
}

function messageOf(given: JsonValue, location: string): ChatMessage {
  if (!isObject<JsonObject>(given))
    throw invalid(location, 'an object with role and content', formatValue(given));
  const { role, content, name, tool_call_id: call, tool_calls: calls, ...rest } = given;
  const { reasoning_content: thought, reasoning = thought, ...others } = rest;
  if (typeof role !== 'string' || !ROLES.includes(role)) {
    throw invalid(`${location}.role`, ROLES.join(', '), formatValue(role));
  }
  // Clients send answers of this server back, with null and empty fields.
  const [other] = Object.entries(others).filter(
    ([key, value]) => !isNothing(value) && !IGNORED.has(key),
  );
  if (other) throw unsupported(`${location}.${other[0].slice(0, 60)}`, 'messages are text');
  const texts = { name, tool_call_id: call, reasoning_content: thought ?? reasoning };
  const named = Object.entries(texts).filter(([, value]) => !isNothing(value));
  const odd = named.find(([, item]) => typeof item !== 'string');
  if (odd) throw invalid(`${location}.${odd[0]}`, 'a string', formatValue(odd[1]));
  const made = isNothing(calls) ? null : callsOf(role, calls, `${location}.tool_calls`);
  const isSilent = role === 'assistant' && (made || thought || reasoning) && isNothing(content);
  const text = isSilent ? '' : textOf(content, `${location}.content`);
  return {
    role,
    content: text,
    ...Object.fromEntries(named),
    ...(made && { tool_calls: made }),
  };
}

const isNothing = (value: JsonValue | undefined): boolean =>
  value === null || value === undefined || (Array.isArray(value) && value.length === 0);

/** The calls of an assistant's message with their arguments parsed. */
function callsOf(role: string, given: JsonValue | undefined, location: string): object[] {
  if (role !== 'assistant') throw invalid(location, 'calls of the role "assistant"', `"${role}"`);
  if (!Array.isArray(given) || given.length > MAX_TOOLS) {
    throw invalid(location, `a list of at most ${MAX_TOOLS} calls`, formatValue(given));
  }
  return given.map((item, i) => callOf(item, `${location}[${i}]`));
}

function callOf(given: JsonValue, location: string): object {
  const { id, type = 'function', function: own } = isObject<JsonObject>(given) ? given : {};
  if (type !== 'function' || !isObject<JsonObject>(own)) {
    throw invalid(location, '{ "type": "function", "function": { .. } }', formatValue(given));
  }
  const { name, arguments: rawArguments = '' } = own;
  if (typeof name !== 'string' || name === '') {
    throw invalid(`${location}.function.name`, 'a name', formatValue(name));
  }
  if (!isNothing(id) && typeof id !== 'string') {
    throw invalid(`${location}.id`, 'a string', formatValue(id));
  }
  const known = parsedArguments(rawArguments, `${location}.function.arguments`);
  return { ...(id && { id }), type: 'function', function: { name, arguments: known } };
}

/** The object that `arguments` holds as JSON text; templates read an object. */
function parsedArguments(rawArguments: JsonValue, location: string): JsonObject {
  const value = typeof rawArguments === 'string' ? parseText(rawArguments) : rawArguments;
  if (!isObject<JsonObject>(value)) {
    throw invalid(location, 'a JSON object as text', formatValue(rawArguments));
  }
  if (isWithin(value, LEVELS)) return value;
  throw invalid(location, `at most ${LEVELS} levels of nesting`, 'more');
}

function parseText(text: string): unknown {
  if (text.trim() === '') return {};
  try {
    return JSON.parse(text);
  } catch {
    return null; // The caller refuses null.
  }
}

/** A text, or a list of parts that are texts. */
function textOf(content: JsonValue | undefined, location: string): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) {
    throw invalid(location, 'a string, or a list of text parts', formatValue(content));
  }
  const texts = content.map((part, i) => {
    const { type, text } = isObject<JsonObject>(part) ? part : {};
    if (type === 'text' && typeof text === 'string') return text;
    if (typeof type === 'string' && type !== 'text') {
      const got = type.slice(0, 60);
      throw unsupported(
        `${location}[${i}].type`,
        `"${got}" is not text, and the model reads only text`,
      );
    }
    throw invalid(`${location}[${i}]`, '{ "type": "text", "text": "..." }', formatValue(part));
  });
  return texts.join('\n');
}
