// An answer on its way to the client: in one piece when it is complete, or in events as it comes.
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

/** Gets the parts of all choices as they come. */
export interface Answer {
  part(index: number, part: AnswerPart): void;
  end(usage: Usage): void;
  /** Nothing else comes. */
  fail(error: ApiError): void;
}

/** Fields of all objects of an answer. */
interface Heading {
  id: string;
  created: number;
  model: string;
}

/** Parameters of an answer apart from its parts. */
export interface AnswerSetup {
  response: ServerResponse;
  delivery: Delivery;
  /** Choices that there will be. */
  choices: number;
  model: string;
  /** Bytes that may wait for the client, and what happens beyond. */
  maxUnread: number;
  overflow: () => void;
}

/** Opens a whole answer or a stream in `format`, by `delivery`. */
export const answersIn =
  (format: AnswerFormat) =>
  (setup: AnswerSetup): Answer => {
    const own = { ...setup, format };
    return setup.delivery.stream ? new StreamedAnswer(own) : new WholeAnswer(own);
  };

interface FormattedSetup extends AnswerSetup {
  format: AnswerFormat;
}

function headingOf({ format, model }: FormattedSetup): Heading {
  const id = `${format.idPrefix}${randomUUID().replaceAll('-', '')}`;
  return { id, created: Math.floor(Date.now() / 1000), model };
}

function usageOf(usage: Usage): object {
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
  private readonly choices: Gathered[];

  constructor(private readonly setup: FormattedSetup) {
    this.choices = Array.from({ length: setup.choices }, () => new Gathered());
  }

  part(index: number, part: AnswerPart): void {
    this.choices[index]?.add(part);
  }

  end(usage: Usage): void {
    const { format, response } = this.setup;
    const { id, created, model } = headingOf(this.setup);
    const choices = this.choices.map((choice, index) => format.choice(index, choice.whole));
    const body = { id, object: format.whole, created, model, choices, usage: usageOf(usage) };
    sendJson(response, 200, body);
  }

  fail(error: ApiError): void {
    sendError(this.setup.response, error);
  }
}

/** The parts of one choice. */
export class Gathered {
  private readonly texts: string[] = [];
  private readonly thoughts: string[] = [];
  private readonly calls: CallPart[] = [];
  private readonly tokens: number[] = [];
  private readonly logprobs: PartLogprob[] = [];
  private last: AnswerPart | null = null;

  add(part: AnswerPart): void {
    this.texts.push(part.text);
    if (part.reasoning) this.thoughts.push(part.reasoning);
    for (const call of part.calls ?? []) this.addCall(call);
    if (part.tokens) this.tokens.push(...part.tokens);
    if (part.logprobs) this.logprobs.push(...part.logprobs);
    this.last = part;
  }

  get whole(): AnswerPart {
    const { last } = this;
    return {
      text: this.texts.join(''),
      reasoning: this.thoughts.join(''),
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

/** Proxies close connections after 60 s without a byte, some after 30 s. */
export const IDLE_MS = 15_000;

/**
 * The status is sent with the first part, or the first comment while nothing is generated: until
 * then an error is one of HTTP.
 */
class StreamedAnswer implements Answer {
  private readonly heading: Heading;
  private events: EventStream | null = null;
  private readonly begun = new Set<number>();
  private readonly idle: NodeJS.Timeout;

  constructor(private readonly setup: FormattedSetup) {
    this.heading = headingOf(setup);
    this.idle = setInterval(() => this.open().wait(), IDLE_MS).unref();
  }

  part(index: number, part: AnswerPart): void {
    const { format } = this.setup;
    const opening = this.begun.has(index) ? null : format.opening(index);
    this.begun.add(index);
    if (opening) this.send([opening], null);
    if (hasContent(part)) this.send([format.part(index, part)], null);
  }

  end(usage: Usage): void {
    if (this.setup.delivery.includeUsage) this.send([], usageOf(usage));
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
    const counted = delivery.includeUsage ? { usage } : {};
    this.open().send({ id, object: format.chunk, created, model, choices, ...counted });
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
