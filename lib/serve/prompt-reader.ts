// Prompts to tokens in worker threads, away from the event loop that feeds the engine.

import { DsError } from '../errors.js';
import { type LostAnswerError, ThreadPool } from '../runtime/thread-pool.js';
import { timerMs } from '../runtime/timer.js';
import type { ChatMessage, Tokenizer } from '../text/index.js';
import { invalid, tooLong, tooManyCharacters, unsupported } from './api-error.js';
import { FairQueue, type QueueClient } from './fair-queue.js';

/**
 * UTF-16 units of a text that the event loop encodes, because a thread would take as long. Regular
 * expressions of a tokenizer have no bound, so they always run in a thread.
 */
const SHORT = 1024;
/** UTF-16 units beyond which a prompt is long: long prompts leave one thread to the others. */
const LONG = 32 * 1024;
/** MiB of a thread's heap. The largest known tokenizers need about 400. */
const HEAP_MIB = 2048;

/** The `workerData` of a thread. */
export interface PromptSetup {
  /** The tokenizer's. */
  folder: string;
  /** A Jinja text in place of the tokenizer's own chat template. */
  chatTemplate: string | undefined;
  /** Tokens of a prompt, at most. */
  max: number;
  /** UTF-16 units of a prompt, at most. */
  characters: number;
}

/** Settings of a PromptReader. */
interface PromptReaderOptions {
  threads: number;
  chatTemplate?: string;
  /** Tokens of a prompt, at most. */
  max: number;
  /** UTF-16 units of a prompt, at most. */
  characters: number;
  /** Seconds that one prompt may take. */
  seconds: number;
}

/** How a conversation becomes a prompt. */
export interface ChatPromptOptions {
  addGenerationPrompt: boolean;
  continueFinalMessage: boolean;
  /** Functions that the model may call, in the form for the template. */
  tools?: readonly object[];
  variables: Record<string, unknown>;
}

/** A task for a thread. */
export type PromptQuestion =
  | { text: string; addSpecialTokens?: boolean }
  | { decode: readonly number[] }
  | { messages: readonly ChatMessage[]; options: ChatPromptOptions };

/**
 * A thread's answer: tokens, or the text of tokens. `fewest` is a lower bound of the tokens, and
 * `characters` the length of a rendered chat, if these are too many. `lost` is the message that the
 * chat template leaves out, `lostCalls` the message with calls that it leaves out.
 */
export type PromptAnswer =
  | { tokens: Int32Array }
  | { text: string }
  | { fewest: number }
  | { characters: number }
  | { lost: number }
  | { lostCalls: number };

/** Tokens of prompts; threads start when the first one is needed. */
export class PromptReader {
  private readonly pool: ThreadPool<PromptQuestion, PromptAnswer>;
  private readonly queue: FairQueue;
  private readonly hasPatterns: boolean;
  private readonly knowsDevelopers: boolean;
  private readonly readsThinking: boolean;
  /** Whether the chat template writes functions that the model may call. */
  readonly knowsTools: boolean;

  constructor(
    private readonly tokenizer: Tokenizer,
    private readonly options: PromptReaderOptions,
  ) {
    const { threads, chatTemplate, max, characters, seconds } = options;
    this.queue = new FairQueue(threads);
    this.hasPatterns = tokenizer.hasPatterns;
    const template = chatTemplate ?? tokenizer.templateText('default') ?? '';
    this.knowsDevelopers = template.includes('developer');
    this.readsThinking = /\.thinking\b/.test(template) && !template.includes('reasoning_content');
    const withTools = chatTemplate ?? tokenizer.templateText('tool_use') ?? template;
    this.knowsTools = withTools.includes('tools');
    const data: PromptSetup = { folder: tokenizer.folder, chatTemplate, max, characters };
    const entry = { folder: __dirname, entry: 'prompt-thread', data };
    this.pool = new ThreadPool({
      ...entry,
      threads,
      timeoutMs: timerMs(seconds),
      heapMiB: HEAP_MIB,
    });
  }

  /**
   * Tokens of a text, special tokens included. Rejects with DS_DATA, DS_LIMIT if it takes too much
   * time or memory, and the reason of the asker's signal. Rejects with 400 if it is too long.
   */
  async text(text: string, asker: QueueClient, field = 'prompt'): Promise<number[]> {
    this.requireLength(field, text.length);
    const { max } = this.options;
    const fewest = this.tokenizer.fewestTokens(text);
    if (fewest > max) throw tooLong(field, `at least ${fewest}`, max);
    const isShort = text.length <= SHORT && !this.hasPatterns;
    const tokens = isShort
      ? Array.from(this.tokenizer.encode(text))
      : this.tokensOf(field, await this.ask({ text }, text.length, asker));
    if (tokens.length > max && field !== 'prompt') throw tooLong(field, `${tokens.length}`, max);
    return tokens;
  }

