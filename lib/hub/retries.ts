// Repeats requests after failures that may pass: a broken connection, a busy server.
import { setTimeout as delay } from 'node:timers/promises';

import type { DsError } from '../errors.js';

/** Longest Retry-After that a call waits for. */
const PATIENCE_MS = 300_000;
/** Repetitions of one file or answer, progress or not. */
const MAX_RETRIES = 200;

/** A failure that may pass. */
export class TransientFailure extends Error {
  constructor(
    /** The error for the caller if no repetition succeeds. */
    readonly error: DsError,
    /** Retry-After of the server. */
    readonly waitMs: number | null = null,
  ) {
    super(error.message);
  }
}

/** Counts the failures of one file or answer. */
export class Retries {
  private inARow = 0;
  private total = 0;

  constructor(
    private readonly backoffMs: number,
    private readonly signal: AbortSignal,
    /** Failures in a row until the call gives up. */
    private readonly max = 5,
  ) {}

  /** Reports that the last attempt has brought bytes. */
  noteProgress(): void {
    this.inARow = 0;
  }

  /** Waits before the next attempt. Throws the error if no attempt is left. */
  async pause(failure: unknown): Promise<void> {
    if (!(failure instanceof TransientFailure)) throw failure;
    this.inARow += 1;
    this.total += 1;
    const { error, waitMs } = failure;
    const isLong = waitMs !== null && waitMs > PATIENCE_MS;
    if (isLong || this.inARow >= this.max || this.total >= MAX_RETRIES) throw error;
    const backoff = this.backoffMs * 2 ** (this.inARow - 1) * (0.75 + Math.random() / 2);
    await delay(Math.max(waitMs ?? 0, backoff), undefined, { signal: this.signal });
  }
}

/** Milliseconds of a Retry-After header, seconds or a date; null without a valid one. */
export function retryAfterMs(header: string | null, now = Date.now()): number | null {
  if (header === null) return null;
  const text = header.trim();
  if (/^\d{1,9}(\.\d+)?$/.test(text)) return Number(text) * 1000;
  const time = Date.parse(text);
  return Number.isNaN(time) ? null : Math.max(0, time - now);
}
