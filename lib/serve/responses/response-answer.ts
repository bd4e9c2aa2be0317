// Sends the answer of /v1/responses: items of reasoning, text and calls, as one object or events.
import { randomUUID } from 'node:crypto';
import type { JsonObject } from '../../../types/json.js';
import { required } from '../../runtime/required.js';
import { type Answer, type AnswerSetup, IDLE_MS, type Usage } from '../answer.js';
import type { AnswerPart, CallPart } from '../answer-format.js';
import type { ApiError } from '../api-error.js';
import { EventStream } from '../event-stream.js';
import { sendError, sendJson } from '../send.js';
import type { NamespacedNames } from './namespaces.js';

/** Fields of a response that do not depend on the answer. */
export interface ResponseHead {
  id: string;
  /** Seconds since 1970. */
  created_at: number;
  /** Fields copied from the request. */
  echo: JsonObject;
  namespaces: NamespacedNames;
}

type ItemKind = 'reasoning' | 'message' | 'function_call';
/** An item that is not complete yet. */
interface OpenItem {
  kind: ItemKind;
  /** Index of the item in the output. */
  index: number;
  id: string;
  /** The call's id and name. */
  call: { call_id: string; name: string; namespace?: string } | null;
  texts: string[];
}

const PREFIXES: Readonly<Record<ItemKind, string>> = {
  reasoning: 'rs',
  message: 'msg',
  function_call: 'fc',
};

const newId = (kind: ItemKind): string => `${PREFIXES[kind]}_${randomUUID().replaceAll('-', '')}`;

/** Stores a response for later requests. */
type Keep = (response: JsonObject, output: readonly JsonObject[]) => void;

/**
 * Builds items from the parts of an answer. One item is open at a time; a part of another kind
 * closes it.
 */
export class ResponseAnswer implements Answer {
  private readonly output: JsonObject[] = [];
  private item: OpenItem | null = null;
  private reason: string | null = null;
  private sequence = 0;
  private events: EventStream | null = null;
  private readonly idle: NodeJS.Timeout | null;

  constructor(
    private readonly setup: AnswerSetup,
    private readonly head: ResponseHead,
    private readonly keep: Keep,
  ) {
    const wait = (): void => this.stream().wait();
    this.idle = setup.delivery.stream ? setInterval(wait, IDLE_MS).unref() : null;
  }

  part(choice: number, { text, reasoning, calls = [], finishReason }: AnswerPart): void {
    if (choice > 0) return;
    if (reasoning) this.addText('reasoning', reasoning);
    if (text !== '') this.addText('message', text);
    for (const call of calls) this.addCall(call);
    if (finishReason !== null) this.reason = finishReason;
  }

  end(usage: Usage): void {
    // An empty answer still has one message.
    if (this.output.length === 0 && !this.item) this.openItem('message', null);
    this.closeItem();
    const isWhole = this.reason !== 'length';
    const response = this.createResponse(isWhole ? 'completed' : 'incomplete', usage);
    this.keep(response, this.output);
    if (!this.setup.delivery.stream) {
      sendJson(this.setup.response, 200, response);
      return;
    }
    this.send({ type: isWhole ? 'response.completed' : 'response.incomplete', response });
    this.finish();
  }

  fail(error: ApiError): void {
    if (!this.events) {
      if (this.idle) clearInterval(this.idle);
      sendError(this.setup.response, error);
      return;
    }
    const { code, message } = error;
    const errorFields = { code: code ?? 'server_error', message };
    this.send({
      type: 'response.failed',
      response: { ...this.createResponse('failed', null), error: errorFields },
    });
    this.finish();
  }

  private finish(): void {
    if (this.idle) clearInterval(this.idle);
    this.stream().close();
  }

  private createResponse(status: string, usage: Usage | null): JsonObject {
    const { id, created_at, echo } = this.head;
    const isCut = status === 'incomplete';
    return {
      id,
      object: 'response',
      created_at,
      status,
      background: false,
      error: null,
      incomplete_details: isCut ? { reason: 'max_output_tokens' } : null,
      ...echo,
      model: this.setup.model,
      output: [...this.output],
      usage: usage && usageFields(usage),
    };
  }

  private addText(kind: 'reasoning' | 'message', text: string): void {
    if (this.item?.kind !== kind) {
      this.closeItem();
      this.openItem(kind, null);
    }
    const { index, id, texts } = required(this.item);
    texts.push(text);
    const location = { item_id: id, output_index: index };
    if (kind === 'message') {
      const more = { content_index: 0, delta: text, logprobs: [] };
      this.send({ type: 'response.output_text.delta', ...location, ...more });
    } else {
      this.send({
        type: 'response.reasoning_summary_text.delta',
        ...location,
        summary_index: 0,
        delta: text,
      });
    }
  }

