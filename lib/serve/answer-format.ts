// The two shapes of an answer: OpenAI's text completion and its chat completion.
import { isUtf8 } from 'node:buffer';

import type { Tokenizer } from '../text/index.js';
import type { ServedLogprob } from './served-engine.js';

/** A part of one choice, or all of it. */
export interface AnswerPart {
  text: string;
  /** Null unless they are told. */
  tokens: readonly number[] | null;
  /** Null unless they were asked for. */
  logprobs: readonly ServedLogprob[] | null;
  finishReason: string | null;
  /** Where its first token begins, by the texts of the tokens before: what is held back counts. */
  offset: number;
}

/** How parts become the objects of a format. */
export interface AnswerFormat {
  readonly idPrefix: string;
  /** What "object" says of a whole answer, and of a part of one. */
  readonly whole: string;
  readonly chunk: string;
  /** What a stream says of a choice before its first text; null for nothing. */
  opening(index: number): object | null;
  /** A choice of a stream's event. */
  part(index: number, part: AnswerPart): object;
  /** A choice of a whole answer. */
  choice(index: number, all: AnswerPart): object;
}

/** Of /v1/completions. `tokenizer` spells tokens of logprobs. */
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
    const rows = logprobs.map((one) => {
      const { token, logprob } = one;
      const text = spell(this.tokenizer, token);
      const row = { text, logprob, top: this.topOf(one), offset: at };
      at += lengthOf(this.tokenizer, token);
      return row;
    });
    return {
      tokens: rows.map(({ text }) => text),
      token_logprobs: rows.map(({ logprob }) => finite(logprob)),
      top_logprobs: rows.map(({ top }) => top),
      text_offset: rows.map((row) => row.offset),
    };
  }

  /** The sampled token is one of them; of several that are spelled alike the likeliest counts. */
  private topOf({ top, ...sampled }: ServedLogprob): object {
    const named = new Map<string, number>();
    for (const { token, logprob } of [...top, sampled]) {
      const text = spell(this.tokenizer, token);
      named.set(text, Math.max(named.get(text) ?? LEAST, finite(logprob)));
    }
    return Object.fromEntries(named);
  }
}

/** Of /v1/chat/completions. */
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
    const { text, finishReason: finish_reason } = part;
    const delta = text === '' ? {} : { content: text };
    return { index, delta, logprobs: this.logprobs(part), finish_reason, ...tokensOf(part) };
  }

  choice(index: number, all: AnswerPart): object {
    const { text: content, finishReason: finish_reason } = all;
    const message = { role: 'assistant', content, refusal: null };
    return { index, message, logprobs: this.logprobs(all), finish_reason, ...tokensOf(all) };
  }

  private logprobs({ logprobs }: AnswerPart): object | null {
    if (!logprobs) return null;
    const content = logprobs.map(({ token, logprob, top }) => ({
      ...this.entry(token, logprob),
      top_logprobs: top.map((one) => this.entry(one.token, one.logprob)),
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

/** JSON has no infinities. Source: vLLM. */
const LEAST = -9999;
const finite = (logprob: number): number => Math.max(logprob, LEAST);

/**
 * Its text, or its bytes where these are a part of a character, as OpenAI writes them; its number
 * where it has none, without a tokenizer or beyond its vocabulary.
 */
function spell(tokenizer: Tokenizer | null, token: number): string {
  if (!tokenizer?.hasToken(token)) return `token_id:${token}`;
  const bytes = tokenizer.tokenBytes(token);
  if (isUtf8(bytes)) return Buffer.from(bytes).toString();
  const hex = Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, '0')}`);
  return `bytes:${hex.join('')}`;
}

/** The characters that it gives a text; a number stands for the text of a model that has none. */
function lengthOf(tokenizer: Tokenizer | null, token: number): number {
  if (!tokenizer) return spell(tokenizer, token).length;
  if (!tokenizer.hasToken(token) || tokenizer.specialIds.has(token)) return 0;
  return tokenizer.tokenBytes(token).reduce((sum, byte) => sum + begun(byte), 0);
}

/** UTF-16 units of the character that a byte of UTF-8 begins. */
const begun = (byte: number): number => ((byte & 0xc0) === 0x80 ? 0 : byte < 0xf0 ? 1 : 2);

/** Characters of tokens, each spelled by itself. */
export function spelledLength(
  { tokenizer }: { tokenizer: Tokenizer | null },
  tokens: readonly number[],
): number {
  return tokens.reduce((sum, token) => sum + lengthOf(tokenizer, token), 0);
}

const tokensOf = ({ tokens }: AnswerPart): object => (tokens ? { token_ids: tokens } : {});
