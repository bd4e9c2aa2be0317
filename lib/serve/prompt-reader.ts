// Tokenizes prompts in worker threads, so that the event loop stays free for the engine.

import { DsError } from '../errors.js';
import { type LostAnswerError, ThreadPool } from '../runtime/thread-pool.js';
import { timerMs } from '../runtime/timer.js';
import { messageAdapter } from '../text/adapt-messages.js';
import type { ChatMessage, Tokenizer } from '../text/index.js';
import { ApiError, tooLongError, tooManyCharactersError, unsupportedError } from './api-error.js';
import { FairQueue, type QueueClient } from './fair-queue.js';

/**
 * Maximum UTF-16 units of a text that the event loop encodes itself: a thread would take as long.
 * Tokenizers with regular expressions always use a thread, because their time has no bound.
 */
const INLINE_LENGTH = 1024;
/** UTF-16 units from which a prompt is long. Long prompts leave one thread to the others. */
const LONG_LENGTH = 32 * 1024;
/** Heap of a thread in MiB. The largest known tokenizers need about 400. */
const HEAP_MIB = 2048;

/** The `workerData` of a thread. */
export interface PromptSetup {
  /** Folder of the tokenizer. */
  folder: string;
  /** Jinja text that replaces the tokenizer's chat template. */
  chatTemplate: string | undefined;
  /** Maximum number of tokens. */
  max: number;
  /** Maximum UTF-16 units. */
  characters: number;
}

/** Settings of a PromptReader. */
interface PromptReaderOptions {
  threads: number;
  chatTemplate?: string;
  /** Maximum number of tokens. */
  max: number;
  /** Maximum UTF-16 units. */
  characters: number;
  /** Maximum seconds for one prompt. */
  seconds: number;
}

/** Options of the chat template. */
export interface ChatPromptOptions {
  addGenerationPrompt: boolean;
  continueFinalMessage: boolean;
  /** Functions that the model may call, as the template expects them. */
  tools?: readonly object[];
  variables: Record<string, unknown>;
}

/** A task for a thread. */
export type PromptQuestion =
  | { text: string; addSpecialTokens?: boolean }
  | { decode: readonly number[] }
  | { messages: readonly ChatMessage[]; options: ChatPromptOptions };

/**
 * A thread's answer. `tokens` and `text` are results; the others are failures. `minTokens` is a
 * lower bound of too many tokens, and `characters` the length of a chat that is too long. `lost`
 * and `lostCalls` are the index of a message that the chat template drops, or of its calls.
 */
export type PromptAnswer =
  | { tokens: Int32Array }
  | { text: string }
  | { minTokens: number }
  | { characters: number }
  | { lost: number }
  | { lostCalls: number };

/** Tokenizes prompts. The threads start with the first prompt. */
export class PromptReader {
  private readonly pool: ThreadPool<PromptQuestion, PromptAnswer>;
  private readonly queue: FairQueue;
  private readonly hasPatterns: boolean;
  private readonly adaptMessage: (message: ChatMessage) => ChatMessage;
  /** Whether the chat template renders tools. */
  readonly knowsTools: boolean;