  /** A text of any number of tokens, with special tokens or without. Rejects as text() does. */
  async count(text: string, addSpecialTokens: boolean, asker: QueueClient): Promise<number[]> {
    this.requireLength('prompt', text.length);
    return this.tokensOf('prompt', await this.ask({ text, addSpecialTokens }, text.length, asker));
  }

  /** The text of tokens. Rejects as text() does. */
  async decode(tokens: readonly number[], asker: QueueClient): Promise<string> {
    this.requireLength('tokens', tokens.length);
    const answer = await this.ask({ decode: tokens }, tokens.length, asker);
    return 'text' in answer ? answer.text : '';
  }

  /**
   * A conversation as the chat template writes it. Rejects as text(), with DS_ARGUMENT, and with
   * 400 for a message that the template leaves out.
   */
  async chat(
    messages: readonly ChatMessage[],
    options: ChatPromptOptions,
    asker: QueueClient,
  ): Promise<number[]> {
    const length = messages.reduce((sum, message) => sum + lengthOf(message), 0);
    this.requireLength('messages', length);
    const question = { messages: this.known(messages), options };
    const answer = await this.ask(question, length, asker);
    if ('lostCalls' in answer) {
      const reason = "this model's chat template does not write calls; send them as texts";
      throw unsupported(`messages[${answer.lostCalls}].tool_calls`, reason);
    }
    if (!('lost' in answer)) return this.tokensOf('messages', answer);
    const role = `"${messages[answer.lost]?.role}"`;
    const expected = 'a message that the chat template writes into the prompt';
    const got = `${role} with content that it leaves out`;
    throw invalid(`messages[${answer.lost}].role`, expected, `${got}`);
  }

  /**
   * A template drops messages with unknown roles. "developer" is the newer name of "system".
   */
  private known(messages: readonly ChatMessage[]): readonly ChatMessage[] {
    return messages.map((message) => {
      const { role, reasoning_content: thought } = message;
      const isDeveloper = role === 'developer' && !this.knowsDevelopers;
      // The template of gpt-oss reads this name.
      const own = this.readsThinking && thought !== undefined ? { thinking: thought } : {};
      return { ...message, ...(isDeveloper && { role: 'system' }), ...own };
    });
  }

  /** Ends the threads. */
  close(): Promise<void> {
    return this.pool.close();
  }

  private tokensOf(field: string, answer: PromptAnswer): number[] {
    if ('tokens' in answer) return Array.from(answer.tokens);
    if ('characters' in answer) this.requireLength(field, answer.characters);
    const { max } = this.options;
    throw tooLong(field, `at least ${'fewest' in answer ? answer.fewest : max}`, max);
  }

  private requireLength(field: string, length: number): void {
    const { characters } = this.options;
    if (length > characters) throw tooManyCharacters(field, length, characters);
  }

  private async ask(
    question: PromptQuestion,
    length: number,
    asker: QueueClient,
  ): Promise<PromptAnswer> {
    const leave = await this.queue.enter(asker, length > LONG);
    try {
      return await this.pool.ask(question, this.failure, asker.signal);
    } catch (error) {
      throw error instanceof DsError ? withoutFolder(error, this.tokenizer.folder) : error;
    } finally {
      leave();
    }
  }

  /**
   * The error of a prompt after its thread has ended. The pool starts another thread for the next.
   */
  private readonly failure: LostAnswerError = (got, isLimit) => {
    const op = 'tokenizing a prompt';
    if (!isLimit) {
      return new DsError({ code: 'DS_INTERNAL', op, expected: 'tokens from a thread', got });
    }
    const expected = `at most ${this.options.seconds} s and ${HEAP_MIB} MiB`;
    return new DsError({ code: 'DS_LIMIT', op, expected, got, hint: 'Send a shorter prompt.' });
  };
}

/** Errors go to clients, and the server's paths must not. */
function withoutFolder({ code, op, expected, got, hint }: DsError, folder: string): DsError {
  const clean = (text: string): string =>
    text.replaceAll(`${folder}, `, '').replaceAll(folder, 'the tokenizer');
  const fields = {
    op: clean(op),
    expected: clean(expected),
    got: clean(got),
    hint: clean(hint),
  };
  return new DsError({ code, ...fields });
}

/** Characters of a message that the template may write. */
function lengthOf({ content, reasoning_content: thought, tool_calls: calls }: ChatMessage): number {
  const written = calls === undefined ? '' : JSON.stringify(calls);
  return String(content ?? '').length + String(thought ?? '').length + written.length;
}
