// Detects the permanent failure of an engine, even if no request runs.
import type { ServedEngine } from './served-engine.js';

/** Milliseconds between two checks. */
const INTERVAL_MS = 250;

/** Polls one engine until it fails. */
export class EngineFailure {
  /** Resolves with the failure; never rejects. */
  readonly found: Promise<Error>;
  private known: Error | null = null;
  private timer: NodeJS.Timeout | null = null;
  private resolve: (error: Error) => void = () => {};

  /** `onFound` is called once, before `found` resolves. */
  constructor(
    private readonly engine: () => ServedEngine | undefined,
    private readonly onFound: (error: Error) => void,
  ) {
    this.found = new Promise((resolve) => {
      this.resolve = resolve;
    });
  }

  /** Checks the engine now. Returns its failure; null while it works. */
  check(): Error | null {
    if (this.known) return this.known;
    this.known = this.engine()?.failure ?? null;
    if (!this.known) return null;
    this.close();
    this.onFound(this.known);
    this.resolve(this.known);
    return this.known;
  }

  /** Starts polling until close(). */
  watch(): void {
    this.timer ??= setInterval(() => this.check(), INTERVAL_MS).unref();
  }

  /** Stops polling. */
  close(): void {
    if (this.timer) clearInterval(this.timer);
    this.timer = null;
  }
}
