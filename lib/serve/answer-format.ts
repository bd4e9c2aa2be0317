// The JSON of OpenAI's two answer formats: text completions and chat completions.
import { isUtf8 } from 'node:buffer';

import type { Tokenizer } from '../text/index.js';
import type { ServedLogprob } from './served-engine.js';

/** The start of a function call, or a piece of its arguments. */
export interface CallPart {
  index: number;
  /** Set in the first part of a call only. */
  id?: string;
  name?: string;
  arguments: string;
}

/** Logprob of a token. The first token of an echoed prompt has none. */
export type PartLogprob = Omit<ServedLogprob, 'logprob'> & { logprob: number | null };

/** New text of one choice, or the whole choice. */
export interface AnswerPart {
  text: string;
  reasoning?: string;
  calls?: readonly CallPart[];
  /** Null unless the request set `return_token_ids`. */
  tokens: readonly number[] | null;
  /** Null unless the request set `logprobs`. */
  logprobs: readonly PartLogprob[] | null;
  finishReason: string | null;
  /** The stop string that ended the text. */
  stopString?: string;
  /** Characters of all earlier tokens of the choice, including text that is held back. */
  offset: number;
}

/** Converts parts of an answer to the objects of one API format. */
export interface AnswerFormat {
  readonly idPrefix: string;
  /** Value of "object" in a complete answer. */
  readonly whole: string;
  readonly chunk: string;
  /** Returns the first event of a choice, before any text; null if the format has no such event. */
  opening(index: number): object | null;
  /** Returns the entry of `choices` in one event of a stream. */
  part(index: number, part: AnswerPart): object;
  /** Returns the entry of `choices` in a complete answer. */
  choice(index: number, all: AnswerPart): object;
}

/** Answers of /v1/completions. `tokenizer` gives the text of tokens in logprobs. */
export class TextFormat implements AnswerFormat {
  readonly idPrefix = 'cmpl-';
  readonly whole = 'text_completion';
  readonly chunk = 'text_completion';

  constructor(private readonly tokenizer: Tokenizer | null) {}

  opening(): null {
    return null;
  }

  part(index: number, part: AnswerPart): object {
    const { text, finishReason: finish_reason } = part;
    return { index, text, logprobs: this.logprobs(part), finish_reason, ...tokenFields(part) };
  }

  choice(index: number, all: AnswerPart): object {
    return this.part(index, all);
  }

  private logprobs({ logprobs, offset }: AnswerPart): object | null {
    if (!logprobs) return null;
    let nextOffset = offset;
    const rows = logprobs.map((item) => {
      const { token, logprob } = item;
      const text = formatToken(this.tokenizer, token);
      const top = logprob === null ? null : this.topOf({ ...item, logprob });
      const row = { text, logprob, top, offset: nextOffset };
      nextOffset += textLength(this.tokenizer, token);
      return row;
    });
    return {
      tokens: rows.map(({ text }) => text),
      token_logprobs: rows.map(({ logprob }) => (logprob === null ? null : clampLogprob(logprob))),
      top_logprobs: rows.map(({ top }) => top),
      text_offset: rows.map((row) => row.offset),
    };
  }

  /**
   * Returns the logprobs of the alternatives and of the sampled token, by text. If two tokens have
   * the same text, the larger logprob wins.
   */
  private topOf({ top, ...sampled }: ServedLogprob): object {
    const logprobByText = new Map<string, number>();
    for (const { token, logprob } of [...top, sampled]) {
      const text = formatToken(this.tokenizer, token);
      logprobByText.set(
        text,
        Math.max(logprobByText.get(text) ?? MIN_LOGPROB, clampLogprob(logprob)),
      );
    }
    return Object.fromEntries(logprobByText);
  }
}

/** Answers of /v1/chat/completions. */
export class ChatFormat implements AnswerFormat {
  readonly idPrefix = 'chatcmpl-';
  readonly whole = 'chat.completion';
  readonly chunk = 'chat.completion.chunk';

  constructor(private readonly tokenizer: Tokenizer | null) {}

  opening(index: number): object {
    const delta = { role: 'assistant', content: '' };
    return { index, delta, logprobs: null, finish_reason: null };
  }

