// The known forms of calls and reasoning, and their detection in a chat template.

import {
  type CallGrammar,
  deepseekGrammar,
  gemmaGrammar,
  glmGrammar,
  harmonyGrammar,
  hermesGrammar,
  llamaGrammar,
  mistralGrammar,
  phiGrammar,
  qwenCoderGrammar,
} from './call-grammars.js';
import type { FunctionTool } from './call-schema.js';
import { FUNCTION_GEMMA, GEMMA_4, readGemmaCalls } from './gemma-calls.js';
import { HARMONY, readHarmonyAnswer } from './harmony.js';
import type { CallContext } from './json-call.js';
import {
  DEEPSEEK,
  readDeepseekCalls,
  readForcedCall,
  readHermesCalls,
  readLlamaCalls,
  readMistralCalls,
  readPhiCalls,
} from './json-families.js';
import type { ReasoningName } from './reasoning.js';
import { readGlmCalls, readQwenCoderCalls } from './tagged-values.js';
import type { Parser } from './text-input.js';

/** How a family of models writes calls. */
export interface CallFamily {
  /** Parses an answer to its end. */
  read: (context: CallContext) => Parser;
  /** Special tokens that mark calls. The decoded text of an answer keeps them. */
  tokens: readonly string[];
  /** Length of a call's id. Mistral's templates require 9 letters and digits. */
  idLength?: number;
  /**
   * Whether the family writes calls, reasoning and answers as messages of one format. The server
   * then parses every answer.
   */
  isWhole?: boolean;
  /** Text before the JSON of a forced call or of a format. Default: none. */
  jsonStart?: string;
  /** Returns a grammar of calls that match their schemas; absent if calls cannot be constrained. */
  constrain?: (tools: readonly FunctionTool[], hasToken: (token: string) => boolean) => CallGrammar;
  /** Key of the arguments in JSON calls. Default: "arguments". */
  argumentsKey?: string;
}

const GEMMA_TOKENS = ({ begin, end, quote }: Record<'begin' | 'end' | 'quote', string>) => [
  begin,
  end,
  quote,
];

export const CALL_FAMILIES = {
  hermes: {
    read: readHermesCalls,
    tokens: ['<tool_call>', '</tool_call>'],
    jsonStart: '<tool_call>\n',
    constrain: hermesGrammar,
  },
  'qwen3-coder': {
    read: readQwenCoderCalls,
    tokens: ['<tool_call>', '</tool_call>'],
    constrain: qwenCoderGrammar,
  },
  llama: {
    read: readLlamaCalls,
    tokens: ['<|python_tag|>'],
    argumentsKey: 'parameters',
    constrain: llamaGrammar,
  },
  mistral: {
    read: readMistralCalls,
    tokens: ['[TOOL_CALLS]', '[ARGS]', '[CALL_ID]'],
    idLength: 9,
    constrain: mistralGrammar,
  },
  phi: { read: readPhiCalls, tokens: [], constrain: phiGrammar },
  deepseek: { read: readDeepseekCalls, tokens: DEEPSEEK, constrain: deepseekGrammar },
  'gpt-oss': {
    read: readHarmonyAnswer,
    tokens: HARMONY,
    isWhole: true,
    jsonStart: '<|channel|>final<|message|>',
    constrain: harmonyGrammar,
  },
  glm: {
    read: readGlmCalls,
    tokens: [
      '<tool_call>',
      '</tool_call>',
      '<arg_key>',
      '</arg_key>',
      '<arg_value>',
      '</arg_value>',
    ],
    constrain: glmGrammar,
  },
  'function-gemma': {
    read: readGemmaCalls(FUNCTION_GEMMA),
    tokens: GEMMA_TOKENS(FUNCTION_GEMMA),
    constrain: gemmaGrammar(FUNCTION_GEMMA),
  },
  gemma: {
    read: readGemmaCalls(GEMMA_4),
    tokens: GEMMA_TOKENS(GEMMA_4),
    constrain: gemmaGrammar(GEMMA_4),
  },
} as const satisfies Record<string, CallFamily>;

/** Form of a call that the request forces: JSON in every family, after closed reasoning. */
export const FORCED_CALL: CallFamily = { read: readForcedCall, tokens: [] };

/** Names of the forms of calls. */
export type CallFamilyName = keyof typeof CALL_FAMILIES;

/** Patterns in chat templates by family; the first match applies. */
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

/** Returns the form of calls in a chat template; null if it has none. */
export const detectFamily = (template: string): CallFamilyName | null =>
  FAMILY_TEXTS.find(([, text]) => text.test(template))?.[0] ?? null;

/** Returns the form of reasoning in a chat template; null if it has none. */
export const detectReasoning = (template: string): ReasoningName | null =>
  REASONING_TEXTS.find(([, text]) => text.test(template))?.[0] ?? null;