  private addCall({ id, name = '', arguments: text }: CallPart): void {
    if (id !== undefined) {
      this.closeItem();
      const own = this.head.namespaces.get(name) ?? { name };
      this.openItem('function_call', { call_id: id, ...own });
    }
    if (text === '' || this.item?.kind !== 'function_call') return;
    const { index, id: item_id, texts } = this.item;
    texts.push(text);
    const more = { item_id, output_index: index, delta: text };
    this.send({ type: 'response.function_call_arguments.delta', ...more });
  }

  private openItem(kind: ItemKind, call: OpenItem['call']): void {
    const item = { kind, index: this.output.length, id: newId(kind), call, texts: [] };
    this.item = item;
    const empty = {
      ...serializeItem(item, 'in_progress'),
      ...(kind === 'message' && { content: [] }),
    };
    const added = { ...empty, ...(kind === 'reasoning' && { summary: [] }) };
    this.send({ type: 'response.output_item.added', output_index: item.index, item: added });
    if (kind !== 'function_call') this.sendPart(item, 'added');
  }

  private closeItem(): void {
    const { item } = this;
    if (!item) return;
    this.item = null;
    const text = item.texts.join('');
    const location = { item_id: item.id, output_index: item.index };
    if (item.kind === 'message') {
      const more = { content_index: 0, text, logprobs: [] };
      this.send({ type: 'response.output_text.done', ...location, ...more });
      this.sendPart(item, 'done');
    } else if (item.kind === 'reasoning') {
      const more = { summary_index: 0, text };
      this.send({ type: 'response.reasoning_summary_text.done', ...location, ...more });
      this.sendPart(item, 'done');
    } else {
      const more = { name: item.call?.name ?? '', arguments: text };
      this.send({ type: 'response.function_call_arguments.done', ...location, ...more });
    }
    const isCut = this.reason === 'length';
    const serialized = serializeItem(item, isCut ? 'incomplete' : 'completed');
    this.output.push(serialized);
    this.send({ type: 'response.output_item.done', output_index: item.index, item: serialized });
  }

  private sendPart(item: OpenItem, stage: 'added' | 'done'): void {
    const isText = item.kind === 'message';
    const name = isText ? 'content_part' : 'reasoning_summary_part';
    this.send({
      type: `response.${name}.${stage}`,
      item_id: item.id,
      output_index: item.index,
      ...(isText ? { content_index: 0 } : { summary_index: 0 }),
      part: contentPart(item),
    });
  }

  private send(event: { type: string } & JsonObject): void {
    if (!this.setup.delivery.stream) return;
    const stream = this.stream();
    this.idle?.refresh();
    const sequence_number = this.sequence++;
    stream.sendTyped(Object.assign(event, { sequence_number }));
  }

  private stream(): EventStream {
    if (this.events) return this.events;
    const { response, maxUnread, overflow } = this.setup;
    this.events = new EventStream(response, maxUnread, overflow);
    const initial = this.createResponse('in_progress', null);
    this.send({ type: 'response.created', response: initial });
    this.send({ type: 'response.in_progress', response: initial });
    return this.events;
  }
}

function contentPart({ kind, texts }: OpenItem): JsonObject {
  const text = texts.join('');
  if (kind === 'reasoning') return { type: 'summary_text', text };
  return { type: 'output_text', text, annotations: [], logprobs: [] };
}

/** Returns the JSON of an item. */
function serializeItem(item: OpenItem, status: string): JsonObject {
  const { kind, id, call, texts } = item;
  switch (kind) {
    case 'reasoning':
      return { id, type: kind, status, summary: [contentPart(item)] };
    case 'message':
      return { id, type: kind, status, role: 'assistant', content: [contentPart(item)] };
    case 'function_call':
      return { id, type: kind, status, ...call, arguments: texts.join('') };
  }
}

function usageFields({ promptTokens, completionTokens, cachedTokens, reasoningTokens }: Usage) {
  return {
    input_tokens: promptTokens,
    input_tokens_details: { cached_tokens: cachedTokens },
    output_tokens: completionTokens,
    output_tokens_details: { reasoning_tokens: reasoningTokens ?? 0 },
    total_tokens: promptTokens + completionTokens,
  };
}
