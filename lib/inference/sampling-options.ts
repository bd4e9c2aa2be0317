// Declarations of the sampling options, which engines, HTTP bodies, generation_config.json and
// command lines read.

import { valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import {
  boolean,
  declareOption,
  integer,
  number,
  type Options,
  readDeclared,
  type Settings,
} from '../runtime/option.js';
import { requireInteger } from '../runtime/require-number.js';
import type { Tokenizer } from '../text/index.js';

/**
 * Most continuations or beams of a request. The host holds a state for each, so a larger number
 * would block it, or fill its memory.
 */
export const MAX_SEQUENCES = 2 ** 14;

/**
 * Options that a generation_config.json may set. `elsewhere` is the name in that file, `flag` the
 * argument of `ds train`.
 */
export const GENERATION_CONFIG = {
  /** Divides the scores; 0 selects the likeliest token. Default: 1. */
  temperature: number(
    'above 1: more surprising texts; below 1: less; 0: always the likeliest token',
    {
      min: 0,
      f32: true,
      default: 1,
      elsewhere: '`temperature`',
      flag: 'temperature',
    },
  ),
  /** Keeps the K likeliest tokens and ties of the K-th; 0 keeps all. Default: 0. */
  topK: integer('sample only from the K likeliest tokens, with ties of the K-th', {
    min: 0,
    default: 0,
    shown: '0: all',
    elsewhere: '`top_k`',
    flag: 'top_k',
  }),
  /**
   * Keeps the smallest set of likeliest tokens with this total probability, in [0, 1]; 0 keeps one.
   * Default: 1.
   */
  topP: number(
    'sample from the likeliest tokens with this total probability; 0.9 drops unlikely tokens',
    {
      min: 0,
      max: 1,
      default: 1,
      shown: '1: all',
      elsewhere: '`top_p`',
      flag: 'top_p',
    },
  ),
  /** Keeps tokens with at least this fraction of the largest probability, in [0, 1]. Default: 0. */
  minP: number('drop tokens below this share of the largest probability, such as 0.05', {
    min: 0,
    max: 1,
    default: 0,
    elsewhere: '`min_p`',
    flag: 'min_p',
  }),
  /**
   * Divides positive scores of tokens in the prompt and output, and multiplies negative logits. At
   * least 0.01. Default: 1.
   */
  repetitionPenalty: number(
    'above 1: repeat tokens of prompt and answer less, such as 1.1; at least 0.01',
    {
      min: 0.01, // With smaller divisors, scores could overflow.
      f32: true,
      default: 1,
      fix: '1 changes nothing; above 1 repeats less.',
      elsewhere: '`repetition_penalty`',
      flag: 'repetition_penalty',
    },
  ),
};

/** Options that are checked without a vocabulary. In HTTP bodies, names are in snake_case. */
export const SAMPLING = {
  /** False selects the likeliest token, as temperature 0 does. Default: true. */
  doSample: boolean('false: always take the likeliest token, as with `temperature` 0', {
    default: true,
  }),
  ...GENERATION_CONFIG,
  /** Subtracted from the scores of tokens in the output. Default: 0. */
  presencePenalty: number('above 0: use tokens of the answer less, however often they occurred', {
    f32: true,
    default: 0,
  }),
  /** Subtracted from the scores once for each occurrence in the output. Default: 0. */
  frequencyPenalty: number('above 0: the same, once for each time that a token occurred', {
    f32: true,
    default: 0,
  }),
  /** Tokens to sample before an end token or stop string may end the sequence. Default: 0. */
  minTokens: integer('number of tokens before the answer may end', {
    min: 0,
    default: 0,
  }),
  /**
   * Equal seeds and scores give equal tokens, independent of other sequences in the batch. Default:
   * a value of the global generator, see seed().
   */
  seed: integer('seed of the random numbers: the same seed gives the same text', {
    min: 0,
    default: null,
    shown: "the library's generator",
  }),
};

/** Vocabulary of a model. */
export interface Vocabulary {
  vocabSize: number;
  /** Tokenizes text; without it, text is refused. */
  tokenizer?: Tokenizer | null;
}

/** Options about tokens, for one vocabulary. */
export const tokenOptions = (vocabulary: Vocabulary) => ({
  /** Added to the scores of tokens, by id. -Infinity bans a token. */
  logitBias: declareOption(
    (op, bias: Readonly<Record<number, number>> | ReadonlyMap<number, number>) =>
      readBias(op, bias, vocabulary.vocabSize),
    'numbers added to the scores of tokens: `{ 50256: -100 }`, or a Map; `-Infinity` bans a token',
    { default: [], shown: 'none' },
  ),
  /**
   * Banned sequences: lists of 1 to 64 tokens, or text. The last token of a sequence is banned
   * after its other tokens. Text is tokenized at the start of a text and after a space.
   */
  badWords: declareOption(
    (op, words: readonly (string | readonly number[])[]) => readBadWords(op, words, vocabulary),
    'texts, or lists of up to 64 tokens, that an answer must not contain',
    { default: [], shown: 'none' },
  ),
  /** Restricts sampling to these tokens. Default: all. */
  allowedTokens: declareOption(
    (op, tokens: readonly number[]) => readAllowed(op, tokens, vocabulary.vocabSize),
    'sample from these tokens only',
    { default: null, shown: 'all' },
  ),
  /**
   * Returns the logprob of each token and of this many likeliest tokens; 0 returns only the first.
   * Logprobs are natural logarithms before all other options. Default: no logprobs.
   */
  logprobs: declareOption(
    (op, count: number) => readLogprobs(op, count, vocabulary.vocabSize),
    'return the logprob of each token, and this number of alternatives',
    { default: null },
  ),
});

type TokenOptions = ReturnType<typeof tokenOptions>;

/** Sampling options of one sequence. Defaults change nothing. */
export interface SamplingOptions extends Options<typeof SAMPLING>, Options<TokenOptions> {}

/** Checked options with defaults; temperature 0 is greedy. */
export interface SamplingRules
  extends Readonly<Omit<Settings<typeof SAMPLING>, 'doSample'>>,
    Readonly<Settings<TokenOptions>> {}

/** Longest bad word in tokens: the device keeps this many recent tokens of a sequence. */
const MAX_IN_BAD_WORD = 64;

const declareSampling = (vocabulary: Vocabulary) => ({
  ...SAMPLING,
  ...tokenOptions(vocabulary),
});

/** The options of a vocabulary: every request of an engine has the same. */
const declaredSampling = new WeakMap<Vocabulary, ReturnType<typeof declareSampling>>();

/** Checks `options`. Throws DS_ARGUMENT with the name of the option, prefixed by `op`. */
export function readSampling(
  op: string,
  options: SamplingOptions | undefined,
  vocabulary: Vocabulary,
): SamplingRules {
  const declared = declaredSampling.get(vocabulary) ?? declareSampling(vocabulary);
  declaredSampling.set(vocabulary, declared);
  const { doSample, ...rules } = readDeclared(op, options, declared);
  return doSample ? rules : { ...rules, temperature: 0 };
}

function readLogprobs(op: string, value: number, vocabSize: number): number {
  const count = requireInteger(op, value, 0);
  if (count <= vocabSize) return count;
  throw valueError(op, `at most the vocabulary size, ${vocabSize}`, count);
}

function readBias(
  op: string,
  bias: Readonly<Record<number, number>> | ReadonlyMap<number, number>,
  vocabSize: number,
): readonly (readonly [number, number])[] {
  if (!isObject(bias)) throw valueError(op, 'numbers by token, such as { 50256: -100 }', bias);
  const entries: [unknown, unknown][] = bias instanceof Map ? [...bias] : Object.entries(bias);
  return entries.map(([key, value]) => {
    const numericKey = typeof key === 'string' && key.trim() !== '' ? Number(key) : key;
    const token = requireToken(op, numericKey, vocabSize);
    if (typeof value === 'number' && value < Number.POSITIVE_INFINITY) return [token, value];
    const hint = '-Infinity bans a token; allowedTokens restricts sampling to a list.';
    throw valueError(`${op} of token ${token}`, 'a number below Infinity', value, hint);
  });
}

function readBadWords(
  op: string,
  words: unknown,
  vocabulary: Vocabulary,
): readonly (readonly number[])[] {
  if (!Array.isArray(words)) throw valueError(op, 'a list of lists of tokens', words);
  return words.flatMap((word: unknown, i) => readBadWord(`${op}[${i}]`, word, vocabulary));
}

function readBadWord(
  op: string,
  word: unknown,
  { vocabSize, tokenizer }: Vocabulary,
): readonly (readonly number[])[] {
  const isText = typeof word === 'string';
  if (isText && !tokenizer) {
    throw valueError(op, 'a list of tokens, without a tokenizer', word);
  }
  const sequences =
    isText && tokenizer ? tokenizeWord(tokenizer, word) : [isList(word) ? [...word] : []];
  for (const tokens of sequences) {
    if (tokens.length === 0 || tokens.length > MAX_IN_BAD_WORD) {
      const hint = isText ? `It is ${tokens.length} tokens.` : '';
      throw valueError(op, `1 to ${MAX_IN_BAD_WORD} tokens`, word, hint);
    }
    for (const token of tokens) requireToken(op, token, vocabSize);
  }
  return sequences;
}

/**
 * Tokenizes a word at the start of a text and after a space; returns one list if both are equal.
 * Source: bad_words of vLLM.
 */
function tokenizeWord(tokenizer: Tokenizer, word: string): number[][] {
  const encode = (text: string) => [...tokenizer.encode(text, { addSpecialTokens: false })];
  const [bare, spaced] = [encode(word.trimStart()), encode(` ${word.trimStart()}`)];
  return bare.join() === spaced.join() ? [bare] : [bare, spaced];
}

function readAllowed(op: string, tokens: unknown, vocabSize: number): readonly number[] {
  if (!isList(tokens) || tokens.length === 0) {
    const hint = 'Omit it to allow all tokens.';
    throw valueError(op, 'a list of at least one token', tokens, hint);
  }
  return Array.from(tokens, (token) => requireToken(op, token, vocabSize));
}

function isList(value: unknown): value is ArrayLike<number> & Iterable<number> {
  return Array.isArray(value) || value instanceof Int32Array;
}

/** Returns `token`. Throws DS_ARGUMENT with `op` unless it is in the vocabulary. */
export function requireToken(op: string, token: unknown, vocabSize: number): number {
  if (typeof token === 'number' && Number.isInteger(token) && token >= 0 && token < vocabSize) {
    return token;
  }
  throw valueError(op, `tokens from 0 to ${vocabSize - 1}`, token);
}
