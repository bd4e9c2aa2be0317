// Sampling options of one sequence: their checks and defaults.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { nextRandom } from '../tensor/index.js';
import type { Tokenizer } from '../text/index.js';

/** Sampling options of one sequence. Defaults change nothing. */
export interface SamplingOptions {
  /** False selects the likeliest token, as temperature 0 does. Default: true. */
  doSample?: boolean;
  /** Divides the scores; 0 selects the likeliest token. Default: 1. */
  temperature?: number;
  /** Keeps the K likeliest tokens and ties of the K-th; 0 keeps all. Default: 0. */
  topK?: number;
  /**
   * Keeps the smallest set of likeliest tokens with this total probability, in [0, 1]; 0 keeps one.
   * Default: 1.
   */
  topP?: number;
  /** Keeps tokens with at least this fraction of the largest probability, in [0, 1]. Default: 0. */
  minP?: number;
  /**
   * Divides positive scores of tokens in the prompt and output, and multiplies negative ones. At
   * least 0.01. Default: 1.
   */
  repetitionPenalty?: number;
  /** Subtracted from the scores of tokens in the output. Default: 0. */
  presencePenalty?: number;
  /** Subtracted from the scores once for each occurrence in the output. Default: 0. */
  frequencyPenalty?: number;
  /** Added to the scores of tokens, by id. -Infinity bans a token. */
  logitBias?: Readonly<Record<number, number>> | ReadonlyMap<number, number>;
  /**
   * Banned sequences: lists of 1 to 64 tokens, or text. The last token of a sequence is banned
   * after its other tokens. Text is tokenized at the start of a text and after a space.
   */
  badWords?: readonly (string | readonly number[])[];
  /** Restricts sampling to these tokens. Default: all. */
  allowedTokens?: readonly number[];
  /** Tokens to sample before an end token or stop string may end the sequence. Default: 0. */
  minTokens?: number;
  /**
   * Equal seeds and scores give equal tokens, independent of other sequences in the batch. Default:
   * a value of the global generator, see seed().
   */
  seed?: number;
  /**
   * Returns the logprob of each token and of this many likeliest tokens; 0 returns only the first.
   * Logprobs are natural logarithms before all other options. Default: no logprobs.
   */
  logprobs?: number;
}

/** Names of SamplingOptions. */
export const SAMPLING: OptionNames<SamplingOptions> = {
  ...{ doSample: true, temperature: true, topK: true, topP: true, minP: true },
  ...{ repetitionPenalty: true, presencePenalty: true, frequencyPenalty: true },
  ...{ logitBias: true, badWords: true, allowedTokens: true, minTokens: true },
  ...{ seed: true, logprobs: true },
};

/** Checked options with defaults. */
export interface SamplingRules {
  /** 0 for greedy. */
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  readonly logitBias: readonly (readonly [number, number])[];
  readonly badWords: readonly (readonly number[])[];
  readonly allowedTokens: readonly number[] | null;
  readonly minTokens: number;
  readonly seed: number | null;
  readonly logprobs: number | null;
}

/** With smaller divisors, scores could overflow. */
export const LEAST_REPETITION_PENALTY = 0.01;
/** Longest bad word in tokens: the device keeps this many recent tokens of a sequence. */
const MOST_IN_BAD_WORD = 64;

/** Vocabulary of a model. */
export interface Vocabulary {
  vocabSize: number;
  /** Tokenizes text; without it, text is refused. */
  tokenizer?: Tokenizer | null;
}

