// Ends a request with its answer, when the client disconnects, or by a timeout.
import { setMaxListeners } from 'node:events';
import type { ServerResponse } from 'node:http';

import { timerMs } from '../runtime/timer.js';
import { keyOf } from './access.js';
import { ApiError } from './api-error.js';
import type { QueueClient } from './fair-queue.js';

/** Tracks the connection and the time limit of one request. */
export class RequestLife implements QueueClient {
  /** Identifies the client by its address and key. */
  readonly client: string;
  readonly connection: object;
  private readonly controller = new AbortController();
  private readonly timer: NodeJS.Timeout;

  /** `seconds`: time limit of the request. */
  constructor(
    private readonly response: ServerResponse,
    seconds: number,
  ) {
    const { socket, headers } = response.req;
    this.client = `${socket.remoteAddress} ${keyOf(headers) ?? ''}`;
    this.connection = socket;
    // Listen on the socket, not on the response: a response that waits for another response on its
    // connection has no socket yet, and emits no event if the connection closes.
    response.req.socket.once('close', this.onClose);
    setMaxListeners(0, this.signal); // Each prompt and choice adds a listener.
    // A retry would take as long again.
    const details = { code: 'request_timeout', headers: { 'x-should-retry': 'false' } };
    const message = `The request took more than ${seconds} s, the most that this server gives one.`;
    this.timer = setTimeout(() => this.end(new ApiError(503, message, details)), timerMs(seconds));
    if (response.req.socket.destroyed) this.onClose();
  }

  /** Aborted if the request ends early; the reason is the error. */
  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Ends the request with `error`. Later calls have no effect. */
  end(error: unknown): void {
    this.controller.abort(error);
  }

  /** Ends the request because the client reads too slowly. */
  readonly overflow = (): void => {
    this.end(new ApiError(503, 'The client reads too slowly.', { code: 'slow_reader' }));
    this.response.destroy();
  };

  /** Throws the error that ended the request, if any. */
  requireAlive(): void {
    this.signal.throwIfAborted();
  }

  /** Stops tracking after the answer. */
  close(): void {
    clearTimeout(this.timer);
    this.response.req.socket.off('close', this.onClose);
  }

  private readonly onClose = (): void => {
    this.end(new ApiError(503, 'The client disconnected.', { code: 'disconnected' }));
  };
}

/** Runs `act` for a request, which is in `lives` until `act` ends. */
export async function whileAlive(
  lives: Set<RequestLife>,
  life: RequestLife,
  act: (life: RequestLife) => Promise<void>,
): Promise<void> {
  lives.add(life);
  try {
    await act(life);
  } finally {
    life.close();
    lives.delete(life);
  }
}
