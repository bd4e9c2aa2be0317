// Counts running requests, and reports the end of the last one.
import { ApiError, overloaded } from './api-error.js';

/** Lets requests in, to a bound, until it is closed. */
export class Admission {
  private count = 0;
  private isClosed = false;
  private readonly waiting: (() => void)[] = [];
  /** Requests under way, by client. */
  private readonly counts = new Map<string, number>();

  /** `most` requests of all clients, and `mostEach` of one. */
  constructor(
    private readonly most: number,
    private readonly mostEach = most,
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
    const own = this.counts.get(client) ?? 0;
    if (this.count >= this.most) throw full(this.count, 'this server takes');
    if (own >= this.mostEach) throw full(own, 'this server takes of one key');
    this.count++;
    this.counts.set(client, own + 1);
    let isInside = true;
    return () => {
      if (isInside) this.leave(client);
      isInside = false;
    };
  }

  private leave(client: string): void {
    const own = (this.counts.get(client) ?? 0) - 1;
    if (own > 0) this.counts.set(client, own);
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