/** Checks `options`. Throws DS_ARGUMENT with the name of the option, prefixed by `op`. */
function readSampling(
  op: string,
  options: SamplingOptions | undefined,
  { vocabSize, tokenizer }: Vocabulary,
): SamplingRules {
  const given = readOptions<SamplingOptions>(op, options, SAMPLING);
  const number = (name: keyof SamplingOptions & string, fallback: number, least?: number) =>
    requireFinite(`${op} ${name}`, or(given[name], fallback), least);
  const part = (name: 'topP' | 'minP', fallback: number): number => {
    const value = number(name, fallback);
    if (value >= 0 && value <= 1) return value;
    throw refused(op, name, 'a number from 0 to 1', value, '');
  };
  const repetitionPenalty = number('repetitionPenalty', 1);
  if (repetitionPenalty < LEAST_REPETITION_PENALTY) {
    const hint = '1 changes nothing; above 1 repeats less.';
    const expected = `a number of ${LEAST_REPETITION_PENALTY} or more`;
    throw refused(op, 'repetitionPenalty', expected, repetitionPenalty, hint);
  }
  const doSample = requireType(`${op} doSample`, or(given.doSample, true), 'boolean');
  const { seed, logprobs } = given;
  return {
    temperature: doSample ? float32(op, 'temperature', number('temperature', 1, 0)) : 0,
    topK: requireInteger(`${op} topK`, or(given.topK, 0), 0),
    topP: part('topP', 1),
    minP: part('minP', 0),
    repetitionPenalty: float32(op, 'repetitionPenalty', repetitionPenalty),
    presencePenalty: float32(op, 'presencePenalty', number('presencePenalty', 0)),
    frequencyPenalty: float32(op, 'frequencyPenalty', number('frequencyPenalty', 0)),
    logitBias: readBias(op, given.logitBias, vocabSize),
    badWords: readBadWords(op, given.badWords, { vocabSize, tokenizer }),
    allowedTokens: readAllowed(op, given.allowedTokens, vocabSize),
    minTokens: requireInteger(`${op} minTokens`, or(given.minTokens, 0), 0),
    seed: seed === undefined ? null : requireInteger(`${op} seed`, seed, 0),
    logprobs: logprobs === undefined ? null : readLogprobs(op, logprobs, vocabSize),
  };
}

/** Replaces undefined only; null is refused as a value. */
const or = <T>(value: T | undefined, fallback: T): T => (value === undefined ? fallback : value);

/** Throws DS_ARGUMENT for a value that overflows or underflows in f32, the device's precision. */
function float32(op: string, name: string, value: number): number {
  const kept = Math.fround(value);
  if (Number.isFinite(kept) && (value === 0) === (kept === 0)) return value;
  throw refused(op, name, 'a number in the range of f32', value, '');
}

function readLogprobs(op: string, value: unknown, vocabSize: number): number {
  const asked = requireInteger(`${op} logprobs`, value, 0);
  if (asked <= vocabSize) return asked;
  throw refused(op, 'logprobs', `at most the vocabulary size, ${vocabSize}`, asked, '');
}

function readBias(
  op: string,
  bias: SamplingOptions['logitBias'],
  vocabSize: number,
): [number, number][] {
  if (bias === undefined) return [];
  if (!isObject(bias)) {
    throw refused(op, 'logitBias', 'numbers by token, such as { 50256: -100 }', bias, '');
  }
  const entries = bias instanceof Map ? [...bias] : Object.entries(bias);
  return entries.map(([key, value]) => {
    const token = typeof key === 'string' && key.trim() !== '' ? Number(key) : key;
    requireToken(op, 'logitBias', token, vocabSize);
    if (typeof value === 'number' && value < Number.POSITIVE_INFINITY) {
      return [token as number, value];
    }
    const hint = '-Infinity bans a token; allowedTokens restricts sampling to a list.';
    throw refused(op, `logitBias of token ${token}`, 'a number below Infinity', value, hint);
  });
}

function readBadWords(op: string, words: unknown, vocabulary: Vocabulary): number[][] {
  if (words === undefined) return [];
  if (!Array.isArray(words)) throw refused(op, 'badWords', 'a list of lists of tokens', words, '');
  return words.flatMap((word: unknown, i) => readBadWord(op, `badWords[${i}]`, word, vocabulary));
}

