// A chat in the terminal: reads lines, streams answers.
import { once } from 'node:events';
import type { Interface } from 'node:readline';
import type { Writable } from 'node:stream';

import { DsError } from '../errors.js';
import { argumentError } from '../runtime/input-errors.js';
import { readDeclared } from '../runtime/option.js';
import type { ChatMessage, Tokenizer } from '../text/index.js';
import { findLostMessage } from '../text/lost-messages.js';
import { CHAT, type ChatOptions } from './chat-options.js';
import { samplingDefaults } from './sampling-defaults.js';
import type { ContinuationOptions, ServedEngine } from './served-engine.js';

const HELP = '/reset starts over, /quit ends, Ctrl-C stops an answer';

/**
 * Talks until the input ends, the user types /quit, or the output closes. With a chat template,
 * each prompt holds the whole conversation. Without a template, the model continues each line
 * separately. Throws DS_ARGUMENT for a model without a tokenizer.
 */
export async function chat(engine: ServedEngine, given: ChatOptions = {}): Promise<void> {
  const options = readDeclared('chat', given, CHAT);
  const tokenizer = requireTokenizer(engine);
  const { input = process.stdin, output = process.stdout } = options;
  const isTerminal = (input as NodeJS.ReadStream).isTTY === true;
  const { createInterface } = await import('node:readline');
  const lines = createInterface({ input, output, terminal: isTerminal, prompt: '> ' });
  const talk = new Conversation(engine, tokenizer, { ...options, output });
  const show = (): void => {
    if (isTerminal) lines.prompt();
  };
  lines.on('SIGINT', () => {
    if (!talk.stop()) lines.close();
  });
  output.on('error', () => {
    talk.end();
    lines.close();
  });
  output.write(`${talk.introduction} ${HELP}.\n`);
  show();
  for await (const line of readLines(lines)) {
    if (line === '/quit') break;
    if (line === '/reset') talk.reset();
    else if (line !== '') await talk.answerLine(line);
    show();
  }
  lines.close();
}

/** Queues lines that arrive during an answer; `for await` over the interface would drop them. */
async function* readLines(lines: Interface): AsyncGenerator<string> {
  const waiting: string[] = [];
  let isOver = false;
  let wake = (): void => {};
  lines.on('line', (line) => {
    waiting.push(line.trim());
    wake();
  });
  lines.on('close', () => {
    isOver = true;
    wake();
  });
  for (;;) {
    const next = waiting.shift();
    if (next !== undefined) yield next;
    else if (isOver) return;
    else {
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  }
}

function requireTokenizer(engine: ServedEngine): Tokenizer {
  if (engine?.tokenizer) return engine.tokenizer;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'chat',
    expected: 'a model with a tokenizer',
    got: 'a model without a tokenizer',
    hint: 'Pass --tokenizer FOLDER, or copy tokenizer.json into the folder of the model.',
  });
}

/** State of one conversation: its messages, and the running answer. */
class Conversation {
  private messages: ChatMessage[] = [];
  private answering: AbortController | null = null;
  private isOver = false;
  private readonly defaults: ContinuationOptions;
  private readonly canChat: boolean;

  constructor(
    private readonly engine: ServedEngine,
    private readonly tokenizer: Tokenizer,
    private readonly options: ChatOptions & { output: Writable },
  ) {
    const { chatTemplate, sampling } = options;
    const defaults = samplingDefaults(engine.module.describe());
    this.defaults = { ...defaults, ...sampling };
    this.canChat = chatTemplate !== undefined || this.tokenizer.chatTemplates.includes('default');
    this.reset();
  }

  get introduction(): string {
    if (this.canChat) return 'A line is a message;';
    return 'This model has no chat template: it continues each line separately;';
  }

  /** Clears the conversation. */
  reset(): void {
    const { system } = this.options;
    this.messages = system === undefined ? [] : [{ role: 'system', content: system }];
  }

  /** Ends the conversation after the output has closed. */
  end(): void {
    this.isOver = true;
    this.stop();
  }

  /** Ends the running answer. Returns false if there is no running answer. */
  stop(): boolean {
    this.answering?.abort();
    return this.answering !== null;
  }

  /** Answers a line. Prints an error and continues. */
  async answerLine(line: string): Promise<void> {
    const { output } = this.options;
    const before = this.messages;
    this.answering = new AbortController();
    try {
      if (this.canChat) this.messages = [...before, { role: 'user', content: line }];
      const prompt = this.canChat ? this.promptWithin() : Array.from(this.tokenizer.encode(line));
      const answer = await this.write(prompt, this.answering.signal);
      if (this.canChat) this.messages = [...this.messages, { role: 'assistant', content: answer }];
    } catch (error) {
      if (this.isOver) return;
      if (!(error instanceof DsError)) throw error;
      this.messages = before;
      output.write(`! ${error.message}\n`);
    } finally {
      this.answering = null;
    }
  }

  /** Returns the tokens of the conversation. If it is too long, drops the oldest exchanges. */
  private promptWithin(): number[] {
    const { chatTemplate: template, output } = this.options;
    const first = this.options.system === undefined ? 0 : 1;
    const room = this.engine.maxTokens - 1;
    for (;;) {
      const options = { addGenerationPrompt: true, template };
      const { ids, text } = this.tokenizer.applyChatTemplate(this.messages, options);
      this.requireWritten(text, (messages) => this.tokenizer.chatText(messages, options));
      if (ids.length <= room || this.messages.length <= first + 1) return Array.from(ids);
      this.messages = [...this.messages.slice(0, first), ...this.messages.slice(first + 2)];
      output.write('! The conversation has grown too long: its beginning is left out.\n');
    }
  }

  /** Throws DS_ARGUMENT if the template leaves out the system prompt. */
  private requireWritten(text: string, render: (messages: readonly ChatMessage[]) => string): void {
    const lost = findLostMessage(this.messages, text, render);
    if (lost < 0 || this.messages[lost]?.role !== 'system') return;
    const got = 'one that leaves them out';
    const hint = 'Omit --system, or set --chat-template.';
    throw argumentError('ds chat --system', 'a chat template with system messages', got, hint);
  }

  /** Writes the answer as it comes, and returns it. */
  private async write(prompt: number[], signal: AbortSignal): Promise<string> {
    const { output } = this.options;
    const room = this.engine.maxTokens - prompt.length;
    const maxNewTokens = Math.max(1, Math.min(this.defaults.maxNewTokens ?? room, room));
    let answer = '';
    for await (const { text } of this.engine.stream({
      ...this.defaults,
      maxNewTokens,
      prompt,
      signal,
      beginsText: this.canChat,
    })) {
      answer += text;
      if (text !== '' && !output.write(text)) await once(output, 'drain');
    }
    output.write(signal.aborted ? ' ...\n' : '\n');
    return answer;
  }
}
