// Options of a conversation in the terminal, each declared once.
import type { Readable, Writable } from 'node:stream';
import { SAMPLING } from '../inference/sampling-options.js';
import { type Declared, declareOption, integer, type Options, string } from '../runtime/option.js';
import { snakeCase } from '../runtime/options.js';
import type { ContinuationOptions } from './served-engine.js';

/** Options of chat(). */
export const CHAT = {
  /** Source of questions, one per line. Default: standard input. */
  input: declareOption((_, input: Readable) => input, 'source of questions, one per line'),
  /** Destination of answers. Default: standard output. */
  output: declareOption((_, output: Writable) => output, 'destination of answers'),
  /** A system message before the conversation. */
  system: string('instruction to the model before the conversation', { flag: '--system <text>' }),
  /** A Jinja text in place of the tokenizer's own chat template. */
  chatTemplate: string("a Jinja text in place of the tokenizer's chat template"),
  /** Sampling options; they override generation_config.json. */
  sampling: declareOption((_, sampling: ContinuationOptions) => sampling, 'sampling options'),
};

/** Options of chat(); CHAT declares them. */
export interface ChatOptions extends Options<typeof CHAT> {}

/** Sampling options of a command line; switches and lists have no flag. */
export const CHAT_SAMPLING: Declared = {
  ...Object.fromEntries(
    Object.entries(SAMPLING)
      .filter(([, { syntax }]) => syntax === 'number' || syntax === 'integer')
      .map(([name, option]) => {
        const flag = `--${snakeCase(name).replaceAll('_', '-')} <n>`;
        return [name, { ...option, flag }];
      }),
  ),
  seed: { ...SAMPLING.seed, shown: 'random', flag: '--seed <n>' },
  maxNewTokens: integer('most tokens of an answer', {
    min: 1,
    shown: 'the rest of the context',
    flag: '--max-tokens <n>',
  }),
};