function readBadWord(
  op: string,
  name: string,
  word: unknown,
  { vocabSize, tokenizer }: Vocabulary,
): number[][] {
  const isText = typeof word === 'string';
  if (isText && !tokenizer) {
    throw refused(op, name, 'a list of tokens, without a tokenizer', word, '');
  }
  const spelled =
    isText && tokenizer ? spellings(tokenizer, word) : [isList(word) ? [...word] : []];
  for (const tokens of spelled) {
    if (tokens.length === 0 || tokens.length > MOST_IN_BAD_WORD) {
      const hint = isText ? `It is ${tokens.length} tokens.` : '';
      throw refused(op, name, `1 to ${MOST_IN_BAD_WORD} tokens`, word, hint);
    }
    for (const token of tokens) requireToken(op, name, token, vocabSize);
  }
  return spelled;
}

/**
 * Tokenizes a word at the start of a text and after a space; returns one list if both are equal.
 * Source: bad_words of vLLM.
 */
function spellings(tokenizer: Tokenizer, word: string): number[][] {
  const encode = (text: string) => [...tokenizer.encode(text, { addSpecialTokens: false })];
  const [bare, spaced] = [encode(word.trimStart()), encode(` ${word.trimStart()}`)];
  return bare.join() === spaced.join() ? [bare] : [bare, spaced];
}

function readAllowed(op: string, tokens: unknown, vocabSize: number): number[] | null {
  if (tokens === undefined) return null;
  if (!isList(tokens) || tokens.length === 0) {
    const hint = 'Omit it to allow all tokens.';
    throw refused(op, 'allowedTokens', 'a list of at least one token', tokens, hint);
  }
  const listed = Array.from(tokens);
  for (const token of listed) requireToken(op, 'allowedTokens', token, vocabSize);
  return listed;
}

function isList(value: unknown): value is ArrayLike<number> & Iterable<number> {
  return Array.isArray(value) || value instanceof Int32Array;
}

/** Throws DS_ARGUMENT with the name `what` unless `token` is in the vocabulary. */
export function requireToken(op: string, what: string, token: unknown, vocabSize: number): void {
  if (typeof token === 'number' && Number.isInteger(token) && token >= 0 && token < vocabSize)
    return;
  throw refused(op, what, `tokens from 0 to ${vocabSize - 1}`, token, '');
}

function refused(op: string, name: string, expected: string, got: unknown, hint: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: `${op} ${name}`,
    expected,
    got: formatValue(got),
    hint,
  });
}

/** A 64-bit key of a sequence's noise, as two 32-bit words. */
type SeedWords = readonly [low: number, high: number];

const WORD = 2 ** 32;
/** Seeds are below 2^53. The sample index uses the bits above the upper 21 bits of the seed. */
const SAMPLES = 2 ** 10;
const SAMPLE_UNIT = 2 ** 21;

/**
 * Sampling rules and random key of one sequence. They stay with the sequence when its slot changes.
 */
export class SequenceSampling {
  readonly rules: SamplingRules;
  readonly seed: SeedWords;

  /**
   * `index` numbers the samples of a request. Throws DS_ARGUMENT with the name of the option,
   * prefixed by `op`.
   */
  constructor(op: string, options: SamplingOptions | undefined, vocabulary: Vocabulary, index = 0) {
    this.rules = readSampling(op, options, vocabulary);
    this.seed = seedWords(this.rules.seed, requireInteger(`${op} index`, index, 0));
  }
}

/**
 * Returns a key that is unique for each seed and sample index. Without a seed, the key comes from
 * the global generator and equals no seeded key.
 */
function seedWords(seed: number | null, index: number): SeedWords {
  if (seed === null) {
    const { seed: own, offset } = nextRandom();
    return [(own ^ Math.floor(own / WORD)) | 0, offset | 0x8000_0000 | 0];
  }
  const high = Math.floor(seed / WORD) + (index % SAMPLES) * SAMPLE_UNIT;
  return [seed | 0, high | 0];
}
