// The text with which `ds train` shows what a model has learned.
import type { CausalLM } from '../../models/index.js';
import type { ChatMessage, Tokenizer } from '../../text/index.js';
import { findFiles, partsOf } from '../../text/row-files.js';
import { type Row, rowsOf } from '../../text/row-reader.js';

/** What a model is to go on from. */
export interface Prompt {
  /** As a person reads it. */
  text: string;
  ids: readonly number[];
}

/** Words of a row of text that stand before what the model writes. */
const WORDS = 6;

/** A text of the user's; said to the model where its tokenizer knows conversations. */
export function promptOf(tokenizer: Tokenizer, text: string): Prompt {
  if (tokenizer.chatTemplates.length === 0) return { text, ids: plain(tokenizer, text) };
  return { text, ids: chat(tokenizer, [{ role: 'user', content: text }]) };
}

/**
 * The beginning of the first row of `files`: its prompt, what is said before the assistant, or its
 * first words. Null for rows of tokens, and where there is none. Throws DS_DATA.
 */
export async function firstPrompt(
  tokenizer: Tokenizer,
  files: readonly string[],
  textKey = 'text',
): Promise<Prompt | null> {
  const [part] = await partsOf(findFiles('ds train --data', files).slice(0, 1), false);
  if (!part) return null;
  for await (const { row } of rowsOf(part)) return ofRow(tokenizer, row, textKey);
  return null;
}

function ofRow(tokenizer: Tokenizer, row: Row, textKey: string): Prompt | null {
  const { messages, prompt } = row;
  const spoken = Array.isArray(messages) ? messages : Array.isArray(prompt) ? prompt : null;
  if (spoken) return ofMessages(tokenizer, spoken as ChatMessage[]);
  if (typeof prompt === 'string') return { text: prompt, ids: plain(tokenizer, prompt) };
  const text = row[textKey];
  if (typeof text !== 'string') return null;
  const words = text.trim().split(/\s+/).slice(0, WORDS).join(' ');
  return { text: words, ids: plain(tokenizer, words) };
}

function ofMessages(tokenizer: Tokenizer, messages: readonly ChatMessage[]): Prompt | null {
  const answer = messages.findIndex(({ role }) => role === 'assistant');
  const asked = answer < 0 ? messages : messages.slice(0, answer);
  const { content } = asked.at(-1) ?? {};
  if (typeof content !== 'string') return null;
  return { text: content, ids: chat(tokenizer, asked) };
}

const chat = (tokenizer: Tokenizer, messages: readonly ChatMessage[]): number[] => {
  const { ids } = tokenizer.applyChatTemplate(messages, { addGenerationPrompt: true });
  return [...ids];
};

/** With what stands before a text; not with what ends it. */
function plain(tokenizer: Tokenizer, text: string): number[] {
  const ids = [...tokenizer.encode(text)];
  return ids.at(-1) === tokenizer.eosId ? ids.slice(0, -1) : ids;
}

/**
 * What `model` writes after `prompt`: the likeliest tokens, `tokens` of them at most, up to the end
 * that it sets. A prompt that leaves no room is shortened from its beginning.
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
  const said = end < 0 ? written : written.slice(0, end);
  return tokenizer.decode(said, { skipSpecialTokens: true }).trim();
}
