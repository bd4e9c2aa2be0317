// Sends an answer to the client: as one JSON object or as a stream of events.
import { randomUUID } from 'node:crypto';
import type { ServerResponse } from 'node:http';

import type { AnswerFormat, AnswerPart, CallPart, PartLogprob } from './answer-format.js';
import type { ApiError } from './api-error.js';
import { EventStream } from './event-stream.js';
import { sendError, sendJson } from './send.js';

/** Token counts of a request. */
export interface Usage {
  promptTokens: number;
  completionTokens: number;
  cachedTokens: number;
  /** Tokens of reasoning; absent if the answer's form has none. */
  reasoningTokens?: number;
}

/** How the answer is sent. */
export interface Delivery {
  /** Whether the answer is sent as events while it is generated. */
  stream: boolean;
  /** Whether the last event has the token counts. */
  includeUsage: boolean;
  /** Whether the answer has token ids. */
  tokenIds: boolean;
}

/** Receives the parts of all choices. */
export interface Answer {
  part(index: number, part: AnswerPart): void;
  end(usage: Usage): void;
  /** Ends the answer with an error. */
  fail(error: ApiError): void;
}

/** Fields that every object of an answer repeats. */
interface AnswerHeading {
  id: string;
  created: number;
  model: string;
}

/** Settings of an answer. */
export interface AnswerSetup {
  response: ServerResponse;
  delivery: Delivery;
  /** Number of choices. */
  choices: number;
  model: string;
  /** Tokens of all prompts. */
  promptTokens: number;
  /** Bytes that may wait for the client. Beyond them, `overflow` is called. */
  maxUnread: number;
  overflow: () => void;
}

/** Returns a function that opens an answer in `format`: a stream or one object, by `delivery`. */
export const answerOpener =
  (format: AnswerFormat) =>
  (setup: AnswerSetup): Answer => {
    const formatted = { ...setup, format };
    return setup.delivery.stream ? new StreamedAnswer(formatted) : new WholeAnswer(formatted);
  };

interface FormattedSetup extends AnswerSetup {
  format: AnswerFormat;
}

function createHeading({ format, model }: FormattedSetup): AnswerHeading {
  const id = `${format.idPrefix}${randomUUID().replaceAll('-', '')}`;
  return { id, created: Math.floor(Date.now() / 1000), model };
}

function usageFields(usage: Usage): object {
  const { promptTokens, completionTokens, cachedTokens, reasoningTokens: reasoning_tokens } = usage;
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens },
    ...(reasoning_tokens !== undefined && { completion_tokens_details: { reasoning_tokens } }),
  };
}

class WholeAnswer implements Answer {
  private readonly choices: ChoiceParts[];

  constructor(private readonly setup: FormattedSetup) {
    this.choices = Array.from({ length: setup.choices }, () => new ChoiceParts());
  }

  part(index: number, part: AnswerPart): void {
    this.choices[index]?.add(part);
  }

  end(usage: Usage): void {
    const { format, response } = this.setup;
    const { id, created, model } = createHeading(this.setup);
    const choices = this.choices.map((choice, index) => format.choice(index, choice.merged));
    const body = { id, object: format.whole, created, model, choices, usage: usageFields(usage) };
    sendJson(response, 200, body);
  }

  fail(error: ApiError): void {
    sendError(this.setup.response, error);
  }
}

/** Merges the parts of one choice. */
export class ChoiceParts {
  private readonly texts: string[] = [];
  private readonly reasonings: string[] = [];
  private readonly calls: CallPart[] = [];
  private readonly tokens: number[] = [];
  private readonly logprobs: PartLogprob[] = [];
  private last: AnswerPart | null = null;

  add(part: AnswerPart): void {
    this.texts.push(part.text);
    if (part.reasoning) this.reasonings.push(part.reasoning);
    for (const call of part.calls ?? []) this.addCall(call);
    if (part.tokens) this.tokens.push(...part.tokens);
    if (part.logprobs) this.logprobs.push(...part.logprobs);
    this.last = part;
  }

  get merged(): AnswerPart {
    const { last } = this;
    return {
      text: this.texts.join(''),
      reasoning: this.reasonings.join(''),
      calls: this.calls,
      tokens: last?.tokens ? this.tokens : null,
      logprobs: last?.logprobs ? this.logprobs : null,
      finishReason: last?.finishReason ?? null,
      offset: 0,
    };
  }

  private addCall(call: CallPart): void {
    const openCall = this.calls[call.index];
    if (openCall) openCall.arguments += call.arguments;
    else this.calls.push({ ...call });
  }
}

/**
 * Milliseconds between keep-alive comments. Some proxies close a connection after 30 idle seconds.
 */
export const IDLE_MS = 15_000;

/**
 * Sends the status with the first part, or with the first keep-alive comment. An error before that
 * still sets the HTTP status.
 */
class StreamedAnswer implements Answer {
  private readonly heading: AnswerHeading;
  private events: EventStream | null = null;
  private readonly opened = new Set<number>();
  private readonly idle: NodeJS.Timeout;

  constructor(private readonly setup: FormattedSetup) {
    this.heading = createHeading(setup);
    this.idle = setInterval(() => this.open().wait(), IDLE_MS).unref();
  }

  part(index: number, part: AnswerPart): void {
    const { format } = this.setup;
    const opening = this.opened.has(index) ? null : format.opening(index);
    this.opened.add(index);
    if (opening) this.send([opening], null);
    if (hasContent(part)) this.send([format.part(index, part)], null);
  }

  end(usage: Usage): void {
    if (this.setup.delivery.includeUsage) this.send([], usageFields(usage));
    clearInterval(this.idle); // After send(), because send() restarts the timer.
    this.open().end();
  }

  fail(error: ApiError): void {
    clearInterval(this.idle);
    if (this.events) this.events.fail(error);
    else sendError(this.setup.response, error);
  }

  private send(choices: object[], usage: object | null): void {
    this.idle.refresh();
    const { id, created, model } = this.heading;
    const { delivery, format } = this.setup;
    const usageField = delivery.includeUsage ? { usage } : {};
    this.open().send({ id, object: format.chunk, created, model, choices, ...usageField });
  }

  private open(): EventStream {
    const { response, maxUnread, overflow } = this.setup;
    this.events ??= new EventStream(response, maxUnread, overflow);
    return this.events;
  }
}

const hasContent = ({ text, reasoning, calls, tokens, logprobs, finishReason }: AnswerPart) =>
  text !== '' ||
  Boolean(reasoning) ||
  Boolean(calls?.length) ||
  finishReason !== null ||
  Boolean(tokens?.length) ||
  Boolean(logprobs?.length);
