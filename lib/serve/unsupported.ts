// Parameters of OpenAI and vLLM that this server refuses or ignores.
import { isDeepStrictEqual } from 'node:util';
import type { JsonValue } from '../../types/json.js';

import { unsupportedError } from './api-error.js';
import type { RequestFields } from './request-fields.js';

interface UnsupportedField {
  /** The reason, or a replacement. */
  reason: string;
  /** Values that are accepted because they have no effect. */
  ignored: readonly JsonValue[];
}

const FUNCTIONS = 'it was replaced by tools; send tools in a chat';
const AUDIO = 'answers are text';

/** Parameters that would change the answer. */
const UNSUPPORTED: Readonly<Record<string, UnsupportedField>> = {
  functions: { reason: FUNCTIONS, ignored: [[]] },
  function_call: { reason: FUNCTIONS, ignored: ['none', 'auto'] },
  modalities: { reason: AUDIO, ignored: [['text']] },
  audio: { reason: AUDIO, ignored: [] },
  web_search_options: { reason: 'the server does not search the web', ignored: [] },
  suffix: { reason: 'the model only continues a text at its end', ignored: [''] },
  best_of: { reason: 'the server does not rank answers; send n', ignored: [1] },
  moderation: { reason: 'the server checks no contents', ignored: [] },
  include_stop_str_in_output: { reason: 'answers end before the stop string', ignored: [false] },
  skip_special_tokens: { reason: 'answers contain no special tokens', ignored: [true] },
  spaces_between_special_tokens: { reason: 'answers contain no such tokens', ignored: [true] },
  use_beam_search: { reason: 'the server has no beam search', ignored: [false] },
  length_penalty: { reason: 'the server has no beam search', ignored: [1] },
  include_reasoning: { reason: 'answers contain their reasoning', ignored: [true] },
  verbosity: { reason: 'request it in a message', ignored: ['medium'] },
};

/** Parameters for billing and caching, which do not change the answer. */
const WITHOUT_EFFECT = [
  'user',
  'metadata',
  'safety_identifier',
  'service_tier',
  'prompt_cache_key',
  'prompt_cache_options',
  'prompt_cache_retention',
  'prediction',
  'cache_prompt',
  'store',
];

/** Chat parameters that completions refuse. */
const UNSUPPORTED_IN_TEXTS: Readonly<Record<string, UnsupportedField>> = {
  tools: { reason: 'only the template of a chat writes them', ignored: [[]] },
  tool_choice: { reason: 'only chats have tools', ignored: ['none', 'auto'] },
  parallel_tool_calls: { reason: 'only chats have tools', ignored: [true, false] },
  reasoning_effort: { reason: 'only the template of a chat reads it', ignored: [] },
};

/** Throws 400 if a chat sets an unsupported parameter. */
export function requireSupported(fields: RequestFields): void {
  for (const name of WITHOUT_EFFECT) fields.any(name);
  requireOff(fields, UNSUPPORTED);
}

/** Throws 400 if a completion sets an unsupported parameter. */
export function requireSupportedInTexts(fields: RequestFields): void {
  requireOff(fields, UNSUPPORTED_IN_TEXTS);
  requireSupported(fields);
}

function requireOff(
  fields: RequestFields,
  unsupported: Readonly<Record<string, UnsupportedField>>,
): void {
  for (const [name, { reason, ignored }] of Object.entries(unsupported)) {
    const value = fields.any(name);
    if (value === undefined || ignored.some((item) => isDeepStrictEqual(item, value))) continue;
    throw unsupportedError(name, reason);
  }
}