  constructor(
    private readonly tokenizer: Tokenizer,
    private readonly options: PromptReaderOptions,
  ) {
    const { threads, max, characters, seconds } = options;
    const chatTemplate = options.chatTemplate ?? tokenizer.ownTemplate ?? undefined;
    this.queue = new FairQueue(threads);
    this.hasPatterns = tokenizer.hasPatterns;
    const template = chatTemplate ?? tokenizer.templateText('default') ?? '';
    this.adaptMessage = messageAdapter(template);
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
   * Encodes a text with special tokens. Rejects with DS_DATA for a text that cannot be encoded,
   * with DS_LIMIT if encoding takes too much time or memory, and with status 400 for a long text.
   * If the client leaves, it rejects with the reason of the client's signal.
   */
  async encode(text: string, queueClient: QueueClient, field = 'prompt'): Promise<number[]> {
    this.requireLength(field, text.length);
    const { max } = this.options;
    const fewest = this.tokenizer.fewestTokens(text);
    if (fewest > max) throw tooLongError(field, `at least ${fewest}`, max);
    const isShort = text.length <= INLINE_LENGTH && !this.hasPatterns;
    const tokens = isShort
      ? Array.from(this.tokenizer.encode(text))
      : this.requireTokens(field, await this.ask({ text }, text.length, queueClient));
    if (tokens.length > max && field !== 'prompt')
      throw tooLongError(field, `${tokens.length}`, max);
    return tokens;
  }

  /** Encodes a text without a limit of tokens. Rejects as encode() does. */
  async encodeAny(
    text: string,
    addSpecialTokens: boolean,
    queueClient: QueueClient,
  ): Promise<number[]> {
    this.requireLength('prompt', text.length);
    return this.requireTokens(
      'prompt',
      await this.ask({ text, addSpecialTokens }, text.length, queueClient),
    );
  }

  /** Decodes tokens to text. Rejects as encode() does. */
  async decode(tokens: readonly number[], queueClient: QueueClient): Promise<string> {
    this.requireLength('tokens', tokens.length);
    const answer = await this.ask({ decode: tokens }, tokens.length, queueClient);
    return 'text' in answer ? answer.text : '';
  }

  /**
   * Renders a conversation with the chat template and encodes it. Rejects as encode() does, with
   * DS_ARGUMENT, and with 400 for a message that the template drops.
   */
  async encodeChat(
    messages: readonly ChatMessage[],
    options: ChatPromptOptions,
    queueClient: QueueClient,
  ): Promise<number[]> {
    const length = messages.reduce((sum, message) => sum + messageLength(message), 0);
    this.requireLength('messages', length);
    const question = { messages: messages.map(this.adaptMessage), options };
    const answer = await this.ask(question, length, queueClient);
    if ('lostCalls' in answer) {
      const reason = "this model's chat template does not write calls; send them as texts";
      throw unsupportedError(`messages[${answer.lostCalls}].tool_calls`, reason);
    }
    if (!('lost' in answer)) return this.requireTokens('messages', answer);
    const param = `messages[${answer.lost}].role`;
    const got = `"${messages[answer.lost]?.role}" with content that it leaves out`;
    const message = `${param}: expected a message that the chat template writes into the prompt, got ${got}. Write it into a message of the user, or start the server with --chat-template.`;
    throw new ApiError(400, message, { param });
  }

  /** Ends the threads. */
  close(): Promise<void> {
    return this.pool.close();
  }

  private requireTokens(field: string, answer: PromptAnswer): number[] {
    if ('tokens' in answer) return Array.from(answer.tokens);
    if ('characters' in answer) this.requireLength(field, answer.characters);
    const { max } = this.options;
    throw tooLongError(field, `at least ${'minTokens' in answer ? answer.minTokens : max}`, max);
  }

  private requireLength(field: string, length: number): void {
    const { characters } = this.options;
    if (length > characters) throw tooManyCharactersError(field, length, characters);
  }

  private async ask(
    question: PromptQuestion,
    length: number,
    queueClient: QueueClient,
  ): Promise<PromptAnswer> {
    const leave = await this.queue.enter(queueClient, length > LONG_LENGTH);
    try {
      return await this.pool.ask(question, this.failure, queueClient.signal);
    } catch (error) {
      throw error instanceof DsError ? hideFolder(error, this.tokenizer.folder) : error;
    } finally {
      leave();
    }
  }

  /**
   * Returns the error of a prompt that ended its thread. The pool starts another thread for the
   * next prompt.
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

/** Removes the server's path from an error, because clients receive it. */
function hideFolder({ code, op, expected, got, hint }: DsError, folder: string): DsError {
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

/** Returns the characters of a message that the template may render. */
function messageLength({
  content,
  reasoning_content: thought,
  tool_calls: calls,
}: ChatMessage): number {
  const written = calls === undefined ? '' : JSON.stringify(calls);
  return String(content ?? '').length + String(thought ?? '').length + written.length;
}
