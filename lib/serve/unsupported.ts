// Parameters of OpenAI's interface that this server has not got, and those that change nothing.
import { isDeepStrictEqual } from 'node:util';
import type { JsonValue } from '../../types/json.js';

import { unsupported } from './api-error.js';
import type { RequestFields } from './request-fields.js';

interface Missing {
  /** Why, or what to use instead. */
  reason: string;
  /** Values that ask for nothing. */
  off: readonly JsonValue[];
}

const FUNCTIONS = 'it is the old name of tools, which chats take';
const AUDIO = 'answers are text';

/** Would change the answer. */
const MISSING: Readonly<Record<string, Missing>> = {
  functions: { reason: FUNCTIONS, off: [[]] },
  function_call: { reason: FUNCTIONS, off: ['none', 'auto'] },
  response_format: {
    reason:
      'answers are held to no form: it takes {"type": "text"} alone; ask for JSON in a message',
    off: [{ type: 'text' }],
  },
  modalities: { reason: AUDIO, off: [['text']] },
  audio: { reason: AUDIO, off: [] },
  web_search_options: { reason: 'nothing is searched', off: [] },
  suffix: { reason: 'the model continues texts at their end', off: [''] },
  best_of: { reason: 'answers are not compared; ask for n', off: [1] },
  store: { reason: 'nothing is kept', off: [false] },
  reasoning_effort: { reason: 'give chat_template_kwargs what the template reads', off: [] },
  verbosity: { reason: 'ask for it in a message', off: ['medium'] },
};

/** Says how to bill, find or speed up a request, and leaves the answer as it is. */
const WITHOUT_EFFECT = [
  ...['user', 'metadata', 'safety_identifier', 'service_tier', 'prompt_cache_key'],
  ...['prompt_cache_retention', 'prediction', 'parallel_tool_calls'],
];

/** What continuations of texts have not got beside that. */
const MISSING_IN_TEXTS: Readonly<Record<string, Missing>> = {
  tools: { reason: 'chats alone have a template that writes them', off: [[]] },
  tool_choice: { reason: 'chats alone have tools', off: ['none', 'auto'] },
};

/** Throws 400 for the first parameter of a chat that asks for what is not there. */
export function requireSupported(fields: RequestFields): void {
  for (const name of WITHOUT_EFFECT) fields.any(name);
  requireOff(fields, MISSING);
}

/** The same of a continuation. */
export function requireSupportedInTexts(fields: RequestFields): void {
  requireOff(fields, MISSING_IN_TEXTS);
  requireSupported(fields);
}

function requireOff(fields: RequestFields, missing: Readonly<Record<string, Missing>>): void {
  for (const [name, { reason, off }] of Object.entries(missing)) {
    const value = fields.any(name);
    if (value === undefined || off.some((one) => isDeepStrictEqual(one, value))) continue;
    throw unsupported(name, reason);
  }
}
