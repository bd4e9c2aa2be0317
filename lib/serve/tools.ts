// Functions that a chat's model may call: read by the chat template; calls are texts of answers.
import type { JsonObject } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { invalid, unsupported } from './api-error.js';
import { isWithin, LEVELS, type RequestFields } from './request-fields.js';

/** Maximum number of functions in a request, as in OpenAI's API. */
export const MOST_TOOLS = 128;

/**
 * The functions of `tools`; an empty list with the `tool_choice` "none". Throws 400 for invalid
 * functions, another choice, and a template that does not read tools.
 */
export function readTools(fields: RequestFields, templateKnows: boolean): JsonObject[] {
  const choice = fields.any('tool_choice') ?? 'auto';
  if (choice !== 'auto' && choice !== 'none') {
    throw unsupported('tool_choice', 'the model chooses; send "auto" or "none"');
  }
  const given = fields.any('tools') ?? [];
  if (!Array.isArray(given) || given.length > MOST_TOOLS) {
    const got = Array.isArray(given) ? `${given.length}` : formatValue(given);
    throw invalid('tools', `a list of at most ${MOST_TOOLS} functions`, got);
  }
  const tools = given.map((one, i) => {
    const location = `tools[${i}]`;
    const { type, function: own } = isObject<JsonObject>(one) ? one : {};
    if (type !== 'function' || !isObject<JsonObject>(own)) {
      throw invalid(location, '{ "type": "function", "function": { .. } }', formatValue(one));
    }
    if (typeof own.name !== 'string' || own.name === '') {
      throw invalid(`${location}.function.name`, 'a name', formatValue(own.name));
    }
    if (isWithin(one, LEVELS)) return one as JsonObject;
    throw invalid(location, `at most ${LEVELS} levels of nesting`, 'more');
  });
  if (choice === 'none' || tools.length === 0) return [];
  if (templateKnows) return tools;
  const reason = "this model's chat template does not read tools; write them into a message";
  throw unsupported('tools', reason);
}
