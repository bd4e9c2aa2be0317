// A loaded model with its tokenizer, answer forms and limits.
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
  /** How to parse answers to chats. */
  readonly forms: AnswerForms;
  readonly vocabSize: number;
  /** Maximum number of tokens of a prompt and its continuation. */
  readonly maxTokens: number;
  /** Maximum number of tokens of a prompt. */
  readonly maxPromptTokens: number;
  readonly defaults: ContinuationOptions;
  readonly limits: ResolvedLimits;
}

/** Settings that decide how prompts are read. */
interface ReadingOptions extends ParserNames {
  threads: number;
  chatTemplate?: string;
}

/**
 * Default limit of a prompt in UTF-16 units: a minimum for short contexts, and units for each token
 * of the context.
 */
const [MIN_CHARACTERS, CHARACTERS] = [65_536, 16];

const maxCharacters = (maxTokens: number): number =>
  Math.max(MIN_CHARACTERS, CHARACTERS * maxTokens);

/** Creates the model of a server. The caller closes its reader. */
export function createServedModel(
  engine: ServedEngine,
  name: string,
  limits: ResolvedLimits,
  reading: ReadingOptions,
): ServedModel {
  const { tokenizer, maxTokens, module } = engine;
  const hasTemplate =
    reading.chatTemplate !== undefined || tokenizer?.chatTemplates.includes('default');
  // A generator needs space for one new token.
  const max = Math.min(limits.promptTokens, engine.encoder ? maxTokens : maxTokens - 1);
  const { promptCharacters: characters = maxCharacters(maxTokens), promptSeconds: seconds } =
    limits;
  return {
    maxPromptTokens: max,
    name,
    engine,
    tokenizer,
    maxTokens,
    limits,
    reader: tokenizer && new PromptReader(tokenizer, { ...reading, max: max, characters, seconds }),
    forms: new AnswerForms(tokenizer, toolTemplate(tokenizer, reading.chatTemplate), reading),
    canChat: tokenizer !== null && hasTemplate === true,
    vocabSize: module.vocabSize,
    defaults: samplingDefaults(module.describe()),
  };
}

/** Returns the chat template for requests with tools. */
const toolTemplate = (tokenizer: Tokenizer | null, override: string | undefined): string =>
  override ?? tokenizer?.templateText('tool_use') ?? tokenizer?.templateText('default') ?? '';
