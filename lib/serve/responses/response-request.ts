// Parses POST /v1/responses as a chat request.
import { randomUUID } from 'node:crypto';
import type { JsonObject, JsonValue } from '../../../types/json.js';
import { formatValue } from '../../runtime/format-value.js';
import { isObject } from '../../runtime/is-object.js';
import { invalidError, unsupportedError } from '../api-error.js';
import { readChat } from '../chat-request.js';
import type { ParsedRequest } from '../parsed-request.js';
import { type FieldNames, promptNames, renameField, withFieldNames } from '../renamed-errors.js';
import { RequestFields } from '../request-fields.js';
import type { ServedModel } from '../served-model.js';
import { chatName, flattenNamespaces, type NamespacedNames } from './namespaces.js';
import { ResponseAnswer, type ResponseHead } from './response-answer.js';
import { itemsToMessages, joinInstructions, readItems } from './response-items.js';
import type { ResponseStore } from './response-store.js';

/** Fields of a response request that chats do not have. */
const RESPONSE_FIELDS: ReadonlySet<string> = new Set([
  'input',
  'instructions',
  'tools',
  'tool_choice',
  'text',
  'max_output_tokens',
  'include',
  'previous_response_id',
  'reasoning',
  'truncation',
  'background',
  'stream_options',
  'conversation',
  'prompt',
  'max_tool_calls',
  'top_logprobs',
  'store',
  'client_metadata',
]);

/** Renames chat fields in error messages to the fields of this route. */
const NAMES: FieldNames = [
  [/^messages\b/, 'input'],
  [/^max_(completion_)?tokens$/, 'max_output_tokens'],
  [/^reasoning_effort$/, 'reasoning.effort'],
  [/^response_format\b/, 'text.format'],
  [/^(tools\[\d+\])\.function\b/, '$1'],
];

/** Parses the request. Throws 400, naming the wrong field, and 404 for unknown ids. */
export function readResponse(
  body: JsonObject,
  served: ServedModel,
  { store, owner }: { store: ResponseStore; owner: string },
): ParsedRequest {
  const fields = new RequestFields(body);
  refuseUnsupported(fields);
  const previous = fields.text('previous_response_id') ?? null;
  const before = previous === null ? [] : store.conversation(previous, owner);
  const items = readItems(fields.any('input'), (id) => store.item(id, owner));
  const instructions = fields.text('instructions') ?? null;
  const isStored = fields.flag('store') ?? true;
  const messages = itemsToMessages([...before, ...items], before.length);
  const system = instructions === null ? [] : [{ role: 'system', content: instructions }];
  const { names: namespaces, ...toolFields } = chatToolFields(fields);
  const chatFields = Object.entries(body).filter(([name]) => !RESPONSE_FIELDS.has(name));
  const chat: JsonObject = {
    ...Object.fromEntries(chatFields),
    messages: joinInstructions([...system, ...messages]),
    ...toolFields,
    ...responseFormatField(fields),
    ...fieldUnlessAbsent('max_completion_tokens', fields.integer('max_output_tokens', 1)),
    ...fieldUnlessAbsent('reasoning_effort', fields.inside('reasoning')?.text('effort')),
  };
  if (chat.messages && (chat.messages as JsonValue[]).length === 0) {
    throw invalidError('input', 'a string, or a list of items', formatValue(body.input));
  }
  const parsed = withFieldNames(NAMES, () => readChat(chat, served));
  const names = promptNames(instructions === null ? null : 'instructions', 'input');
  const head: ResponseHead = {
    id: `resp_${randomUUID().replaceAll('-', '')}`,
    created_at: Math.floor(Date.now() / 1000),
    echo: echoedFields(body, isStored),
    namespaces,
  };
  const keep = (response: JsonObject, output: readonly JsonObject[]): void => {
    if (!isStored) return;
    const { id } = head;
    store.add({ id, owner, previous, items: [...items, ...output], response });
  };
  return {
    ...parsed,
    promptField: 'input',
    requestedField: 'max_output_tokens',
    prompts: (queueClient) =>
      parsed.prompts(queueClient).catch((error: unknown) => {
        throw renameField(names, error);
      }),
    open: (setup) => new ResponseAnswer(setup, head, keep),
  };
}

