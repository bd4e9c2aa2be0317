// Functions that a chat's model may call, and how its answer is read.
import { randomBytes, randomUUID } from 'node:crypto';
import type { JsonObject, JsonValue } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import type { AnswerForm, FunctionTool } from '../text/tool-calls/answer-reader.js';
import type { AnswerForms } from './answer-forms.js';
import { invalid, unsupported } from './api-error.js';
import { isWithin, LEVELS, type RequestFields } from './request-fields.js';

/** Maximum number of functions in a request, as in OpenAI's API. */
export const MOST_TOOLS = 128;

/** The functions of a request. */
export interface ToolRequest {
  /** Empty with the `tool_choice` "none". */
  tools: readonly FunctionTool[];
  /** `parallel_tool_calls` is false: the answer ends with its first call. */
  isSingle: boolean;
}

/** How the text of an answer becomes content, reasoning and calls. */
export interface CallPlan {
  form: AnswerForm;
  /** Special tokens that the text must show. */
  visibleTokens: readonly number[];
  /** The id of the next call. */
  nextId: () => string;
}

/**
 * The functions of a request. Throws 400 for invalid functions, an unsupported choice, and a
 * template that does not read tools.
 */
export function readTools(fields: RequestFields, templateKnows: boolean): ToolRequest {
  const choice = fields.any('tool_choice') ?? 'auto';
  if (choice !== 'auto' && choice !== 'none') {
    throw unsupported('tool_choice', 'the model chooses; send "auto" or "none"');
  }
  const isSingle = fields.flag('parallel_tool_calls') === false;
  const tools = toolsOf(fields.any('tools') ?? []);
  if (choice === 'none' || tools.length === 0) return { tools: [], isSingle };
  if (templateKnows) return { tools, isSingle };
  const reason = "this model's chat template does not read tools; write them into a message";
  throw unsupported('tools', reason);
}

function toolsOf(given: JsonValue): FunctionTool[] {
  if (!Array.isArray(given) || given.length > MOST_TOOLS) {
    const got = Array.isArray(given) ? `${given.length}` : formatValue(given);
    throw invalid('tools', `a list of at most ${MOST_TOOLS} functions`, got);
  }
  return given.map((one, i) => {
    const location = `tools[${i}]`;
    const { type, function: own } = isObject<JsonObject>(one) ? one : {};
    if (type !== 'function' || !isObject<JsonObject>(own)) {
      throw invalid(location, '{ "type": "function", "function": { .. } }', formatValue(one));
    }
    if (typeof own.name !== 'string' || own.name === '') {
      throw invalid(`${location}.function.name`, 'a name', formatValue(own.name));
    }
    const { parameters } = own;
    if (parameters !== undefined && parameters !== null && !isObject(parameters)) {
      const expected = 'a JSON schema';
      throw invalid(`${location}.function.parameters`, expected, formatValue(parameters));
    }
    if (isWithin(one, LEVELS)) return one as unknown as FunctionTool;
    throw invalid(location, `at most ${LEVELS} levels of nesting`, 'more');
  });
}

/** How the answer to a chat is read; null if all of it is content. */
export function callPlan(forms: AnswerForms, { tools, isSingle }: ToolRequest): CallPlan | null {
  const family = tools.length > 0 || forms.family?.isWhole ? forms.family : null;
  const { reasoning } = forms;
  if (!family && !reasoning) return null;
  const form = { family, reasoning, tools, ...(isSingle && { mostCalls: 1 }) };
  const visibleTokens = forms.visibleTokens(form);
  return { form, visibleTokens, nextId: () => idOf(family?.idLength) };
}

const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';

function idOf(length: number | undefined): string {
  if (length === undefined) return `call_${randomUUID().replaceAll('-', '')}`;
  return Array.from(randomBytes(length), (byte) => LETTERS.charAt(byte % LETTERS.length)).join('');
}
