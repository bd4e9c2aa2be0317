// The two shapes of an answer: OpenAI's text completion and its chat completion.
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
    const rows = logprobs.map(({ token, logprob, top }) => {
      const text = spell(this.tokenizer, token);
      const row = { text, logprob, top: this.topOf(top), offset: at };
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

  private topOf(top: ServedLogprob['top']): object {
    const named = top.map(({ token, logprob }) => [spell(this.tokenizer, token), finite(logprob)]);
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
const finite = (logprob: number): number => Math.max(logprob, -9999);

/** Its text; its number where it has none, without a tokenizer or beyond its vocabulary. */
const spell = (tokenizer: Tokenizer | null, token: number): string =>
  tokenizer?.hasToken(token) ? tokenizer.decode([token]) : `token_id:${token}`;

/** The characters that it gives a text; a number stands for the text of a model that has none. */
const lengthOf = (tokenizer: Tokenizer | null, token: number): number =>
  tokenizer && !tokenizer.hasToken(token) ? 0 : spell(tokenizer, token).length;

/** Characters of tokens, each spelled by itself. */
export function spelledLength(
  { tokenizer }: { tokenizer: Tokenizer | null },
  tokens: readonly number[],
): number {
  return tokens.reduce((sum, token) => sum + lengthOf(tokenizer, token), 0);
}

const tokensOf = ({ tokens }: AnswerPart): object => (tokens ? { token_ids: tokens } : {});
