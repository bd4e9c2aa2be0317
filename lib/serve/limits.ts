// Limits of requests and connections, so that no client starves the others.
import { openFileLimit } from '../runtime/host-limits.js';
import { argumentError } from '../runtime/input-errors.js';
import { integer, type Options, readDeclared, type Settings } from '../runtime/option.js';
import { readOptions } from '../runtime/options.js';

/** Limits of one request. */
export const REQUEST_LIMITS = {
  /** Tokens of a prompt. Default: one less than the context. */
  promptTokens: integer('longest prompt, in tokens; a longer one gets HTTP 400', {
    min: 1,
    default: Number.MAX_SAFE_INTEGER,
    shown: 'the context',
    flag: '--max-prompt-tokens <n>',
  }),
  /**
   * UTF-16 units of a text that is tokenized, or tokens that /detokenize takes. Default: 16 for
   * each token of the context, and at least 65,536.
   */
  promptCharacters: integer('longest prompt, in characters; a longer one gets HTTP 400', {
    min: 1,
    shown: '16 a token of the context, at least 65,536',
    flag: '--max-prompt-chars <n>',
  }),
  /** Answers to one prompt (`n`). Default: 16. */
  answers: integer('most answers to one prompt (`n`); more gets HTTP 400', {
    min: 1,
    default: 16,
    flag: '--max-answers <n>',
  }),
  /** Prompts in one request. Default: 64. */
  prompts: integer('prompts in one request', { min: 1, default: 64 }),
  /** Bytes of a request's body; more gets HTTP 413. Default: 4 MiB. */
  bodyBytes: integer('largest request, in bytes; a larger one gets HTTP 413', {
    min: 1,
    default: 4 * 2 ** 20,
    shown: '4 MiB',
    flag: '--max-body <size>',
    syntax: 'bytes',
  }),
  /** Seconds that one prompt may take to be tokenized. Default: 30. */
  promptSeconds: integer('seconds that one prompt may take to become tokens; then HTTP 400', {
    min: 1,
    default: 30,
    flag: '--prompt-timeout <seconds>',
  }),
  /** Seconds for the head of a request to arrive. Default: 10, and at most `bodySeconds`. */
  headSeconds: integer('seconds for the headers to arrive; then HTTP 408', {
    min: 1,
    default: 10,
    flag: '--head-timeout <seconds>',
  }),
  /** Seconds for the head and body of a request to arrive. Default: 60. */
  bodySeconds: integer('seconds for headers and body to arrive; then HTTP 408', {
    min: 1,
    default: 60,
    flag: '--body-timeout <seconds>',
  }),
  /** Maximum seconds of a request. Then the server ends it. Default: 600. */
  requestSeconds: integer(
    'seconds that a request may take; then HTTP 503. Raise it for long answers',
    {
      min: 1,
      default: 600,
      flag: '--request-timeout <seconds>',
    },
  ),
  /**
   * Bytes that wait for a client that reads slowly; beyond them its request ends. Default: 1 MiB.
   */
  unreadBytes: integer('bytes that wait for a slow client; beyond them its request ends', {
    min: 1,
    default: 2 ** 20,
    shown: '1 MiB',
  }),
  /** Seconds for a client to read the rest of its answer. Default: 60. */
  unreadSeconds: integer('seconds for a client to read the rest of its answer', {
    min: 1,
    default: 60,
  }),
};

/** Limits of all requests together. */
export const SERVER_LIMITS = {
  /** Requests that run or wait; one more gets HTTP 429. Default: 1024. */
  requests: integer('most requests that run or wait; one more gets HTTP 429 with `Retry-After`', {
    min: 1,
    default: 1024,
    flag: '--max-requests <n>',
  }),
  /**
   * Requests of one key that run or wait; one more gets HTTP 429. Default: `requests`, or half of
   * it if the server has several keys.
   */
  keyRequests: integer(
    'most requests of one [key](operating.md#priorities-and-turns) that run or wait; one more gets HTTP 429',
    {
      min: 1,
      shown: 'half of `--max-requests` with several keys',
      flag: '--max-key-requests <n>',
    },
  ),
  /**
   * Bytes of the bodies of all requests under way; beyond them, a body of more than 64 KiB is 503.
   * Default: 128 MiB.
   */
  bodiesBytes: integer('most bytes of all request bodies together; more gets HTTP 503', {
    min: 1,
    default: 128 * 2 ** 20,
    shown: '128 MiB',
    flag: '--max-bodies <size>',
    syntax: 'bytes',
  }),
  /**
   * Open connections. One more closes the connection that has waited longest without a request; if
   * all have one, the new connection is closed. Default: 1024, and at most half of the files that
   * the process may open.
   */
  connections: integer('most connections at a time', {
    min: 1,
    default: 1024,
    shown: '1024, half of `ulimit -n` at most',
    flag: '--max-connections <n>',
  }),
  /** Seconds for running requests to end after stop(). Default: 30. */
  drainSeconds: integer('seconds that running requests get after a stop signal; then HTTP 503', {
    min: 1,
    default: 30,
    flag: '--drain-timeout <seconds>',
  }),
};

/** Limits of requests; each has a default. */
export interface ServeLimits
  extends Options<typeof REQUEST_LIMITS>,
    Options<typeof SERVER_LIMITS> {}

/** All limits with values. Without `promptCharacters`, it follows from the context of the model. */
export interface ResolvedLimits
  extends Settings<typeof REQUEST_LIMITS>,
    Settings<typeof SERVER_LIMITS> {}

/**
 * Fills in the defaults. Throws DS_ARGUMENT for unknown names and for values that are not positive
 * integers.
 */
export function readLimits(op: string, given: ServeLimits = {}): ResolvedLimits {
  const declared = { ...REQUEST_LIMITS, ...SERVER_LIMITS };
  const limits = readDeclared(op, given, declared);
  const max = Math.max(1, Math.floor(openFileLimit() / 2));
  const { connections } = limits;
  if (connections > max && readOptions(op, given, declared).connections !== undefined) {
    const expected = `at most ${max}, half of the files that the process may open`;
    const hint = 'Raise the limit of open files (ulimit -n).';
    throw argumentError(`${op} connections`, expected, String(connections), hint);
  }
  return { ...limits, connections: Math.min(connections, max) };
}
