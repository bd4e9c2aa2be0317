// Limits for one client, so that the server can serve the others too.
import { DsError } from '../errors.js';
import { openFileLimit } from '../runtime/host-limits.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';

/** Bounds of requests; each has a default. */
export interface ServeLimits {
  /** Bytes of a request's body; more is 413. Default 4 MiB. */
  bodyBytes?: number;
  /**
   * Bytes of the bodies of all requests under way; beyond them, a body of more than 64 KiB is 503.
   * Default 128 MiB.
   */
  bodiesBytes?: number;
  /** Tokens of a prompt. Default: one less than the context. */
  promptTokens?: number;
  /**
   * UTF-16 units of a text that is tokenized, or tokens that /detokenize takes. Default: 16 for
   * each token of the context, and at least 65,536.
   */
  promptCharacters?: number;
  /** Seconds that one prompt may take to be tokenized. Default 30. */
  promptSeconds?: number;
  /** Answers to one prompt (`n`). Default 16. */
  answers?: number;
  /** Prompts in one request. Default 64. */
  prompts?: number;
  /** Requests that run or wait; one more is 429. Default 1024. */
  requests?: number;
  /**
   * Open connections. One more closes the connection that has waited longest without a request; if
   * all have one, the new connection is closed. Default: 1024, and at most half of the files that
   * the process may open.
   */
  connections?: number;
  /** Seconds until a request that has not ended is ended. Default 600. */
  requestSeconds?: number;
  /** Seconds for the head of a request to arrive. Default 10, and at most `bodySeconds`. */
  headSeconds?: number;
  /** Seconds for the head and body of a request to arrive. Default 60. */
  bodySeconds?: number;
  /**
   * Bytes that wait for a client that reads slowly; beyond them its request ends. Default 1 MiB.
   */
  unreadBytes?: number;
  /** Seconds for a client to read the rest of its answer. Default 60. */
  unreadSeconds?: number;
  /** Seconds for running requests to end after stop(). Default 30. */
  drainSeconds?: number;
}

const LIMITS: OptionNames<ServeLimits> = {
  ...{ bodyBytes: true, promptTokens: true, answers: true, prompts: true, requests: true },
  ...{ requestSeconds: true, bodySeconds: true, unreadBytes: true, unreadSeconds: true },
  ...{ drainSeconds: true, bodiesBytes: true, promptCharacters: true, promptSeconds: true },
  ...{ connections: true, headSeconds: true },
};

/** All limits. Without `promptCharacters`, the context of the model decides. */
export type ResolvedLimits = Required<Omit<ServeLimits, 'promptCharacters'>> &
  Pick<ServeLimits, 'promptCharacters'>;

const DEFAULTS: ResolvedLimits = {
  bodyBytes: 4 * 2 ** 20,
  bodiesBytes: 128 * 2 ** 20,
  promptSeconds: 30,
  connections: 1024,
  headSeconds: 10,
  promptTokens: Number.MAX_SAFE_INTEGER,
  answers: 16,
  prompts: 64,
  requests: 1024,
  requestSeconds: 600,
  bodySeconds: 60,
  unreadBytes: 2 ** 20,
  unreadSeconds: 60,
  drainSeconds: 30,
};

/**
 * The limits, with defaults. Throws DS_ARGUMENT for unknown names and for other values than
 * positive integers.
 */
export function readLimits(op: string, given: ServeLimits | undefined): ResolvedLimits {
  const options = readOptions(op, given, LIMITS);
  const most = Math.max(1, Math.floor(openFileLimit() / 2));
  const limits = { ...DEFAULTS, connections: Math.min(DEFAULTS.connections, most) };
  for (const name of Object.keys(LIMITS) as (keyof ServeLimits)[]) {
    const value = options[name];
    if (value !== undefined) limits[name] = requireInteger(`${op} ${name}`, value, 1);
  }
  const { connections } = limits;
  if (connections > most) {
    const expected = `at most ${most}, half of the files that the process may open`;
    const hint = 'Raise the limit of open files (ulimit -n).';
    const place = { op: `${op} connections`, expected, got: String(connections), hint };
    throw new DsError({ code: 'DS_ARGUMENT', ...place });
  }
  return limits;
}
