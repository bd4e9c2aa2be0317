// Writes server-sent events without waiting for slow clients.
import type { ServerResponse } from 'node:http';

import type { ApiError } from './api-error.js';

/** Headers of an event stream. */
const HEAD = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache',
  'x-accel-buffering': 'no',
};

/** Buffers events for the client up to a limit. */
export class EventStream {
  /** If more than `maxUnread` bytes wait, calls `overflow` and sends nothing. */
  constructor(
    private readonly response: ServerResponse,
    private readonly maxUnread: number,
    private readonly overflow: () => void,
  ) {
    response.writeHead(200, HEAD);
  }

  /** Sends an object. */
  send(event: object): void {
    this.write(JSON.stringify(event));
  }

  /** Sends an object with its `type` as the name of the event. */
  sendTyped(event: { type: string }): void {
    this.write(JSON.stringify(event), `event: ${event.type}\n`);
  }

  /** Ends a stream of typed events, which needs no closing event. */
  close(): void {
    this.response.end();
  }

  /** Sends a comment, which clients skip. Does nothing while an event is in transfer. */
  wait(): void {
    const { response } = this;
    const isOpen = !response.destroyed && !response.writableEnded;
    if (isOpen && response.writableLength === 0) response.write(': waiting\n\n');
  }

  /** Sends an error as the last event. */
  fail(error: ApiError): void {
    this.send(error.body);
    this.response.end();
  }

  /** Sends the closing event and ends the stream. */
  end(): void {
    this.write('[DONE]');
    this.response.end();
  }

  private write(data: string, head = ''): void {
    const { response } = this;
    if (response.destroyed || response.writableEnded) return;
    if (response.writableLength > this.maxUnread) this.overflow();
    else response.write(`${head}data: ${data}\n\n`);
  }
}
