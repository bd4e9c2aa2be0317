// The forms of calls and reasoning, and the choice of them by a chat template.

import type { FunctionTool } from './call-schema.js';
import { FUNCTION_GEMMA, GEMMA_4, gemmaCalls } from './gemma-calls.js';
import { HARMONY, harmonyCalls } from './harmony.js';
import {
  deepseekHeld,
  gemmaHeld,
  glmHeld,
  type HeldCalls,
  harmonyHeld,
  hermesHeld,
  llamaHeld,
  mistralHeld,
  phiHeld,
  qwenCoderHeld,
} from './held-calls.js';
import type { CallReading } from './json-call.js';
import {
  DEEPSEEK,
  deepseekCalls,
  forcedCall,
  hermesCalls,
  llamaCalls,
  mistralCalls,
  phiCalls,
} from './json-families.js';
import type { ReasoningName } from './reasoning.js';
import { glmCalls, qwenCoderCalls } from './tagged-values.js';
import type { Reading } from './text-input.js';

/** How a family of models writes calls. */
export interface CallFamily {
  /** Reads an answer to its end. */
  read: (reading: CallReading) => Reading;
  /** Tokens of the form, which the text must show even if they are special. */
  tokens: readonly string[];
  /** Length of an id. Mistral's templates insist on 9 letters and digits. */
  idLength?: number;
  /** Calls and reasoning are messages of one form, which is always read. */
  isWhole?: boolean;
  /** The text before the JSON of a forced call or of a format. Default: none. */
  jsonStart?: string;
  /** The text of calls for a grammar that holds them to schemas; absent: calls stay free. */
  hold?: (tools: readonly FunctionTool[], hasToken: (token: string) => boolean) => HeldCalls;
  /** The key of the arguments in JSON calls. Default: "arguments". */
  argumentsKey?: string;
}

const GEMMA_TOKENS = ({ begin, end, quote }: Record<'begin' | 'end' | 'quote', string>) => [
  begin,
  end,
  quote,
];

export const CALL_FAMILIES = {
  hermes: {
    read: hermesCalls,
    tokens: ['<tool_call>', '</tool_call>'],
    jsonStart: '<tool_call>\n',
    hold: hermesHeld,
  },
  'qwen3-coder': {
    read: qwenCoderCalls,
    tokens: ['<tool_call>', '</tool_call>'],
    hold: qwenCoderHeld,
  },
  llama: {
    read: llamaCalls,
    tokens: ['<|python_tag|>'],
    argumentsKey: 'parameters',
    hold: llamaHeld,
  },
  mistral: {
    read: mistralCalls,
    tokens: ['[TOOL_CALLS]', '[ARGS]', '[CALL_ID]'],
    idLength: 9,
    hold: mistralHeld,
  },
  phi: { read: phiCalls, tokens: [], hold: phiHeld },
  deepseek: { read: deepseekCalls, tokens: DEEPSEEK, hold: deepseekHeld },
  'gpt-oss': {
    read: harmonyCalls,
    tokens: HARMONY,
    isWhole: true,
    jsonStart: '<|channel|>final<|message|>',
    hold: harmonyHeld,
  },
  glm: {
    read: glmCalls,
    tokens: [
      '<tool_call>',
      '</tool_call>',
      '<arg_key>',
      '</arg_key>',
      '<arg_value>',
      '</arg_value>',
    ],
    hold: glmHeld,
  },
  'function-gemma': {
    read: gemmaCalls(FUNCTION_GEMMA),
    tokens: GEMMA_TOKENS(FUNCTION_GEMMA),
    hold: gemmaHeld(FUNCTION_GEMMA),
  },
  gemma: {
    read: gemmaCalls(GEMMA_4),
    tokens: GEMMA_TOKENS(GEMMA_4),
    hold: gemmaHeld(GEMMA_4),
  },
} as const satisfies Record<string, CallFamily>;

/** A call that the request forces: JSON in every family, with any reasoning closed before it. */
export const FORCED_CALL: CallFamily = { read: forcedCall, tokens: [] };

/** Names of the forms of calls. */
export type CallFamilyName = keyof typeof CALL_FAMILIES;

/** Texts of templates by family; the first match counts. */
const FAMILY_TEXTS: readonly (readonly [CallFamilyName, RegExp])[] = [
  ['gpt-oss', /<\|channel\|>/],
  ['deepseek', /<｜tool▁call/],
  ['mistral', /\[TOOL_CALLS\]/],
  ['function-gemma', /<start_function_call>/],
  ['gemma', /<\|tool_call>/],
  ['glm', /<arg_key>/],
  ['qwen3-coder', /<function=/],
  ['hermes', /<tool_call>/],
  ['phi', /functools|<\|tool\|>/],
  ['llama', /<\|python_tag\|>|<\|start_header_id\|>|<\|header_start\|>/],
];

const REASONING_TEXTS: readonly (readonly [ReasoningName, RegExp])[] = [
  ['think', /<\/?think>/],
  ['mistral', /\[THINK\]/],
  ['gemma', /<\|channel>/],
];

/** The form of calls of a chat template; null if it shows none. */
export const familyOf = (template: string): CallFamilyName | null =>
  FAMILY_TEXTS.find(([, text]) => text.test(template))?.[0] ?? null;

/** The form of reasoning of a chat template; null if it shows none. */
export const reasoningOf = (template: string): ReasoningName | null =>
  REASONING_TEXTS.find(([, text]) => text.test(template))?.[0] ?? null;
