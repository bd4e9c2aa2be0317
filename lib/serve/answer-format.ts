// The two shapes of an answer: OpenAI's text completion and its chat completion.
import { isUtf8 } from 'node:buffer';

import type { Tokenizer } from '../text/index.js';
import type { ServedLogprob } from './served-engine.js';

/** A call of a function, or a piece of its arguments. */
export interface CallPart {
  index: number;
  /** Only in the first part of a call. */
  id?: string;
  name?: string;
  arguments: string;
}

/** How likely a token was; the first token of an echoed prompt has no logprob. */
export type PartLogprob = Omit<ServedLogprob, 'logprob'> & { logprob: number | null };

/** A part of one choice, or all of it. */
export interface AnswerPart {
  text: string;
  reasoning?: string;
  calls?: readonly CallPart[];
  /** Null unless the request set `return_token_ids`. */
  tokens: readonly number[] | null;
  /** Null unless the request set `logprobs`. */
  logprobs: readonly PartLogprob[] | null;
  finishReason: string | null;
  /** Offset of its first token in the text of all earlier tokens, held-back text included. */
  offset: number;
}

/** How parts become the objects of a format. */
export interface AnswerFormat {
  readonly idPrefix: string;
  /** The value of "object" in a whole answer, and in an event. */
  readonly whole: string;
  readonly chunk: string;
  /** The first event of a choice, before any text; null for no such event. */
  opening(index: number): object | null;
  /** A choice of a stream's event. */
  part(index: number, part: AnswerPart): object;
  /** A choice of a whole answer. */
  choice(index: number, all: AnswerPart): object;
}

/** Answers of /v1/completions. `tokenizer` spells tokens of logprobs. */
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
    return { index, text, logprobs: this.logprobs(part), finish_reason, ...tokensOf(part) };
  }

  choice(index: number, all: AnswerPart): object {
    return this.part(index, all);
  }

  private logprobs({ logprobs, offset }: AnswerPart): object | null {
    if (!logprobs) return null;
    let at = offset;
    const rows = logprobs.map((item) => {
      const { token, logprob } = item;
      const text = spell(this.tokenizer, token);
      const top = logprob === null ? null : this.topOf({ ...item, logprob });
      const row = { text, logprob, top, offset: at };
      at += lengthOf(this.tokenizer, token);
      return row;
    });
    return {
      tokens: rows.map(({ text }) => text),
      token_logprobs: rows.map(({ logprob }) => (logprob === null ? null : finite(logprob))),
      top_logprobs: rows.map(({ top }) => top),
      text_offset: rows.map((row) => row.offset),
    };
  }

  /**
   * The alternatives and the sampled token, by text. If two have one text, the likelier one counts.
   */
  private topOf({ top, ...sampled }: ServedLogprob): object {
    const named = new Map<string, number>();
    for (const { token, logprob } of [...top, sampled]) {
      const text = spell(this.tokenizer, token);
      named.set(text, Math.max(named.get(text) ?? MIN_LOGPROB, finite(logprob)));
    }
    return Object.fromEntries(named);
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
    return { index, delta, logprobs: this.logprobs(part), finish_reason, ...tokensOf(part) };
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
    return { index, message, logprobs: this.logprobs(all), finish_reason, ...tokensOf(all) };
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
    const spelled = tokenizer?.hasToken(token) ? Array.from(tokenizer.tokenBytes(token)) : [];
    const bytes = tokenizer ? spelled : null;
    return { token: spell(tokenizer, token), logprob: finite(logprob), bytes };
  }
}

/** Clients read one name or the other. */
const reasoningFields = (reasoning: string | undefined): object =>
  reasoning ? { reasoning_content: reasoning, reasoning } : {};

/** Clients compare the identity of each call: later deltas must not repeat its keys. */
function callDelta({ index, id, name, arguments: args }: CallPart): object {
  if (id === undefined) return { index, function: { arguments: args } };
  return { index, id, type: 'function', function: { name, arguments: args } };
}

/** JSON has no infinities. Source: vLLM. */
const MIN_LOGPROB = -9999;
const finite = (logprob: number): number => Math.max(logprob, MIN_LOGPROB);

/**
 * The text of a token. Bytes of an incomplete character are spelled as OpenAI does. A token outside
 * the vocabulary is spelled by its number.
 */
function spell(tokenizer: Tokenizer | null, token: number): string {
  if (!tokenizer?.hasToken(token)) return `token_id:${token}`;
  const bytes = tokenizer.tokenBytes(token);
  if (isUtf8(bytes)) return Buffer.from(bytes).toString();
  const hex = Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, '0')}`);
  return `bytes:${hex.join('')}`;
}

/**
 * Characters that a token adds to the text; without a tokenizer, the length of its spelled number.
 */
function lengthOf(tokenizer: Tokenizer | null, token: number): number {
  if (!tokenizer) return spell(tokenizer, token).length;
  if (!tokenizer.hasToken(token) || tokenizer.specialIds.has(token)) return 0;
  return tokenizer.tokenBytes(token).reduce((sum, byte) => sum + begun(byte), 0);
}

/** UTF-16 units of the character that a byte of UTF-8 begins. */
const begun = (byte: number): number => ((byte & 0xc0) === 0x80 ? 0 : byte < 0xf0 ? 1 : 2);

/** Sum of the tokens' lengths. */
export function spelledLength(
  { tokenizer }: { tokenizer: Tokenizer | null },
  tokens: readonly number[],
): number {
  return tokens.reduce((sum, token) => sum + lengthOf(tokenizer, token), 0);
}

const tokensOf = ({ tokens }: AnswerPart): object => (tokens ? { token_ids: tokens } : {});
