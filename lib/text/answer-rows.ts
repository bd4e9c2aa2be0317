// Encodes prompts and answers in rows with TRL's keys: texts or messages.
import { isDeepStrictEqual } from 'node:util';
import { dataError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { requireInteger } from '../runtime/require-number.js';
import type { ChatMessage } from './chat-template.js';
import { convertMessages, readInputs, type TemplateInputs } from './conversation.js';
import { answerTo, readAnswer, readInstruction } from './instruction-rows.js';
import type { LocatedRow, Row } from './row-reader.js';
import type { Tokenizer } from './tokenizer.js';

/** A prompt with each of its answers, as tokens. */
export interface EncodedAnswers {
  /** Number of tokens of the prompt. */
  readonly prompt: number;
  /** Tokens of the prompt and an answer, for each answer. */
  readonly sides: readonly Int32Array[];
}

/** How to encode a row. */
interface AnswerRules {
  readonly tokenizer: Tokenizer;
  /** Encode a prompt and its answer as one text. The prompt then has 0 tokens. */
  readonly isWhole: boolean;
}

/** A prompt and its answers, as texts or as messages. */
interface Sides<Part> {
  readonly prompt: Part;
  readonly answers: readonly Part[];
}

type Messages = readonly ChatMessage[];

/**
 * Encodes the answers under `keys` of a row with its prompt. Without a prompt, the common beginning
 * of two answers is the prompt. Throws DS_DATA if a key is missing or has another type.
 */
export function encodeAnswers(
  { row, location }: LocatedRow,
  keys: readonly string[],
  rules: AnswerRules,
): EncodedAnswers {
  const known = asAnswerRow(row, keys, rules.tokenizer);
  const { prompt } = known;
  const hasPrompt = isGiven(prompt);
  const answers = keys.map((key) => known[key]);
  const parts = hasPrompt ? [prompt, ...answers] : answers;
  if (hasPrompt || keys.length > 1) {
    if (parts.every((part) => typeof part === 'string')) {
      return encodeTexts(splitTexts(known, answers as string[]), rules);
    }
    if (parts.every(Array.isArray)) {
      return encodeMessages(
        splitMessages(known, answers, location),
        readInputs(row, location),
        location,
        rules,
      );
    }
  }
  const keyNames = keys.map((key) => `"${key}"`).join(' and ');
  const promptNote = keys.length > 1 ? ' (and "prompt")' : ' and "prompt"';
  const expected = `${keyNames}${promptNote} as strings, or as lists of messages`;
  const kinds = Object.entries(row).slice(0, 8);
  const got = `a row with ${kinds.map(([key, value]) => `${key} (${kindOf(value)})`).join(', ')}`;
  throw dataError(location(), expected, got, 'docs/post-training.md#data lists the keys.');
}

const isGiven = (value: unknown): boolean => value !== undefined && value !== null;

function kindOf(value: unknown): string {
  if (Array.isArray(value)) return 'list';
  return value === null ? 'null' : typeof value;
}

/**
 * Returns a row of a published dataset with TRL's keys. Such a row may have a question instead of a
 * prompt, one message instead of a list, or a prompt as text next to conversations that contain it.
 */
function asAnswerRow(row: Row, keys: readonly string[], tokenizer: Tokenizer): Row {
  const found = keys.map((key) => (keys.length > 1 ? row[key] : (row[key] ?? readAnswer(row))));
  // ShareGPT's preferences: earlier turns, and a message for each answer.
  const answers = found.map((answer) => (isObject(answer) ? [answer] : answer));
  const merge = (prompt: unknown, values: readonly unknown[] = answers): Row => ({
    ...row,
    prompt,
    ...Object.fromEntries(keys.map((key, i) => [key, values[i]])),
  });
  const { prompt, conversations } = row;
  if (!isGiven(prompt) && isGiven(conversations)) return merge(conversations);
  if (answers.every((answer) => Array.isArray(answer))) {
    const question =
      typeof prompt === 'string'
        ? [{ role: 'user', content: prompt }]
        : isGiven(prompt)
          ? null
          : readInstruction(row, tokenizer);
    if (!Array.isArray(question)) return merge(prompt);
    // As in TRL: conversations that contain the prompt need no other.
    const isAnswerOnly = answers.every(([first]) => isAssistant(first));
    return merge(isAnswerOnly ? question : undefined);
  }
  if (isGiven(prompt) || !answers.every((answer) => typeof answer === 'string'))
    return merge(prompt);
  const question = readInstruction(row, tokenizer);
  const isWhole = question === null || answers.every((answer) => contains(answer, question));
  return isWhole
    ? merge(prompt)
    : merge(
        question,
        answers.map((answer) => answerTo(question, answer)),
      );
}

const isAssistant = (message: unknown): boolean =>
  isObject(message) && (message.role === 'assistant' || message.from === 'gpt');

/** Returns whether an answer is a whole text that repeats its question. */
function contains(answer: string, question: string | readonly ChatMessage[]): boolean {
  const text = typeof question === 'string' ? question : String(question.at(-1)?.content);
  return answer.includes(text.trim());
}

/**
 * Splits the texts of a row into prompt and answers. The default prompt is the common beginning,
 * without a trailing space.
 */
function splitTexts({ prompt }: Row, answers: readonly string[]): Sides<string> {
  if (typeof prompt === 'string') return { prompt, answers };
  const [w, l] = answers as [string, string];
  let same = 0;
  while (same < w.length && same < l.length && w[same] === l[same]) same += 1;
  if (same === w.length && same === l.length) same = Math.max(0, w.lastIndexOf(' '));
  if (w[same - 1] === ' ') same -= 1;
  return { prompt: w.slice(0, same), answers: [w.slice(same), l.slice(same)] };
}

function splitMessages(
  { prompt }: Row,
  answers: readonly unknown[],
  location: () => string,
): Sides<Messages> {
  const lists = answers.map((answer) => convertMessages(answer, location));
  if (prompt !== undefined && prompt !== null) {
    return { prompt: convertMessages(prompt, location), answers: lists };
  }
  const [w, l] = lists as [Messages, Messages];
  const max = Math.min(w.length, l.length) - 1;
  const differs = (message: ChatMessage, i: number): boolean =>
    i >= max || !isDeepStrictEqual(message, l[i]);
  const firstDifference = w.findIndex(differs);
  const same = Math.max(0, firstDifference);
  return { prompt: w.slice(0, same), answers: [w.slice(same), l.slice(same)] };
}

function encodeTexts(
  { prompt, answers }: Sides<string>,
  { tokenizer, isWhole }: AnswerRules,
): EncodedAnswers {
  const before = tokenizer.encode(prompt);
  const encodeSide = (answer: string): Int32Array => {
    const joined = tokenizer.encode(prompt + answer);
    // If a token crosses the border between prompt and answer, both are encoded separately.
    const ids =
      isWhole || startsWith(joined, before)
        ? [...joined]
        : [...before, ...tokenizer.encode(answer, { addSpecialTokens: false })];
    const { eosId } = tokenizer;
    if (eosId !== null && ids.at(-1) !== eosId) ids.push(eosId);
    return Int32Array.from(ids);
  };
  return { sides: answers.map(encodeSide), prompt: isWhole ? 0 : before.length };
}

function encodeMessages(
  { prompt, answers }: Sides<Messages>,
  inputs: TemplateInputs,
  location: () => string,
  { tokenizer, isWhole }: AnswerRules,
): EncodedAnswers {
  const renderMessages = (messages: Messages, addGenerationPrompt: boolean): Int32Array => {
    try {
      return tokenizer.applyChatTemplate(messages, { ...inputs, addGenerationPrompt }).ids;
    } catch (cause) {
      const { message } = cause as Error;
      throw dataError(location(), 'messages that the chat template takes', message);
    }
  };
  const all = answers.map((answer) => renderMessages([...prompt, ...answer], false));
  if (isWhole) return { sides: all, prompt: 0 };
  const before = renderMessages(prompt, true);
  if (all.every((whole) => startsWith(whole, before))) {
    return { sides: all, prompt: before.length };
  }
  const expected = 'a chat template that writes the same prompt with and without its answer';
  const hint = 'Set another chat template, or write prompt, chosen and rejected as strings.';
  throw dataError(location(), expected, 'other tokens of the prompt', hint);
}

const startsWith = (whole: Int32Array, before: Int32Array): boolean =>
  whole.length >= before.length && before.every((id, i) => whole[i] === id);

/** Maximum lengths of prompts and answers. */
export interface AnswerLengths {
  /** Maximum tokens of a prompt with an answer. Default: 1024. */
  length?: number;
  /** Maximum tokens of a prompt; longer prompts lose their beginning. Default: no limit. */
  promptLength?: number;
  /** Maximum tokens of an answer; longer answers lose their end. Default: no limit. */
  answerLength?: number;
}

/** Checked limits; Infinity for no limit. */
type AnswerLimits = Required<AnswerLengths>;

/**
 * Returns the checked limits. Throws DS_ARGUMENT unless they are positive integers, and `length` is
 * at least 2.
 */
export function readLengths(op: string, given: AnswerLengths): AnswerLimits {
  const { length = 1024, promptLength = Number.POSITIVE_INFINITY } = given;
  const { answerLength = Number.POSITIVE_INFINITY } = given;
  const limit = (name: string, value: number): number =>
    value === Number.POSITIVE_INFINITY ? value : requireInteger(`${op} ${name}`, value, 1);
  return {
    length: requireInteger(`${op} length`, length, 2),
    promptLength: limit('promptLength', promptLength),
    answerLength: limit('answerLength', answerLength),
  };
}

/** Cuts prompts and answers to the limits. `isCut` is true if an answer lost its end. */
export function cutAnswers(
  { prompt: promptTokens, sides }: EncodedAnswers,
  { length, promptLength, answerLength }: AnswerLimits,
): EncodedAnswers & { readonly isCut: boolean } {
  const prompt = Math.min(promptTokens, promptLength);
  const max = Math.min(length, prompt + answerLength);
  const cutSides = sides.map((ids) => ids.subarray(promptTokens - prompt));
  const isCut = cutSides.some((ids) => ids.length > max);
  return { prompt, sides: cutSides.map((ids) => ids.subarray(0, max)), isCut };
}

/** Rows of tokens as flat arrays [R, T], padded on the right. */
interface PaddedAnswers {
  /** [R, T]. */
  readonly shape: readonly [number, number];
  /** Tokens and padding, [R, T]. */
  readonly ids: Int32Array;
  /** The next token inside an answer, else -100, [R, T]. */
  readonly targets: Int32Array;
  /** Number of tokens of each answer, [R]. */
  readonly answered: Float32Array;
}

/** Pads rows of a prompt and its answer with `pad`. Targets that the loss ignores are `ignored`. */
export function padAnswers(
  rows: readonly { readonly ids: Int32Array; readonly prompt: number }[],
  pad: number,
  ignored: number,
): PaddedAnswers {
  const T = Math.max(...rows.map(({ ids }) => ids.length));
  const ids = new Int32Array(rows.length * T).fill(pad);
  const targets = new Int32Array(rows.length * T).fill(ignored);
  const answered = new Float32Array(rows.length);
  for (const [row, item] of rows.entries()) {
    ids.set(item.ids, row * T);
    const first = Math.max(item.prompt, 1);
    targets.set(item.ids.subarray(first), row * T + first - 1);
    answered[row] = Math.max(0, item.ids.length - first);
  }
  return { shape: [rows.length, T], ids, targets, answered };
}
