// Functions that a chat's model may call, and how its answer is read.
import { randomBytes, randomUUID } from 'node:crypto';
import type { JsonObject, JsonValue } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import type { AnswerForms } from '../text/tool-calls/answer-forms.js';
import type { AnswerForm } from '../text/tool-calls/answer-reader.js';
import type { FunctionTool } from '../text/tool-calls/call-schema.js';
import { callSchema } from '../text/tool-calls/call-schema.js';
import { FORCED_CALL } from '../text/tool-calls/families.js';
import { invalid, unsupported } from './api-error.js';
import { isWithin, LEVELS, type RequestFields } from './request-fields.js';

/** Maximum number of functions in a request, as in OpenAI's API. */
export const MAX_TOOLS = 128;

/** The functions of a request. */
export interface ToolRequest {
  /** Empty with the `tool_choice` "none". */
  tools: readonly FunctionTool[];
  /** `parallel_tool_calls` is false: the answer ends with its first call. */
  isSingle: boolean;
  /** The answer is a call of one of these; null: the model chooses. */
  forced: readonly FunctionTool[] | null;
  /** `tool_choice` names a function. */
  isNamed: boolean;
}

/** How the text of an answer becomes content, reasoning and calls. */
export interface CallPlan {
  form: AnswerForm;
  /** Special tokens that the text must show. */
  visibleTokens: readonly number[];
  /** The id of the next call. */
  nextId: () => string;
  /** The finish reason of an answer with calls. OpenAI answers "stop" to a named choice. */
  callReason: 'tool_calls' | 'stop';
  /** The JSON schema of the answer; null for any text. */
  format: object | null;
}

/**
 * The functions of a request. Throws 400 for invalid functions, an unsupported choice, and a
 * template that does not read tools.
 */
export function readTools(fields: RequestFields, templateKnows: boolean): ToolRequest {
  const choice = fields.any('tool_choice') ?? 'auto';
  const isSingle = fields.flag('parallel_tool_calls') === false;
  const tools = toolsOf(fields.any('tools') ?? []);
  const forced = forcedOf(choice, tools);
  const common = { isSingle, forced, isNamed: isObject(choice) };
  if (choice === 'none' || tools.length === 0) return { tools: [], ...common };
  if (templateKnows) return { tools, ...common };
  const reason = "this model's chat template does not read tools; write them into a message";
  throw unsupported('tools', reason);
}

/** The functions that `tool_choice` allows: the answer must call one. Null: the model chooses. */
function forcedOf(
  choice: JsonValue,
  tools: readonly FunctionTool[],
): readonly FunctionTool[] | null {
  if (choice === 'auto' || choice === 'none') return null;
  if (choice === 'required') {
    if (tools.length > 0) return tools;
    throw invalid('tool_choice', '"auto" or "none" without tools', '"required"');
  }
  const { type, function: named } = isObject<JsonObject>(choice) ? choice : {};
  const name = isObject<JsonObject>(named) ? named.name : undefined;
  if (type !== 'function' || typeof name !== 'string') {
    const expected =
      '"auto", "none", "required", or { "type": "function", "function": { "name" } }';
    throw invalid('tool_choice', expected, formatValue(choice));
  }
  const found = tools.filter((tool) => tool.function.name === name);
  if (found.length > 0) return found.slice(0, 1);
  throw invalid('tool_choice.function.name', 'the name of a tool', formatValue(name));
}

function toolsOf(given: JsonValue): FunctionTool[] {
  if (!Array.isArray(given) || given.length > MAX_TOOLS) {
    const got = Array.isArray(given) ? `${given.length}` : formatValue(given);
    throw invalid('tools', `a list of at most ${MAX_TOOLS} functions`, got);
  }
  return given.map((item, i) => {
    const location = `tools[${i}]`;
    const { type, function: own } = isObject<JsonObject>(item) ? item : {};
    if (type !== 'function' || !isObject<JsonObject>(own)) {
      throw invalid(location, '{ "type": "function", "function": { .. } }', formatValue(item));
    }
    if (typeof own.name !== 'string' || own.name === '') {
      throw invalid(`${location}.function.name`, 'a name', formatValue(own.name));
    }
    const { parameters } = own;
    if (parameters !== undefined && parameters !== null && !isObject(parameters)) {
      const expected = 'a JSON schema';
      throw invalid(`${location}.function.parameters`, expected, formatValue(parameters));
    }
    if (isWithin(item, LEVELS)) return item as unknown as FunctionTool;
    throw invalid(location, `at most ${LEVELS} levels of nesting`, 'more');
  });
}

/** How the answer to a chat is read; null if all of it is content. */
export function callPlan(forms: AnswerForms, request: ToolRequest): CallPlan | null {
  const { tools, isSingle, forced, isNamed } = request;
  const ownFamily = tools.length > 0 || forms.family?.isWhole ? forms.family : null;
  const family = forced ? FORCED_CALL : ownFamily;
  const { reasoning } = forms;
  if (!family && !reasoning) return null;
  const form = { family, reasoning, tools, ...((isSingle || forced) && { maxCalls: 1 }) };
  return {
    form,
    visibleTokens: forms.visibleTokens(form),
    nextId: () => idOf(ownFamily?.idLength),
    callReason: isNamed ? 'stop' : 'tool_calls',
    format: forced && callSchema(forced, forms.family?.argumentsKey),
  };
}

const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';

function idOf(length: number | undefined): string {
  if (length === undefined) return `call_${randomUUID().replaceAll('-', '')}`;
  return Array.from(randomBytes(length), (byte) => LETTERS.charAt(byte % LETTERS.length)).join('');
}
