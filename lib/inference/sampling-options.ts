// How one sequence is sampled: the options as users write them, checked, and what they mean.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { nextRandom } from '../tensor/index.js';
import type { Tokenizer } from '../text/index.js';

/** How the tokens of one sequence are chosen. Everything has a default that changes nothing. */
export interface SamplingOptions {
  /** False takes the likeliest token, as temperature 0 does. Default true. */
  doSample?: boolean;
  /** Scores are divided by it; 0 takes the likeliest token. Default 1. */
  temperature?: number;
  /**
   * Only the K likeliest tokens are candidates, and those as likely as the K-th; 0 for all. Default
   * 0.
   */
  topK?: number;
  /**
   * Only the likeliest tokens are candidates whose probabilities reach it together, in [0, 1]; 0
   * leaves one. Default 1.
   */
  topP?: number;
  /**
   * Only tokens at least this part as likely as the likeliest are candidates, in [0, 1]. Default 0.
   */
  minP?: number;
  /**
   * Scores of tokens of the prompt and of the output are divided by it, negative ones times it; at
   * least 0.01. Default 1.
   */
  repetitionPenalty?: number;
  /** Is subtracted from the scores of tokens of the output. Default 0. */
  presencePenalty?: number;
  /** The same, times how often the token is in the output. Default 0. */
  frequencyPenalty?: number;
  /** Is added to the scores of tokens, by id. -Infinity bans a token. */
  logitBias?: Readonly<Record<number, number>> | ReadonlyMap<number, number>;
  /**
   * Sequences that may not be sampled: each a list of 1 to 64 tokens, of which the last is banned
   * where the others stand before it, or a text as the tokenizer writes it at the beginning and
   * behind a space.
   */
  badWords?: readonly (string | readonly number[])[];
  /** Only these tokens are candidates. Default: all. */
  allowedTokens?: readonly number[];
  /** Tokens to sample before a token or a stop string may end the sequence. Default 0. */
  minTokens?: number;
  /**
   * The same seed gives the same tokens for the same scores, whatever else is sampled beside them.
   * Default: the library's generator, see seed().
   */
  seed?: number;
  /**
   * Tells how likely each token was, and that of this many likeliest ones; 0 tells the token's own
   * alone. Logarithms of the model's own probabilities, before anything above. Default: nothing.
   */
  logprobs?: number;
}

/** The names of SamplingOptions. */
export const SAMPLING: OptionNames<SamplingOptions> = {
  ...{ doSample: true, temperature: true, topK: true, topP: true, minP: true },
  ...{ repetitionPenalty: true, presencePenalty: true, frequencyPenalty: true },
  ...{ logitBias: true, badWords: true, allowedTokens: true, minTokens: true },
  ...{ seed: true, logprobs: true },
};

/** Checked options, complete but for what is off. */
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

/** Scores divided by less may be no numbers any more. */
export const LEAST_REPETITION_PENALTY = 0.01;
/** Tokens of a bad word at most: what the device remembers of a sequence. */
const MOST_IN_BAD_WORD = 64;

/** The tokens that there are. */
export interface Vocabulary {
  vocabSize: number;
  /** Makes tokens of texts; without it texts are refused. */
  tokenizer?: Tokenizer | null;
}

/**
 * Reads and checks `options`. Throws DS_ARGUMENT that names the
 * option, from `op` ("generate").
 */
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

/** Null is no value: it is refused where it is given. */
const or = <T>(value: T | undefined, fallback: T): T => (value === undefined ? fallback : value);

/** A number that is not lost in f32, in which the device computes. */
function float32(op: string, name: string, value: number): number {
  const kept = Math.fround(value);
  if (Number.isFinite(kept) && (value === 0) === (kept === 0)) return value;
  throw refused(op, name, 'a number in the range of f32', value, '');
}

function readLogprobs(op: string, value: unknown, vocabSize: number): number {
  const asked = requireInteger(`${op} logprobs`, value, 0);
  if (asked <= vocabSize) return asked;
  throw refused(op, 'logprobs', `at most the ${vocabSize} tokens that there are`, asked, '');
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
    const hint = '-Infinity bans a token; for only some tokens there is allowedTokens.';
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
 * A text as it is tokenized at the beginning and, where that is other tokens, behind a space.
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
    const hint = 'Leave it out to allow all.';
    throw refused(op, 'allowedTokens', 'a list of at least one token', tokens, hint);
  }
  const listed = Array.from(tokens);
  for (const token of listed) requireToken(op, 'allowedTokens', token, vocabSize);
  return listed;
}

function isList(value: unknown): value is ArrayLike<number> & Iterable<number> {
  return Array.isArray(value) || value instanceof Int32Array;
}

/** Throws DS_ARGUMENT, naming `what`, unless `token` is one of the vocabulary. */
export function requireToken(op: string, what: string, token: unknown, vocabSize: number): void {
  if (Number.isInteger(token) && (token as number) >= 0 && (token as number) < vocabSize) return;
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

/** The two words of 32 bits that key a sequence's noise. */
type SeedWords = readonly [low: number, high: number];

const WORD = 2 ** 32;
/** Seeds are below 2^53: above their upper 21 bits there is room for the number of a sample. */
const SAMPLES = 2 ** 10;
const SAMPLE_UNIT = 2 ** 21;

/**
 * How one sequence is sampled for as long as it lives, which slots it takes notwithstanding: its
 * rules and the key of its noise.
 */
export class SequenceSampling {
  readonly rules: SamplingRules;
  readonly seed: SeedWords;

  /**
   * Sample `index` of a request, of which there may be several. Throws DS_ARGUMENT that names the
   * option, from `op` ("generate").
   */
  constructor(op: string, options: SamplingOptions | undefined, vocabulary: Vocabulary, index = 0) {
    this.rules = readSampling(op, options, vocabulary);
    this.seed = seedWords(this.rules.seed, requireInteger(`${op} index`, index, 0));
  }
}

/**
 * Samples of one seed differ from each other and from those of other seeds. Without a seed the
 * library's generator gives a key that no seed gives.
 */
function seedWords(seed: number | null, index: number): SeedWords {
  if (seed === null) {
    const { seed: own, offset } = nextRandom();
    return [(own ^ Math.floor(own / WORD)) | 0, offset | 0x8000_0000 | 0];
  }
  const high = Math.floor(seed / WORD) + (index % SAMPLES) * SAMPLE_UNIT;
  return [seed | 0, high | 0];
}
