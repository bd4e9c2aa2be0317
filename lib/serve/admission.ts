// Counts running requests, and reports the end of the last one.
import { ApiError, overloaded } from './api-error.js';

/** Lets requests in, to a bound, until it is closed. */
export class Admission {
  private count = 0;
  private isClosed = false;
  private readonly waiting: (() => void)[] = [];
  /** Requests under way, by client. */
  private readonly counts = new Map<string, number>();

  /** `max` requests of all clients, and `maxEach` of one client. */
  constructor(
    private readonly max: number,
    private readonly maxEach = max,
  ) {}

  /** Requests under way. */
  get inside(): number {
    return this.count;
  }

  /**
   * Admits a request of a client. Returns the function that ends it. Throws 429 if too many
   * requests run.
   */
  enter(client = ''): () => void {
    if (this.isClosed) throw overloaded('The server is stopping.', { code: 'stopping' });
    const ownCount = this.counts.get(client) ?? 0;
    if (this.count >= this.max) throw full(this.count, 'this server takes');
    if (ownCount >= this.maxEach) throw full(ownCount, 'this server takes of one key');
    this.count++;
    this.counts.set(client, ownCount + 1);
    let isInside = true;
    return () => {
      if (isInside) this.leave(client);
      isInside = false;
    };
  }

  private leave(client: string): void {
    const ownCount = (this.counts.get(client) ?? 0) - 1;
    if (ownCount > 0) this.counts.set(client, ownCount);
    else this.counts.delete(client);
    if (--this.count === 0) for (const wake of this.waiting.splice(0)) wake();
  }

  /** Admits no more requests. Resolves when the last one has ended. */
  async close(): Promise<void> {
    this.isClosed = true;
    if (this.count > 0) await new Promise<void>((resolve) => this.waiting.push(resolve));
  }
}

function full(count: number, bound: string): ApiError {
  const message = `${count} requests run or wait, the most that ${bound}.`;
  const headers = { 'retry-after': '1' };
  return new ApiError(429, message, { code: 'queue_full', headers });
}
