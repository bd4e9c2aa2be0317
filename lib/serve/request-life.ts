// The life of a request: it ends with its answer, when its client disconnects, or by a timeout.
import { setMaxListeners } from 'node:events';
import type { ServerResponse } from 'node:http';

import { timerMs } from '../runtime/timer.js';
import { ApiError } from './api-error.js';
import type { QueueClient } from './fair-queue.js';

/** The connection of a request's client, and a clock. */
export class RequestLife implements QueueClient {
  /** The client: its address and key. */
  readonly client: string;
  readonly connection: object;
  private readonly controller = new AbortController();
  private readonly timer: NodeJS.Timeout;

  /** `seconds` until the request is ended. */
  constructor(
    private readonly response: ServerResponse,
    seconds: number,
  ) {
    const { socket, headers } = response.req;
    this.client = `${socket.remoteAddress} ${headers.authorization ?? ''}`;
    this.connection = socket;
    // A response behind others on its connection has no socket yet, and gets no event of its end.
    response.req.socket.once('close', this.onClose);
    setMaxListeners(0, this.signal); // One for each prompt and choice of the request.
    // A retry of the client would take as long again.
    const details = { code: 'request_timeout', headers: { 'x-should-retry': 'false' } };
    const message = `The request took more than ${seconds} s, the most that this server gives one.`;
    this.timer = setTimeout(() => this.end(new ApiError(503, message, details)), timerMs(seconds));
    if (response.req.socket.destroyed) this.onClose();
  }

  /** Aborted when the request ends early; the reason is the error. */
  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Ends the work for the request with `error`; later calls do nothing. */
  end(error: unknown): void {
    this.controller.abort(error);
  }

  /** The client takes too little of its answer. */
  readonly overflow = (): void => {
    this.end(new ApiError(503, 'The client reads too slowly.', { code: 'slow_reader' }));
    this.response.destroy();
  };

  /** Throws why it has ended, if it has. */
  requireAlive(): void {
    this.signal.throwIfAborted();
  }

  /** Ends the life of an answered request. */
  close(): void {
    clearTimeout(this.timer);
    this.response.req.socket.off('close', this.onClose);
  }

  private readonly onClose = (): void => {
    this.end(new ApiError(503, 'The client has gone.', { code: 'disconnected' }));
  };
}

/** Runs `act` for a request. The request is in `lives` meanwhile. */
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
