// Prompts to tokens, away from the event loop that feeds the engine: chats always, texts when they
// are long.

import { DsError } from '../errors.js';
import { ThreadPool } from '../runtime/thread-pool.js';
import type { ChatMessage, Tokenizer } from '../text/index.js';
import { invalid, tooLong } from './api-error.js';

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
  /** Tokens of a prompt, at most. */
  most: number;
}

/** How a conversation becomes a prompt. */
export interface ChatPromptOptions {
  addGenerationPrompt: boolean;
  continueFinalMessage: boolean;
  /** Functions that the model may call, as the template is to write them. */
  tools?: readonly object[];
  variables: Record<string, unknown>;
}

/** A task for a thread. */
export type PromptQuestion =
  | { text: string; addSpecialTokens?: boolean }
  | { messages: readonly ChatMessage[]; options: ChatPromptOptions };

/**
 * What a thread says: the tokens, or how many there are at least, where these are too many, or
 * which message the chat template leaves out.
 */
export type PromptAnswer = { tokens: Int32Array } | { fewest: number } | { lost: number };

/** Tokens of prompts; threads start when the first one is needed. */
export class PromptReader {
  private readonly pool: ThreadPool<PromptQuestion, PromptAnswer>;
  private readonly most: number;
  private readonly knowsDevelopers: boolean;
  /** Whether the chat template writes functions that the model may call. */
  readonly knowsTools: boolean;

  constructor(
    private readonly tokenizer: Tokenizer,
    {
      threads,
      chatTemplate,
      most = Number.MAX_SAFE_INTEGER,
    }: { threads: number; chatTemplate?: string; most?: number },
  ) {
    this.most = most;
    const template = chatTemplate ?? tokenizer.templateText('default') ?? '';
    this.knowsDevelopers = template.includes('developer');
    const withTools = chatTemplate ?? tokenizer.templateText('tool_use') ?? template;
    this.knowsTools = withTools.includes('tools');
    const data: PromptSetup = { folder: tokenizer.folder, chatTemplate, most };
    const entry = { folder: __dirname, entry: 'prompt-thread', data };
    this.pool = new ThreadPool({ ...entry, threads, timeoutMs: TIMEOUT_MS });
  }

  /**
   * A text with the special tokens that begin one. Rejects with DS_DATA, and with 400 where it is
   * certain to be too long. A signal ends the reading, here and below, which rejects with its
   * reason.
   */
  async text(text: string, signal: AbortSignal): Promise<number[]> {
    const fewest = this.tokenizer.fewestTokens(text);
    if (fewest > this.most) throw tooLong('prompt', `at least ${fewest}`, this.most);
    if (text.length <= SHORT) return Array.from(this.tokenizer.encode(text));
    return this.within('prompt', await this.ask({ text }, signal));
  }

  /** A text however long it is, with special tokens or without. Rejects with DS_DATA. */
  async count(text: string, addSpecialTokens: boolean, signal: AbortSignal): Promise<number[]> {
    return this.within('prompt', await this.ask({ text, addSpecialTokens }, signal));
  }

  /**
   * A conversation as the chat template writes it. Rejects as text(), with DS_ARGUMENT, and with
   * 400 for a message that the template leaves out.
   */
  async chat(
    messages: readonly ChatMessage[],
    options: ChatPromptOptions,
    signal: AbortSignal,
  ): Promise<number[]> {
    const answer = await this.ask({ messages: this.known(messages), options }, signal);
    if (!('lost' in answer)) return this.within('messages', answer);
    const role = `"${messages[answer.lost]?.role}"`;
    const expected = 'a message that the chat template writes into the prompt';
    const got = `${role}, whose content it leaves out`;
    throw invalid(`messages[${answer.lost}].role`, expected, `${got}`);
  }

  /**
   * Templates leave out what a role says that they do not know: "developer" is a newer "system".
   */
  private known(messages: readonly ChatMessage[]): readonly ChatMessage[] {
    if (this.knowsDevelopers) return messages;
    return messages.map((one) => (one.role === 'developer' ? { ...one, role: 'system' } : one));
  }

  /** Ends the threads. */
  close(): Promise<void> {
    return this.pool.close();
  }

  private within(field: string, answer: PromptAnswer): number[] {
    if ('tokens' in answer) return Array.from(answer.tokens);
    const fewest = 'fewest' in answer ? answer.fewest : this.most;
    throw tooLong(field, `at least ${fewest}`, this.most);
  }

  private async ask(question: PromptQuestion, signal: AbortSignal): Promise<PromptAnswer> {
    const expected = 'its tokens from their thread';
    const fields = { code: 'DS_INTERNAL', op: 'encoding a prompt', expected } as const;
    try {
      return await this.pool.ask(question, (got) => new DsError({ ...fields, got }), signal);
    } catch (error) {
      throw error instanceof DsError ? withoutFolder(error, this.tokenizer.folder) : error;
    }
  }
}

/** Clients are told errors, and have no business with where the server's files are. */
function withoutFolder({ code, op, expected, got, hint }: DsError, folder: string): DsError {
  const told = (text: string): string =>
    text.replaceAll(`${folder}, `, '').replaceAll(folder, 'the tokenizer');
  const fields = { op: told(op), expected: told(expected), got: told(got), hint: told(hint) };
  return new DsError({ code, ...fields });
}
