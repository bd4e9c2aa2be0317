// Reads rows with the keys of published instruction datasets, such as Alpaca's, as prompts and
// answers.
import type { ChatMessage } from './chat-template.js';
import type { Row } from './row-reader.js';
import type { Tokenizer } from './tokenizer.js';

/** Keys of a prompt, in the order of preference: Alpaca and Dolly, GSM8K and OpenOrca, MetaMath. */
const PROMPTS = ['instruction', 'question', 'query', 'input'] as const;
/** Keys of a text that belongs to the prompt. */
const CONTEXTS = ['input', 'context'] as const;
const SYSTEMS = ['system', 'system_prompt'] as const;
const ANSWERS = ['output', 'response', 'answer', 'completion'] as const;

/** A prompt, and its answers as texts or as messages: the values of a row with TRL's keys. */
type PromptValue = string | readonly ChatMessage[];

const textUnder = (row: Row, keys: readonly string[]): string | null => {
  const key = keys.find((key) => typeof row[key] === 'string' && row[key] !== '');
  return key === undefined ? null : (row[key] as string);
};

/** The instruction of a row, with its context. Null for other rows, and for several turns. */
function findInstruction(row: Row): string | null {
  // Earlier turns, in a format of their own.
  if (Array.isArray(row.history) && row.history.length > 0) return null;
  const key = PROMPTS.find((key) => typeof row[key] === 'string' && row[key] !== '');
  if (key === undefined) return null;
  const context = key === 'input' ? null : textUnder(row, CONTEXTS);
  return context === null ? String(row[key]) : `${row[key]}\n\n${context}`;
}

/**
 * Returns the prompt of an instruction row: messages if the tokenizer has a chat template, else a
 * text that ends with an empty line. Null for other rows.
 */
export function readInstruction(row: Row, tokenizer: Tokenizer): PromptValue | null {
  const text = findInstruction(row);
  if (text === null) return null;
  const system = textUnder(row, SYSTEMS);
  if (!tokenizer.chatTemplates.includes('default')) {
    return `${system === null ? '' : `${system}\n\n`}${text}\n\n`;
  }
  const first = system === null ? [] : [{ role: 'system', content: system }];
  return [...first, { role: 'user', content: text }];
}

/** Returns an answer in the form of its prompt. */
export const answerTo = (prompt: PromptValue, answer: string): PromptValue =>
  typeof prompt === 'string' ? answer : [{ role: 'assistant', content: answer }];

/** Returns the answer of a row under one of the known keys; null without one. */
export const readAnswer = (row: Row): string | null => textUnder(row, ANSWERS);

/**
 * Returns an instruction row, or a row { prompt, response }, with TRL's keys `prompt` and
 * `completion`; null for other rows.
 */
export function asCompletionRow(row: Row, tokenizer: Tokenizer): Row | null {
  const answer = readAnswer(row);
  if (answer === null) return null;
  if (typeof row.prompt === 'string') return { ...row, completion: answer };
  const prompt = readInstruction(row, tokenizer);
  return prompt === null ? null : { ...row, prompt, completion: answerTo(prompt, answer) };
}
