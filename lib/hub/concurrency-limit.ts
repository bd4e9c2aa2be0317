// A limit of things at once.
import { whenAborted } from '../runtime/when-aborted.js';

/** Runs at most `free` bodies at once; others wait in their order. */
export class Slots {
  private readonly waiting: (() => void)[] = [];

  constructor(private free: number) {}

  /** Runs `body` in a slot. Rejects with the signal's reason if it is aborted before. */
  async use<T>(signal: AbortSignal, body: () => Promise<T>): Promise<T> {
    await this.take(signal);
    try {
      return await body();
    } finally {
      this.free += 1;
      this.waiting.shift()?.();
    }
  }

  private async take(signal: AbortSignal): Promise<void> {
    while (this.free === 0) {
      signal.throwIfAborted();
      await new Promise<void>((resolve) => {
        const forget = whenAborted(signal, () => {
          const at = this.waiting.indexOf(wake);
          if (at >= 0) this.waiting.splice(at, 1);
          resolve();
        });
        const wake = (): void => {
          forget();
          resolve();
        };
        this.waiting.push(wake);
      });
    }
    signal.throwIfAborted();
    this.free -= 1;
  }
}
