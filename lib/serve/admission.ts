// Counts running requests, and reports the end of the last one.
import { ApiError, overloaded } from './api-error.js';

/** Lets requests in, to a bound, until it is closed. */
export class Admission {
  private count = 0;
  private isClosed = false;
  private readonly waiting: (() => void)[] = [];

  constructor(private readonly most: number) {}

  /** Requests under way. */
  get inside(): number {
    return this.count;
  }

  /** Admits a request. Returns the function that ends it. Throws 429 if too many requests run. */
  enter(): () => void {
    if (this.isClosed) throw overloaded('The server is stopping.', { code: 'stopping' });
    if (this.count >= this.most) {
      const message = `${this.count} requests run or wait, the most that this server takes.`;
      const headers = { 'retry-after': '1' };
      throw new ApiError(429, message, { code: 'queue_full', headers });
    }
    this.count++;
    let isInside = true;
    return () => {
      if (isInside && --this.count === 0) for (const wake of this.waiting.splice(0)) wake();
      isInside = false;
    };
  }

  /** Admits no more requests. Resolves when the last one has ended. */
  async close(): Promise<void> {
    this.isClosed = true;
    if (this.count > 0) await new Promise<void>((resolve) => this.waiting.push(resolve));
  }
}
