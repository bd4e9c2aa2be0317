// Retries requests after transient failures: a broken connection, a busy server.
import { setTimeout as delay } from 'node:timers/promises';

import type { DsError } from '../errors.js';

/** Maximum Retry-After of a server that a call accepts, in milliseconds. */
const MAX_WAIT_MS = 300_000;
/** Maximum number of retries of one file or answer, with or without progress. */
const MAX_RETRIES = 200;

/** A failure that a retry may fix. */
export class TransientFailure extends Error {
  constructor(
    /** The error for the caller if no retry succeeds. */
    readonly error: DsError,
    /** Retry-After of the server in milliseconds, or null. */
    readonly waitMs: number | null = null,
  ) {
    super(error.message);
  }
}

/** Counts the failures of one file or answer. */
export class Retries {
  private consecutive = 0;
  private total = 0;

  constructor(
    private readonly backoffMs: number,
    private readonly signal: AbortSignal,
    /** Maximum number of consecutive failures. */
    private readonly maxConsecutive = 5,
  ) {}

  /** Resets the consecutive failures, because the last attempt has received bytes. */
  noteProgress(): void {
    this.consecutive = 0;
  }

  /** Waits before the next attempt. Throws the error if no attempt remains. */
  async pause(failure: unknown): Promise<void> {
    if (!(failure instanceof TransientFailure)) throw failure;
    this.consecutive += 1;
    this.total += 1;
    const { error, waitMs } = failure;
    const isLong = waitMs !== null && waitMs > MAX_WAIT_MS;
    if (isLong || this.consecutive >= this.maxConsecutive || this.total >= MAX_RETRIES) throw error;
    const backoff = this.backoffMs * 2 ** (this.consecutive - 1) * (0.75 + Math.random() / 2);
    await delay(Math.max(waitMs ?? 0, backoff), undefined, { signal: this.signal });
  }
}

/**
 * Returns the milliseconds of a Retry-After header, in seconds or as a date; null if it is invalid.
 */
export function parseRetryAfter(header: string | null, now = Date.now()): number | null {
  if (header === null) return null;
  const text = header.trim();
  if (/^\d{1,9}(\.\d+)?$/.test(text)) return Number(text) * 1000;
  const time = Date.parse(text);
  return Number.isNaN(time) ? null : Math.max(0, time - now);
}
