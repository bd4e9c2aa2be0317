// Prompts to tokens, away from the event loop that feeds the engine: chats always, texts when they
// are long.

import { DsError } from '../errors.js';
import { ThreadPool } from '../runtime/thread-pool.js';
import type { ChatMessage, Tokenizer } from '../text/index.js';

/** UTF-16 units of a text that is encoded where it is: handing it over would take as long. */
const SHORT = 1024;
/** Beyond it a prompt is given up. */
const TIMEOUT_MS = 120_000;

/** What a thread is started with. */
export interface PromptSetup {
  /** The tokenizer's. */
  folder: string;
  /** A Jinja text in place of the tokenizer's own chat template. */
  chatTemplate: string | undefined;
}

/** How a conversation becomes a prompt. */
export interface ChatPromptOptions {
  addGenerationPrompt: boolean;
  continueFinalMessage: boolean;
  variables: Record<string, unknown>;
}

/** What a thread is asked for. */
export type PromptQuestion =
  | { text: string }
  | { messages: readonly ChatMessage[]; options: ChatPromptOptions };

/** Tokens of prompts; threads start when the first one is needed. */
export class PromptReader {
  private readonly pool: ThreadPool<PromptQuestion, Int32Array>;

  constructor(
    private readonly tokenizer: Tokenizer,
    { threads, chatTemplate }: { threads: number; chatTemplate?: string },
  ) {
    const data: PromptSetup = { folder: tokenizer.folder, chatTemplate };
    const entry = { folder: __dirname, entry: 'prompt-thread', data };
    this.pool = new ThreadPool({ ...entry, threads, timeoutMs: TIMEOUT_MS });
  }

  /** A text with the special tokens that begin one. Rejects with DS_DATA. */
  async text(text: string): Promise<number[]> {
    const tokens = text.length <= SHORT ? this.tokenizer.encode(text) : await this.ask({ text });
    return Array.from(tokens);
  }

  /** A conversation as the chat template writes it. Rejects with DS_DATA, DS_ARGUMENT. */
  async chat(messages: readonly ChatMessage[], options: ChatPromptOptions): Promise<number[]> {
    return Array.from(await this.ask({ messages, options }));
  }

  /** Ends the threads. */
  close(): Promise<void> {
    return this.pool.close();
  }

  private ask(question: PromptQuestion): Promise<Int32Array> {
    const expected = 'its tokens from their thread';
    const fields = { code: 'DS_INTERNAL', op: 'encoding a prompt', expected } as const;
    return this.pool.ask(question, (got) => new DsError({ ...fields, got }));
  }
}
