// Reads the tools of a chat request, and plans how to parse the answer.
import { randomBytes, randomUUID } from 'node:crypto';
import type { JsonObject, JsonValue } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import type { AnswerForms } from '../text/tool-calls/answer-forms.js';
import type { AnswerForm } from '../text/tool-calls/answer-reader.js';
import type { FunctionTool } from '../text/tool-calls/call-schema.js';
import { callSchema } from '../text/tool-calls/call-schema.js';
import { FORCED_CALL } from '../text/tool-calls/families.js';
import { invalidError, unsupportedError } from './api-error.js';
import { isWithin, MAX_LEVELS, type RequestFields } from './request-fields.js';

/** Maximum number of functions in a request, as in OpenAI's API. */
export const MAX_TOOLS = 128;

/** The tools of a request. */
export interface ToolRequest {
  /** Empty if `tool_choice` is "none". */
  tools: readonly FunctionTool[];
  /** Whether the answer ends with its first call (`parallel_tool_calls` is false). */
  isSingle: boolean;
  /** The answer must call one of these; null if the model chooses. */
  forced: readonly FunctionTool[] | null;
  /** `tool_choice` names a function. */
  isNamed: boolean;
}

/** How to parse an answer into content, reasoning and calls. */
export interface CallPlan {
  form: AnswerForm;
  /** Special tokens that the text must show. */
  visibleTokens: readonly number[];
  /** Returns the id of the next call. */
  nextId: () => string;
  /** The finish reason of an answer with calls. OpenAI answers "stop" to a named choice. */
  callReason: 'tool_calls' | 'stop';
  /** JSON schema of the answer; null without one. */
  format: object | null;
}

/**
 * Reads the tools of a request. Throws 400 for invalid tools, for an unsupported choice, and if the
 * template does not render tools.
 */
export function readTools(fields: RequestFields, templateKnows: boolean): ToolRequest {
  const choice = fields.any('tool_choice') ?? 'auto';
  const isSingle = fields.flag('parallel_tool_calls') === false;
  const tools = parseTools(fields.any('tools') ?? []);
  const forced = readForced(choice, tools);
  const common = { isSingle, forced, isNamed: isObject(choice) };
  if (choice === 'none' || tools.length === 0) return { tools: [], ...common };
  if (templateKnows) return { tools, ...common };
  const reason = "this model's chat template does not read tools; write them into a message";
  throw unsupportedError('tools', reason);
}

/** Returns the tools that `tool_choice` forces the answer to call; null if the model chooses. */
function readForced(
  choice: JsonValue,
  tools: readonly FunctionTool[],
): readonly FunctionTool[] | null {
  if (choice === 'auto' || choice === 'none') return null;
  if (choice === 'required') {
    if (tools.length > 0) return tools;
    throw invalidError('tool_choice', '"auto" or "none" without tools', '"required"');
  }
  const { type, function: fn } = isObject<JsonObject>(choice) ? choice : {};
  const name = isObject<JsonObject>(fn) ? fn.name : undefined;
  if (type !== 'function' || typeof name !== 'string') {
    const expected =
      '"auto", "none", "required", or { "type": "function", "function": { "name" } }';
    throw invalidError('tool_choice', expected, formatValue(choice));
  }
  const matching = tools.filter((tool) => tool.function.name === name);
  if (matching.length > 0) return matching.slice(0, 1);
  throw invalidError('tool_choice.function.name', 'the name of a tool', formatValue(name));
}

function parseTools(tools: JsonValue): FunctionTool[] {
  if (!Array.isArray(tools) || tools.length > MAX_TOOLS) {
    const got = Array.isArray(tools) ? `${tools.length}` : formatValue(tools);
    throw invalidError('tools', `a list of at most ${MAX_TOOLS} functions`, got);
  }
  return tools.map((item, i) => {
    const location = `tools[${i}]`;
    const { type, function: fn } = isObject<JsonObject>(item) ? item : {};
    if (type !== 'function' || !isObject<JsonObject>(fn)) {
      throw invalidError(location, '{ "type": "function", "function": { .. } }', formatValue(item));
    }
    if (typeof fn.name !== 'string' || fn.name === '') {
      throw invalidError(`${location}.function.name`, 'a name', formatValue(fn.name));
    }
    const { parameters } = fn;
    if (parameters !== undefined && parameters !== null && !isObject(parameters)) {
      const expected = 'a JSON schema';
      throw invalidError(`${location}.function.parameters`, expected, formatValue(parameters));
    }
    if (isWithin(item, MAX_LEVELS)) return item as unknown as FunctionTool;
    throw invalidError(location, `at most ${MAX_LEVELS} levels of nesting`, 'more');
  });
}

/** Returns how to parse the answer; null if all of it is content. */
export function callPlan(forms: AnswerForms, request: ToolRequest): CallPlan | null {
  const { tools, isSingle, forced, isNamed } = request;
  const chosenFamily = tools.length > 0 || forms.family?.isWhole ? forms.family : null;
  const family = forced ? FORCED_CALL : chosenFamily;
  const { reasoning } = forms;
  if (!family && !reasoning) return null;
  const form = { family, reasoning, tools, ...((isSingle || forced) && { maxCalls: 1 }) };
  return {
    form,
    visibleTokens: forms.visibleTokens(form),
    nextId: () => randomCallId(chosenFamily?.idLength),
    callReason: isNamed ? 'stop' : 'tool_calls',
    format: forced && callSchema(forced, forms.family?.argumentsKey),
  };
}

const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';

function randomCallId(length: number | undefined): string {
  if (length === undefined) return `call_${randomUUID().replaceAll('-', '')}`;
  return Array.from(randomBytes(length), (byte) => LETTERS.charAt(byte % LETTERS.length)).join('');
}
