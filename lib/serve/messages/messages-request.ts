// Parses POST /v1/messages and /v1/messages/count_tokens, Anthropic's API, as chat requests.
import { randomUUID } from 'node:crypto';
import type { JsonObject, JsonValue } from '../../../types/json.js';
import { formatValue } from '../../runtime/format-value.js';
import { isObject } from '../../runtime/is-object.js';
import { findAdapter } from '../adapters.js';
import { ApiError, invalidError, unsupportedError } from '../api-error.js';
import { readChat, readPrompt } from '../chat-request.js';
import type { QueueClient } from '../fair-queue.js';
import type { ParsedRequest } from '../parsed-request.js';
import { type FieldNames, promptNames, renameField, withFieldNames } from '../renamed-errors.js';
import { RequestFields } from '../request-fields.js';
import type { ServedModel } from '../served-model.js';
import { blocksToMessages } from './message-blocks.js';
import { MessageAnswer } from './messages-answer.js';
import { NO_THREADS } from './messages-error.js';

/** Fields that chats have too, under the same names. */
const SHARED: readonly string[] = [
  'model',
  'stream',
  'temperature',
  'top_p',
  'top_k',
  'metadata',
  'service_tier',
  'seed',
  'min_p',
  'repetition_penalty',
  'presence_penalty',
  'frequency_penalty',
  'min_tokens',
  'ignore_eos',
  'stop_token_ids',
  'cache_salt',
  'priority',
  'logit_bias',
];

/** Fields for caching, billing and hints, which do not change the answer of a model. */
const WITHOUT_EFFECT: readonly string[] = [
  'cache_control',
  'context_management',
  'inference_geo',
  'speed',
  'diagnostics',
  'betas',
  'user_profile_id',
  'workspace_id',
  'anthropic_version',
];

/** Fields of the answer, which have no effect on the number of tokens of a prompt. */
const ANSWER: readonly string[] = ['max_tokens', 'stop_sequences', 'output_format'];

/** Values of `thinking.type`. */
const THINKING: readonly unknown[] = ['enabled', 'adaptive', 'between_tools', 'disabled'];

/** Renames chat fields in error messages to the fields of this route. */
const NAMES: FieldNames = [
  [/^stop$/, 'stop_sequences'],
  [/^reasoning_effort$/, 'output_config.effort'],
  [/^response_format(\.json_schema)?\b/, 'output_config.format'],
  [/^(tools\[\d+\])\.function\.parameters\b/, '$1.input_schema'],
  [/^(tools\[\d+\])\.function\b/, '$1'],
  [/^tool_choice\.function\b/, 'tool_choice'],
];

/** Parses the request. Throws 400, naming the wrong field. */
export function readMessages(body: JsonObject, served: ServedModel): ParsedRequest {
  const fields = new RequestFields(body);
  if (fields.any('thread') !== undefined) {
    const message = 'thread is not supported: the server keeps no messages. Send all of them.';
    throw new ApiError(400, message, { param: 'thread', code: NO_THREADS });
  }
  const prompt = promptFields(fields);
  const max = fields.integer('max_tokens', 1);
  if (max === undefined) throw invalidError('max_tokens', 'a number of tokens', 'nothing');
  const shared = SHARED.map((name) => fieldUnlessAbsent(name, fields.any(name)));
  const chat: JsonObject = {
    ...Object.assign({}, ...shared),
    ...prompt,
    ...fieldUnlessAbsent('stop', fields.any('stop_sequences')),
    ...responseFormatField(fields),
  };
  for (const name of WITHOUT_EFFECT) fields.any(name);
  fields.requireKnown();
  const parsed = withFieldNames(NAMES, () => readChat(chat, served));
  const id = `msg_${randomUUID().replaceAll('-', '')}`;
  return {
    ...parsed,
    // As in Anthropic's API, the answer ends where the context ends.
    options: { ...parsed.options, maxNewTokens: max },
    prompts: (queueClient) => parsed.prompts(queueClient).catch(failPrompt(prompt)),
    open: (setup) => new MessageAnswer(setup, { id, max }),
  };
}

/** Counts the tokens of a request's prompt. Throws 400, 404. */
export async function countTokens(
  body: JsonObject,
  served: ServedModel,
  queueClient: QueueClient,
): Promise<JsonObject> {
  const fields = new RequestFields(body);
  findAdapter(served, fields.text('model'));
  const prompt = promptFields(fields);
  const chat = new RequestFields(prompt);
  for (const name of [...SHARED, ...WITHOUT_EFFECT, ...ANSWER]) fields.any(name);
  fields.requireKnown();
  const parsed = withFieldNames(NAMES, () => readPrompt(chat, served));
  const tokens = await parsed.prompt(queueClient).catch(failPrompt(prompt));
  return { input_tokens: tokens.length };
}