  part(index: number, part: AnswerPart): object {
    const { text, reasoning, calls, finishReason: finish_reason } = part;
    const delta = {
      ...reasoningFields(reasoning),
      ...(text !== '' && { content: text }),
      ...(calls?.length && { tool_calls: calls.map(callDelta) }),
    };
    return { index, delta, logprobs: this.logprobs(part), finish_reason, ...tokenFields(part) };
  }

  choice(index: number, all: AnswerPart): object {
    const { text, reasoning, calls = [], finishReason: finish_reason } = all;
    const content = text === '' && calls.length > 0 ? null : text;
    const tool_calls = calls.map(({ id, name, arguments: args }) => {
      return { id, type: 'function', function: { name, arguments: args } };
    });
    const message = {
      role: 'assistant',
      content,
      refusal: null,
      ...reasoningFields(reasoning),
      ...(tool_calls.length > 0 && { tool_calls }),
    };
    return { index, message, logprobs: this.logprobs(all), finish_reason, ...tokenFields(all) };
  }

  private logprobs({ logprobs }: AnswerPart): object | null {
    if (!logprobs) return null;
    const content = logprobs.map(({ token, logprob, top }) => ({
      ...this.entry(token, logprob ?? 0),
      top_logprobs: top.map((item) => this.entry(item.token, item.logprob)),
    }));
    return { content, refusal: null };
  }

  private entry(token: number, logprob: number): object {
    const { tokenizer } = this;
    const tokenBytes = tokenizer?.hasToken(token) ? Array.from(tokenizer.tokenBytes(token)) : [];
    const bytes = tokenizer ? tokenBytes : null;
    return { token: formatToken(tokenizer, token), logprob: clampLogprob(logprob), bytes };
  }
}

/** Sets both names of the field: some clients read `reasoning`, others `reasoning_content`. */
const reasoningFields = (reasoning: string | undefined): object =>
  reasoning ? { reasoning_content: reasoning, reasoning } : {};

/** Omits absent keys: clients take a repeated `id` for a new call. */
function callDelta({ index, id, name, arguments: args }: CallPart): object {
  if (id === undefined) return { index, function: { arguments: args } };
  return { index, id, type: 'function', function: { name, arguments: args } };
}

/** Replaces infinite logprobs, which JSON cannot hold. Source: vLLM. */
const MIN_LOGPROB = -9999;
const clampLogprob = (logprob: number): number => Math.max(logprob, MIN_LOGPROB);

/**
 * Returns the text of a token. Bytes of an incomplete character become \xNN, as in OpenAI's API. A
 * token outside the vocabulary becomes its number.
 */
function formatToken(tokenizer: Tokenizer | null, token: number): string {
  if (!tokenizer?.hasToken(token)) return `token_id:${token}`;
  const bytes = tokenizer.tokenBytes(token);
  if (isUtf8(bytes)) return Buffer.from(bytes).toString();
  const hex = Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, '0')}`);
  return `bytes:${hex.join('')}`;
}

/**
 * Returns the UTF-16 units that a token adds to the text. Without a tokenizer, it returns the
 * number of its decimal digits.
 */
function textLength(tokenizer: Tokenizer | null, token: number): number {
  if (!tokenizer) return formatToken(tokenizer, token).length;
  if (!tokenizer.hasToken(token) || tokenizer.specialIds.has(token)) return 0;
  return tokenizer.tokenBytes(token).reduce((sum, byte) => sum + unitsOfByte(byte), 0);
}

/**
 * Returns the UTF-16 units of the character that starts with this UTF-8 byte; 0 for a continuation
 * byte.
 */
const unitsOfByte = (byte: number): number => ((byte & 0xc0) === 0x80 ? 0 : byte < 0xf0 ? 1 : 2);

/** Returns the UTF-16 units of the text of `tokens`. */
export function spelledLength(
  { tokenizer }: { tokenizer: Tokenizer | null },
  tokens: readonly number[],
): number {
  return tokens.reduce((sum, token) => sum + textLength(tokenizer, token), 0);
}

const tokenFields = ({ tokens }: AnswerPart): object => (tokens ? { token_ids: tokens } : {});
