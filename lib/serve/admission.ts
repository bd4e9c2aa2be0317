// Limits the number of running requests, in all and for each client.
import { ApiError, overloadedError } from './api-error.js';

/** Admits requests up to a limit, until it is closed. */
export class Admission {
  private count = 0;
  private isClosed = false;
  private readonly waiting: (() => void)[] = [];
  /** Number of running requests by client. */
  private readonly counts = new Map<string, number>();

  /** `max` limits the requests of all clients, `maxEach` the requests of one client. */
  constructor(
    private readonly max: number,
    private maxEach = max,
  ) {}

  /** Changes the limit of one client. Requests that are running stay. */
  limitEach(maxEach: number): void {
    this.maxEach = maxEach;
  }

  /** Number of running requests. */
  get running(): number {
    return this.count;
  }

  /**
   * Admits a request of a client. Returns the function that ends it. Throws 429 if too many
   * requests run.
   */
  enter(client = ''): () => void {
    if (this.isClosed) throw overloadedError('The server is stopping.', { code: 'stopping' });
    const clientCount = this.counts.get(client) ?? 0;
    if (this.count >= this.max) throw fullError(this.count, 'this server takes');
    if (clientCount >= this.maxEach) throw fullError(clientCount, 'this server takes of one key');
    this.count++;
    this.counts.set(client, clientCount + 1);
    let isInside = true;
    return () => {
      if (isInside) this.leave(client);
      isInside = false;
    };
  }

  private leave(client: string): void {
    const clientCount = (this.counts.get(client) ?? 0) - 1;
    if (clientCount > 0) this.counts.set(client, clientCount);
    else this.counts.delete(client);
    if (--this.count === 0) for (const wake of this.waiting.splice(0)) wake();
  }

  /** Admits no more requests. Resolves when the last one has ended. */
  async close(): Promise<void> {
    this.isClosed = true;
    if (this.count > 0) await new Promise<void>((resolve) => this.waiting.push(resolve));
  }
}

function fullError(count: number, bound: string): ApiError {
  const message = `${count} requests run or wait, the most that ${bound}.`;
  const headers = { 'retry-after': '1' };
  return new ApiError(429, message, { code: 'queue_full', headers });
}