/** Returns a function that throws an error of the prompt, with the fields of the request. */
function failPrompt({ messages }: JsonObject): (error: unknown) => never {
  const [first] = messages as { role: string }[];
  const names = promptNames(first?.role === 'system' ? 'system' : null, 'messages');
  return (error) => {
    throw renameField(names, error);
  };
}

/** Returns the chat fields that decide the prompt. */
function promptFields(fields: RequestFields): JsonObject {
  const messages = blocksToMessages(fields.any('system'), fields.any('messages'));
  const last = messages.at(-1);
  const isContinued = last?.role === 'assistant';
  if (isContinued && last.tool_calls) {
    throw invalidError('messages', 'results after the last calls', 'calls at the end');
  }
  return {
    messages,
    ...(isContinued && { continue_final_message: true }),
    ...toolFields(fields),
    ...thinkingFields(fields),
  };
}

const fieldUnlessAbsent = (name: string, value: JsonValue | undefined): JsonObject =>
  value === undefined ? {} : { [name]: value };

/** Converts tools and their choice to the form of a chat request. */
function toolFields(fields: RequestFields): JsonObject {
  const tools = fields.any('tools');
  const choice = fields.inside('tool_choice');
  const type = choice?.text('type');
  const name = choice?.any('name');
  const isSingle = choice?.flag('disable_parallel_tool_use');
  choice?.requireKnown();
  const choices: Record<string, JsonValue> = {
    auto: 'auto',
    any: 'required',
    none: 'none',
    tool: { type: 'function', function: { name: name ?? null } },
  };
  if (choice && !Object.hasOwn(choices, type ?? '')) {
    throw invalidError('tool_choice.type', '"auto", "any", "tool" or "none"', formatValue(type));
  }
  return {
    ...fieldUnlessAbsent('tools', tools === undefined ? tools : convertTools(tools)),
    ...fieldUnlessAbsent('tool_choice', choices[type ?? '']),
    ...fieldUnlessAbsent('parallel_tool_calls', isSingle === undefined ? isSingle : !isSingle),
  };
}

function convertTools(tools: JsonValue): JsonValue[] {
  if (!Array.isArray(tools)) throw invalidError('tools', 'a list of tools', formatValue(tools));
  return tools.map((tool, i) => {
    if (!isObject<JsonObject>(tool)) throw invalidError(`tools[${i}]`, 'a tool', formatValue(tool));
    const { type = 'custom', name = null, description, input_schema: parameters, strict } = tool;
    if (type !== 'custom' && type !== null) {
      const reason = `the server runs no tools; expected a tool with input_schema, got ${formatValue(type)}`;
      throw unsupportedError(`tools[${i}].type`, reason);
    }
    const described = {
      ...fieldUnlessAbsent('description', description),
      ...fieldUnlessAbsent('parameters', parameters),
      ...fieldUnlessAbsent('strict', strict),
    };
    return { type: 'function', function: { name, ...described } };
  });
}

/** Converts `thinking` and the effort to variables of the chat template. */
function thinkingFields(fields: RequestFields): JsonObject {
  const thinking = fields.object('thinking');
  if (thinking && !THINKING.includes(thinking.type)) {
    const expected = '"enabled", "adaptive" or "disabled"';
    throw invalidError('thinking.type', expected, formatValue(thinking.type));
  }
  const type = thinking?.type;
  const effort = fields.inside('output_config')?.text('effort');
  const variables = fields.object('chat_template_kwargs') ?? {};
  const isOff = type === 'disabled';
  const thinks: JsonObject =
    type === undefined ? {} : { enable_thinking: !isOff, thinking: !isOff };
  return {
    chat_template_kwargs: { ...thinks, ...variables },
    ...fieldUnlessAbsent('reasoning_effort', effort === 'max' ? 'xhigh' : effort),
  };
}

/** Converts `output_config.format`, or its older name `output_format`, to `response_format`. */
function responseFormatField(fields: RequestFields): JsonObject {
  const config = fields.inside('output_config');
  config?.any('effort');
  const format = config?.object('format') ?? fields.object('output_format');
  config?.requireKnown();
  if (!format) return {};
  const { type, schema } = format;
  const json_schema = { name: 'answer', ...fieldUnlessAbsent('schema', schema) };
  return { response_format: type === 'json_schema' ? { type, json_schema } : format };
}
