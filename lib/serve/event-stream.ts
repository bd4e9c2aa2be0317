// Server-sent events. The server never waits for a slow client.
import type { ServerResponse } from 'node:http';

import type { ApiError } from './api-error.js';

/** Headers of an event stream. */
const HEAD = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache',
  'x-accel-buffering': 'no',
};

/** Events that wait in memory for their reader, to a bound. */
export class EventStream {
  /** `overflow` is called in place of sending when more than `maxUnread` bytes wait. */
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

  /** Sends an object as the event of its type. */
  sendTyped(event: { type: string }): void {
    this.write(JSON.stringify(event), `event: ${event.type}\n`);
  }

  /** Ends the stream of typed events, which has no closing event of its own. */
  close(): void {
    this.response.end();
  }

  /** Sends a comment, which clients skip, if no event is in transfer. */
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

  /** Nothing follows. */
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
