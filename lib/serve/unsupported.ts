// OpenAI's parameters that this server refuses or ignores.
import { isDeepStrictEqual } from 'node:util';
import type { JsonValue } from '../../types/json.js';

import { unsupported } from './api-error.js';
import type { RequestFields } from './request-fields.js';

interface Missing {
  /** The reason, or a replacement. */
  reason: string;
  /** Values that have no effect. */
  off: readonly JsonValue[];
}

const FUNCTIONS = 'it is the old name of tools; send tools in a chat';
const AUDIO = 'answers are text';

/** Would change the answer. */
const MISSING: Readonly<Record<string, Missing>> = {
  functions: { reason: FUNCTIONS, off: [[]] },
  function_call: { reason: FUNCTIONS, off: ['none', 'auto'] },
  modalities: { reason: AUDIO, off: [['text']] },
  audio: { reason: AUDIO, off: [] },
  web_search_options: { reason: 'the server does not search', off: [] },
  suffix: { reason: 'the model continues texts at their end', off: [''] },
  best_of: { reason: 'the server compares no answers; send n', off: [1] },
  verbosity: { reason: 'request it in a message', off: ['medium'] },
};

/** Parameters for billing and caching. The answer does not depend on them. */
const WITHOUT_EFFECT = [
  'user',
  'metadata',
  'safety_identifier',
  'service_tier',
  'prompt_cache_key',
  'prompt_cache_retention',
  'prediction',
  'store',
];

/** Chat parameters that completions refuse. */
const MISSING_IN_TEXTS: Readonly<Record<string, Missing>> = {
  tools: { reason: 'only the template of a chat writes them', off: [[]] },
  tool_choice: { reason: 'only chats have tools', off: ['none', 'auto'] },
  parallel_tool_calls: { reason: 'only chats have tools', off: [true, false] },
  reasoning_effort: { reason: 'only the template of a chat reads it', off: [] },
};

/** Throws 400 for the first parameter of a chat with an unsupported value. */
export function requireSupported(fields: RequestFields): void {
  for (const name of WITHOUT_EFFECT) fields.any(name);
  requireOff(fields, MISSING);
}

/** Refuses unsupported fields of /v1/completions. */
export function requireSupportedInTexts(fields: RequestFields): void {
  requireOff(fields, MISSING_IN_TEXTS);
  requireSupported(fields);
}

function requireOff(fields: RequestFields, missing: Readonly<Record<string, Missing>>): void {
  for (const [name, { reason, off }] of Object.entries(missing)) {
    const value = fields.any(name);
    if (value === undefined || off.some((item) => isDeepStrictEqual(item, value))) continue;
    throw unsupported(name, reason);
  }
}
