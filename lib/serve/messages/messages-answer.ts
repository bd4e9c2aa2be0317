// Sends the answer of /v1/messages: blocks of thinking, text and calls, as one object or events.
import type { JsonObject } from '../../../types/json.js';
import { isObject } from '../../runtime/is-object.js';
import { required } from '../../runtime/required.js';
import { type Answer, type AnswerSetup, IDLE_MS, type Usage } from '../answer.js';
import type { AnswerPart, CallPart } from '../answer-format.js';
import type { ApiError } from '../api-error.js';
import { EventStream } from '../event-stream.js';
import { sendJson } from '../send.js';
import { messagesErrorBody, sendMessagesError } from './messages-error.js';

type BlockKind = 'thinking' | 'text' | 'tool_use';

/** A block that is not complete yet. */
interface OpenBlock {
  kind: BlockKind;
  index: number;
  /** The block without its text. */
  empty: JsonObject;
  texts: string[];
}

/** Fields of an answer that do not depend on its text. */
interface MessageHead {
  id: string;
  /** `max_tokens` of the request. */
  max: number;
}

/**
 * Builds blocks from the parts of an answer. One block is open at a time; a part of another kind
 * closes it.
 */
export class MessageAnswer implements Answer {
  private readonly content: JsonObject[] = [];
  private block: OpenBlock | null = null;
  private reason: string | null = null;
  private stopString: string | null = null;
  private events: EventStream | null = null;
  private readonly idle: NodeJS.Timeout | null;

  constructor(
    private readonly setup: AnswerSetup,
    private readonly head: MessageHead,
  ) {
    const wait = (): void => this.stream().wait();
    this.idle = setup.delivery.stream ? setInterval(wait, IDLE_MS).unref() : null;
  }

  part(_: number, part: AnswerPart): void {
    const { text, reasoning, calls = [], finishReason, stopString = null } = part;
    if (reasoning) this.addText('thinking', reasoning);
    if (text !== '') this.addText('text', text);
    for (const call of calls) this.addCall(call);
    if (finishReason === null) return;
    this.reason = finishReason;
    this.stopString = stopString;
  }

  end(usage: Usage): void {
    // Clients read the first block of an answer, so an empty answer has one.
    if (this.content.length === 0 && !this.block) this.openText('text');
    this.closeBlock();
    const ending = {
      stop_reason: this.stopReason(usage),
      stop_sequence: this.stopString,
    };
    if (!this.setup.delivery.stream) {
      const message = { ...this.createMessage(usage), ...ending };
      sendJson(this.setup.response, 200, message);
      return;
    }
    this.send({ type: 'message_delta', delta: ending, usage: usageFields(usage) });
    this.send({ type: 'message_stop' });
    if (this.idle) clearInterval(this.idle);
    this.stream().close();
  }

  fail(error: ApiError): void {
    if (this.idle) clearInterval(this.idle);
    if (!this.events) {
      sendMessagesError(this.setup.response, error);
      return;
    }
    this.events.sendTyped(messagesErrorBody(error));
    this.events.close();
  }

  private stopReason({ completionTokens }: Usage): string {
    if (this.reason === 'length') {
      const isRequested = completionTokens >= this.head.max;
      return isRequested ? 'max_tokens' : 'model_context_window_exceeded';
    }
    if (this.stopString !== null) return 'stop_sequence';
    return this.content.some(({ type }) => type === 'tool_use') ? 'tool_use' : 'end_turn';
  }

  private createMessage(usage: Usage): JsonObject {
    return {
      id: this.head.id,
      type: 'message',
      role: 'assistant',
      model: this.setup.model,
      content: [...this.content],
      stop_reason: null,
      stop_sequence: null,
      usage: usageFields(usage),
    };
  }

  private addText(kind: 'thinking' | 'text', text: string): void {
    if (this.block?.kind !== kind) {
      this.closeBlock();
      this.openText(kind);
    }
    this.addDelta(text);
  }

  private addCall({ id, name = '', arguments: text }: CallPart): void {
    if (id !== undefined) {
      this.closeBlock();
      this.openBlock('tool_use', { type: 'tool_use', id, name, input: {} });
    }
    if (text !== '' && this.block?.kind === 'tool_use') this.addDelta(text);
  }

  private openText(kind: 'thinking' | 'text'): void {
    const empty: JsonObject = { type: kind, [kind]: '' };
    // Clients require a signature. This server needs none to read the thinking again.
    if (kind === 'thinking') empty.signature = '';
    this.openBlock(kind, empty);
  }

  private openBlock(kind: BlockKind, empty: JsonObject): void {
    this.block = { kind, index: this.content.length, empty, texts: [] };
    this.send({ type: 'content_block_start', index: this.block.index, content_block: empty });
  }

  private addDelta(text: string): void {
    const { kind, index, texts } = required(this.block);
    texts.push(text);
    const deltas = {
      thinking: { type: 'thinking_delta', thinking: text },
      text: { type: 'text_delta', text },
      tool_use: { type: 'input_json_delta', partial_json: text },
    };
    this.send({ type: 'content_block_delta', index, delta: deltas[kind] });
  }

  private closeBlock(): void {
    const { block } = this;
    if (!block) return;
    this.block = null;
    const { kind, index, empty } = block;
    const text = block.texts.join('');
    const content = kind === 'tool_use' ? { input: parseInput(text) } : { [kind]: text };
    this.content.push({ ...empty, ...content });
    if (kind === 'thinking') {
      // Without this event, the AI SDK does not send the thinking back.
      const delta = { type: 'signature_delta', signature: '' };
      this.send({ type: 'content_block_delta', index, delta });
    }
    this.send({ type: 'content_block_stop', index });
  }

  private send(event: { type: string } & JsonObject): void {
    if (!this.setup.delivery.stream) return;
    const stream = this.stream();
    this.idle?.refresh();
    stream.sendTyped(event);
  }

  private stream(): EventStream {
    if (this.events) return this.events;
    const { response, maxUnread, overflow, promptTokens } = this.setup;
    this.events = new EventStream(response, maxUnread, overflow);
    // The last event has the counts of the whole answer.
    const usage = { promptTokens, completionTokens: 0, cachedTokens: 0 };
    this.send({ type: 'message_start', message: { ...this.createMessage(usage), content: [] } });
    return this.events;
  }
}

/** Returns the arguments of a call. A call that is cut off has none. */
function parseInput(text: string): JsonObject {
  try {
    const value: unknown = JSON.parse(text);
    return isObject<JsonObject>(value) ? value : {};
  } catch {
    return {};
  }
}

/** Cached tokens count separately from the others, as in Anthropic's API. */
function usageFields({ promptTokens, completionTokens, cachedTokens }: Usage): JsonObject {
  return {
    input_tokens: promptTokens - cachedTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cachedTokens,
    output_tokens: completionTokens,
  };
}
