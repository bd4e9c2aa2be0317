// Limits the number of operations that run at the same time.
import { whenAborted } from '../runtime/when-aborted.js';

/** Runs at most `free` functions at the same time; others wait in order. */
export class Slots {
  private readonly waiting: (() => void)[] = [];

  constructor(private free: number) {}

  /** Runs `body` in a slot. Rejects with the signal's reason if the signal aborts first. */
  async run<T>(signal: AbortSignal, body: () => Promise<T>): Promise<T> {
    await this.takeSlot(signal);
    try {
      return await body();
    } finally {
      this.free += 1;
      this.waiting.shift()?.();
    }
  }

  private async takeSlot(signal: AbortSignal): Promise<void> {
    while (this.free === 0) {
      signal.throwIfAborted();
      await new Promise<void>((resolve) => {
        const removeListener = whenAborted(signal, () => {
          const at = this.waiting.indexOf(wake);
          if (at >= 0) this.waiting.splice(at, 1);
          resolve();
        });
        const wake = (): void => {
          removeListener();
          resolve();
        };
        this.waiting.push(wake);
      });
    }
    signal.throwIfAborted();
    this.free -= 1;
  }
}