function refuseUnsupported(fields: RequestFields): void {
  const absent: readonly [string, string][] = [
    ['conversation', 'send previous_response_id'],
    ['prompt', 'the server has no templates of prompts; send input'],
  ];
  for (const [name, reason] of absent) {
    if (fields.any(name) !== undefined) throw unsupportedError(name, reason);
  }
  if (fields.flag('background'))
    throw unsupportedError('background', 'the client waits for the answer');
  const truncation = fields.any('truncation') ?? 'disabled';
  if (truncation !== 'disabled') throw unsupportedError('truncation', 'the server drops no items');
  if (fields.integer('top_logprobs', 0, 20)) {
    throw unsupportedError('top_logprobs', '/v1/chat/completions has logprobs');
  }
}

const fieldUnlessAbsent = (name: string, value: JsonValue | undefined): JsonObject =>
  value === undefined ? {} : { [name]: value };

/** Fields of a chat request, and the functions of namespaces. */
interface ChatTools {
  tools?: JsonValue;
  tool_choice?: JsonValue;
  names: NamespacedNames;
}

/** Converts flat tools and a flat tool choice to the form of a chat request. */
function chatToolFields(fields: RequestFields): ChatTools {
  const tools = fields.any('tools');
  const choice = fields.any('tool_choice');
  const isNamed = isObject<JsonObject>(choice) && choice.type === 'function';
  const chatChoice = isNamed
    ? { type: 'function', function: { name: chatName(choice.namespace, choice.name ?? null) } }
    : choice;
  const choiceField = fieldUnlessAbsent('tool_choice', chatChoice);
  if (tools === undefined) return { ...choiceField, names: new Map() };
  if (!Array.isArray(tools)) throw invalidError('tools', 'a list of functions', formatValue(tools));
  const { tools: flat, names } = flattenNamespaces(tools);
  const nested = flat.map((tool, i) => {
    if (!isObject<JsonObject>(tool)) throw invalidError(`tools[${i}]`, 'a tool', formatValue(tool));
    const { type, ...described } = tool;
    if (type === 'function') return { type, function: described };
    const got = formatValue(type);
    throw unsupportedError(
      `tools[${i}].type`,
      `the server runs no tools; expected "function", got ${got}`,
    );
  });
  return { tools: nested, ...choiceField, names };
}

/** Converts `text.format` to `response_format`. */
function responseFormatField(fields: RequestFields): JsonObject {
  const text = fields.inside('text');
  const verbosity = fieldUnlessAbsent('verbosity', text?.any('verbosity'));
  const format = text?.object('format');
  if (!format) return verbosity;
  const { type, ...schema } = format;
  const chatFormat = type === 'json_schema' ? { type, json_schema: schema } : format;
  return { ...verbosity, response_format: chatFormat };
}

/** Returns the fields of the request that the response repeats. */
function echoedFields(body: JsonObject, isStored: boolean): JsonObject {
  const { text, reasoning } = body;
  return {
    instructions: body.instructions ?? null,
    max_output_tokens: body.max_output_tokens ?? null,
    metadata: body.metadata ?? {},
    parallel_tool_calls: body.parallel_tool_calls ?? true,
    previous_response_id: body.previous_response_id ?? null,
    reasoning: isObject<JsonObject>(reasoning) ? reasoning : { effort: null, summary: null },
    store: isStored,
    temperature: body.temperature ?? null,
    text: isObject<JsonObject>(text) ? text : { format: { type: 'text' } },
    tool_choice: body.tool_choice ?? 'auto',
    tools: body.tools ?? [],
    top_p: body.top_p ?? null,
    truncation: 'disabled',
    user: body.user ?? null,
  };
}
