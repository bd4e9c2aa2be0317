// The model of a server: its engine, tokenizer and bounds.
import type { Tokenizer } from '../text/index.js';
import { AnswerForms, type ParserNames } from '../text/tool-calls/answer-forms.js';
import type { ResolvedLimits } from './limits.js';
import { PromptReader } from './prompt-reader.js';
import { samplingDefaults } from './sampling-defaults.js';
import type { ContinuationOptions, ServedEngine } from './served-engine.js';

/** A loaded model. */
export interface ServedModel {
  /** Name of the model in requests. */
  readonly name: string;
  readonly engine: ServedEngine;
  readonly tokenizer: Tokenizer | null;
  /** Null without a tokenizer. */
  readonly reader: PromptReader | null;
  /** Whether the model has a chat template. */
  readonly canChat: boolean;
  /** How answers to chats are read. */
  readonly forms: AnswerForms;
  readonly vocabSize: number;
  /** Tokens of a prompt and its continuation together. */
  readonly maxTokens: number;
  /** Tokens of a prompt. */
  readonly maxPromptTokens: number;
  readonly defaults: ContinuationOptions;
  readonly limits: ResolvedLimits;
}

/** How its prompts are read. */
interface ReadingOptions extends ParserNames {
  threads: number;
  chatTemplate?: string;
}

/** UTF-16 units of a prompt, for models with a short context and for each token of the context. */
const [MIN_CHARACTERS, CHARACTERS] = [65_536, 16];

const charactersOf = (maxTokens: number): number =>
  Math.max(MIN_CHARACTERS, CHARACTERS * maxTokens);

/** The caller closes its reader. */
export function servedModel(
  engine: ServedEngine,
  name: string,
  limits: ResolvedLimits,
  reading: ReadingOptions,
): ServedModel {
  const { tokenizer, maxTokens, module } = engine;
  const hasTemplate =
    reading.chatTemplate !== undefined || tokenizer?.chatTemplates.includes('default');
  // A generator needs room for one new token.
  const max = Math.min(limits.promptTokens, engine.encoder ? maxTokens : maxTokens - 1);
  const { promptCharacters: characters = charactersOf(maxTokens), promptSeconds: seconds } = limits;
  return {
    maxPromptTokens: max,
    name,
    engine,
    tokenizer,
    maxTokens,
    limits,
    reader: tokenizer && new PromptReader(tokenizer, { ...reading, max: max, characters, seconds }),
    forms: new AnswerForms(tokenizer, templateOf(tokenizer, reading.chatTemplate), reading),
    canChat: tokenizer !== null && hasTemplate === true,
    vocabSize: module.vocabSize,
    defaults: samplingDefaults(module.describe()),
  };
}

/** The template that chats with tools use. */
const templateOf = (tokenizer: Tokenizer | null, own: string | undefined): string =>
  own ?? tokenizer?.templateText('tool_use') ?? tokenizer?.templateText('default') ?? '';
