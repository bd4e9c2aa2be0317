// Generates the samples that `ds train` prints and records.
import type { CausalLM } from '../../models/index.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import type { Columns } from '../../text/columns.js';
import {
  type Conversation,
  convertMessages,
  readConversation,
  readInputs,
  type TemplateInputs,
} from '../../text/conversation.js';
import type { ChatMessage, Tokenizer } from '../../text/index.js';
import { readInstruction } from '../../text/instruction-rows.js';
import { divideFiles, findFiles } from '../../text/row-files.js';
import { type LocatedRow, readRows } from '../../text/row-reader.js';

/** The prompt of a sample. */
export interface Prompt {
  /** The prompt as the terminal shows it. */
  text: string;
  ids: readonly number[];
}

/** Number of words that a prompt takes from a row of text. */
const WORDS = 6;

/**
 * Creates a prompt from a text of the user. If the tokenizer has a chat template, the text is a
 * user message. Throws DS_ARGUMENT if the text has no tokens, or a token that is not below
 * `vocabSize`.
 */
export function createPrompt(tokenizer: Tokenizer, text: string, vocabSize = Infinity): Prompt {
  const isChat = tokenizer.chatTemplates.length > 0;
  const ids = isChat
    ? encodeChat(tokenizer, [{ role: 'user', content: text }])
    : encodePlain(tokenizer, text);
  const outOfRange = ids.find((id) => id >= vocabSize);
  if (ids.length > 0 && outOfRange === undefined) return { text, ids };
  const op = '--sample';
  const hint = '--no_sample skips the sample.';
  if (outOfRange === undefined) throw valueError(op, 'text of at least one token', text, hint);
  const got = `token ${outOfRange} in ${formatValue(text)}`;
  throw argumentError(op, `tokens of [0, ${vocabSize}), as the model has`, got, hint);
}

/**
 * Returns a prompt from a row of `files`: its prompt, the messages before the first answer, or its
 * first words. Rows with an empty prompt are skipped. Returns null at the first row without text,
 * such as a row of tokens, or if there are no rows. Throws DS_DATA if a row cannot be read.
 */
export async function readFirstPrompt(
  tokenizer: Tokenizer,
  files: readonly string[],
  textKey = 'text',
  columns?: Columns,
): Promise<Prompt | null> {
  for (const file of findFiles('ds train --data', files)) {
    for (const part of await divideFiles([file], false, columns)) {
      for await (const located of readRows(part)) {
        const prompt = readRowPrompt(tokenizer, located, textKey);
        if (prompt?.ids.length !== 0) return prompt;
      }
    }
  }
  return null;
}

function readRowPrompt(
  tokenizer: Tokenizer,
  { row, location }: LocatedRow,
  textKey: string,
): Prompt | null {
  const isText = typeof row[textKey] === 'string';
  const prompt = row.prompt ?? (isText ? null : readInstruction(row, tokenizer));
  const conversation = readConversation(row, location);
  if (conversation) return createMessagesPrompt(tokenizer, conversation);
  if (Array.isArray(prompt)) {
    const messages = convertMessages(prompt, location);
    return createMessagesPrompt(tokenizer, { messages, inputs: readInputs(row, location) });
  }
  if (typeof prompt === 'string') return { text: prompt, ids: encodePlain(tokenizer, prompt) };
  const text = row[textKey];
  if (typeof text !== 'string') return null;
  const words = text.trim().split(/\s+/).slice(0, WORDS).join(' ');
  return { text: words, ids: encodePlain(tokenizer, words) };
}

function createMessagesPrompt(
  tokenizer: Tokenizer,
  { messages, inputs }: Conversation,
): Prompt | null {
  const answer = messages.findIndex(({ role }) => role === 'assistant');
  const promptMessages = answer < 0 ? messages : messages.slice(0, answer);
  const { content } = promptMessages.at(-1) ?? {};
  if (typeof content !== 'string') return null;
  return { text: content, ids: encodeChat(tokenizer, promptMessages, inputs) };
}

function encodeChat(
  tokenizer: Tokenizer,
  messages: readonly ChatMessage[],
  inputs: TemplateInputs = {},
): number[] {
  const { ids } = tokenizer.applyChatTemplate(messages, { ...inputs, addGenerationPrompt: true });
  return [...ids];
}

/** Encodes a text with the tokenizer's start token, but without its end token. */
function encodePlain(tokenizer: Tokenizer, text: string): number[] {
  const ids = [...tokenizer.encode(text)];
  return ids.at(-1) === tokenizer.eosId ? ids.slice(0, -1) : ids;
}

/**
 * Returns a greedy completion of `prompt`, of at most `tokens` tokens and up to an end token. If
 * the prompt fills the context, its start is dropped. Tokens that the tokenizer lacks are left out:
 * the head of a padded vocabulary can produce them.
 */
export function continueText(
  model: CausalLM,
  tokenizer: Tokenizer,
  { ids }: Prompt,
  tokens: number,
): string {
  const maxNewTokens = Math.min(tokens, Math.max(1, model.maxSeq - ids.length));
  const promptIds = ids.slice(-(model.maxSeq - maxNewTokens));
  const generated = model
    .generate(promptIds, { maxNewTokens, temperature: 0 })
    .slice(promptIds.length);
  const end = tokenizer.eosId === null ? -1 : generated.indexOf(tokenizer.eosId);
  const answerIds = (end < 0 ? generated : generated.slice(0, end)).filter((id) =>
    tokenizer.hasToken(id),
  );
  return tokenizer.decode(answerIds, { skipSpecialTokens: true }).trim();
}
