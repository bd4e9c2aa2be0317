// The text with which `ds train` shows what a model has learned.
import type { CausalLM } from '../../models/index.js';
import { formatValue } from '../../runtime/format-value.js';
import { refused, refusedValue } from '../../runtime/refused.js';
import {
  type Conversation,
  conversationIn,
  messagesOf,
  type Told,
  toldIn,
} from '../../text/conversation.js';
import type { ChatMessage, Tokenizer } from '../../text/index.js';
import { findFiles, partsOf } from '../../text/row-files.js';
import { type PlacedRow, rowsOf } from '../../text/row-reader.js';

/** What a model is to go on from. */
export interface Prompt {
  /** As a person reads it. */
  text: string;
  ids: readonly number[];
}

/** Words of a row of text that stand before what the model writes. */
const WORDS = 6;

/**
 * A text of the user's; said to the model where its tokenizer knows conversations. Throws
 * DS_ARGUMENT for one without tokens, and for one with a token beyond the model's `vocabSize`.
 */
export function promptOf(tokenizer: Tokenizer, text: string, vocabSize = Infinity): Prompt {
  const isChat = tokenizer.chatTemplates.length > 0;
  const ids = isChat ? chat(tokenizer, [{ role: 'user', content: text }]) : plain(tokenizer, text);
  const beyond = ids.find((id) => id >= vocabSize);
  if (ids.length > 0 && beyond === undefined) return { text, ids };
  const op = '--sample';
  const hint = '--no_sample has none written.';
  if (beyond === undefined) throw refusedValue(op, 'a text of a token or more', text, hint);
  const got = `token ${beyond} in ${formatValue(text)}`;
  throw refused(op, `tokens of [0, ${vocabSize}), as the model has`, got, hint);
}

/**
 * The beginning of the first row of `files` that has one: its prompt, what is said before the
 * assistant, or its first words. Null where that row is of tokens, and where there is none. Throws
 * DS_DATA.
 */
export async function firstPrompt(
  tokenizer: Tokenizer,
  files: readonly string[],
  textKey = 'text',
): Promise<Prompt | null> {
  for (const file of findFiles('ds train --data', files)) {
    for (const part of await partsOf([file], false)) {
      for await (const placed of rowsOf(part)) {
        const prompt = ofRow(tokenizer, placed, textKey);
        if (prompt?.ids.length !== 0) return prompt;
      }
    }
  }
  return null;
}

function ofRow(tokenizer: Tokenizer, { row, place }: PlacedRow, textKey: string): Prompt | null {
  const { prompt } = row;
  const conversation = conversationIn(row, place);
  if (conversation) return ofMessages(tokenizer, conversation);
  if (Array.isArray(prompt)) {
    const messages = messagesOf(prompt, place);
    return ofMessages(tokenizer, { messages, told: toldIn(row, place) });
  }
  if (typeof prompt === 'string') return { text: prompt, ids: plain(tokenizer, prompt) };
  const text = row[textKey];
  if (typeof text !== 'string') return null;
  const words = text.trim().split(/\s+/).slice(0, WORDS).join(' ');
  return { text: words, ids: plain(tokenizer, words) };
}

function ofMessages(tokenizer: Tokenizer, { messages, told }: Conversation): Prompt | null {
  const answer = messages.findIndex(({ role }) => role === 'assistant');
  const asked = answer < 0 ? messages : messages.slice(0, answer);
  const { content } = asked.at(-1) ?? {};
  if (typeof content !== 'string') return null;
  return { text: content, ids: chat(tokenizer, asked, told) };
}

function chat(tokenizer: Tokenizer, messages: readonly ChatMessage[], told: Told = {}): number[] {
  const { ids } = tokenizer.applyChatTemplate(messages, { ...told, addGenerationPrompt: true });
  return [...ids];
}

/** With what stands before a text; not with what ends it. */
function plain(tokenizer: Tokenizer, text: string): number[] {
  const ids = [...tokenizer.encode(text)];
  return ids.at(-1) === tokenizer.eosId ? ids.slice(0, -1) : ids;
}

/**
 * What `model` writes after `prompt`: the likeliest tokens, `tokens` of them at most, up to the end
 * that it sets. A prompt that leaves no room is shortened from its beginning. Tokens beyond the
 * tokenizer's have no text: heads are padded.
 */
export function continued(
  model: CausalLM,
  tokenizer: Tokenizer,
  { ids }: Prompt,
  tokens: number,
): string {
  const maxNewTokens = Math.min(tokens, Math.max(1, model.maxSeq - ids.length));
  const given = ids.slice(-(model.maxSeq - maxNewTokens));
  const written = model.generate(given, { maxNewTokens, temperature: 0 }).slice(given.length);
  const end = tokenizer.eosId === null ? -1 : written.indexOf(tokenizer.eosId);
  const said = (end < 0 ? written : written.slice(0, end)).filter((id) => tokenizer.hasToken(id));
  return tokenizer.decode(said, { skipSpecialTokens: true }).trim();
}
