// Sends HTTP requests to the hub. The token is sent only to the hub's own origin, also after
// redirects.
import { DsError } from '../errors.js';
import { isObject } from '../runtime/is-object.js';
import { whenAborted } from '../runtime/when-aborted.js';
import type { HubSettings } from './environment.js';
import {
  badAnswerError,
  type HubRequestInfo,
  refusalError,
  unreachableError,
} from './hub-error.js';
import { parseRetryAfter, TransientFailure } from './retries.js';

/** Settings of all requests of a call. */
export interface HubCall {
  readonly settings: HubSettings;
  readonly model: HubRequestInfo;
  readonly signal: AbortSignal;
}

/** An answer with an unread body. The caller reads it to its end, or calls stop(). */
export interface Answer {
  readonly response: Response;
  /** The URL after redirects. */
  readonly url: URL;
  /** Ends the connection. */
  stop(): void;
  /** Yields the body. A pause of stallMs or a lost connection is a TransientFailure. */
  readChunks(): AsyncGenerator<Uint8Array>;
}

/** Status codes of a whole file, a range, and an invalid range. */
const ANSWERS = [200, 206, 416];
const REDIRECTS = [301, 302, 303, 307, 308];
const MAX_REDIRECTS = 8;
/** Maximum number of bytes read from an error's body. */
const ERROR_BYTES = 16_384;
const AGENT = `ds-native (node ${process.versions.node})`;

/**
 * Sends a GET request and follows redirects. For other status codes than 200, 206 and 416 throws a
 * TransientFailure (busy server or lost connection) or DS_HUB (refusal).
 */
export async function send(
  call: HubCall,
  from: string | URL,
  headers: Readonly<Record<string, string>> = {},
): Promise<Answer> {
  const answer = await followRedirects(call, new URL(from), headers);
  const { response } = answer;
  if (ANSWERS.includes(response.status)) return answer;
  const error = await readRefusal(call, answer);
  answer.stop();
  const { status } = response;
  const mayPass = status === 408 || status === 425 || status === 429 || status >= 500;
  if (!mayPass) throw error;
  throw new TransientFailure(error, parseRetryAfter(response.headers.get('retry-after')));
}

async function followRedirects(
  call: HubCall,
  from: URL,
  headers: Readonly<Record<string, string>>,
): Promise<Answer> {
  let url = from;
  for (let hops = 0; hops <= MAX_REDIRECTS; ++hops) {
    const answer = await sendRequest(call, url, headers);
    const { status, headers: fields } = answer.response;
    if (!REDIRECTS.includes(status)) return answer;
    answer.stop();
    url = requireRedirectUrl(call, url, fields.get('location'));
  }
  throw badAnswerError(call.model.name, `at most ${MAX_REDIRECTS} redirects`, 'more of them');
}

function requireRedirectUrl({ model: { name } }: HubCall, from: URL, location: string | null): URL {
  const isUrl = location !== null && URL.canParse(location, from.href);
  const url = isUrl ? new URL(location, from) : null;
  if (!url || !/^https?:$/.test(url.protocol)) {
    throw badAnswerError(name, 'a redirect to an HTTP URL', `another redirect from ${from.host}`);
  }
  if (from.protocol === 'https:' && url.protocol === 'http:') {
    throw badAnswerError(
      name,
      'redirects to HTTPS',
      `a redirect from ${from.host} to http://${url.host}`,
    );
  }
  return url;
}

/**
 * Sends one request. The connection ends with the call's signal, and after stallMs without a byte.
 */
async function sendRequest(
  call: HubCall,
  url: URL,
  requestHeaders: Readonly<Record<string, string>>,
): Promise<Answer> {
  const { settings, signal } = call;
  const { token, endpoint, stallMs } = settings;
  const isHub = token !== null && url.origin === new URL(endpoint).origin;
  const headers = {
    'user-agent': AGENT,
    'accept-encoding': 'identity',
    ...requestHeaders,
    ...(isHub && { authorization: `Bearer ${token}` }),
  };
  const controller = new AbortController();
  let isStalled = false;
  const timer = setTimeout(() => {
    isStalled = true;
    controller.abort();
  }, stallMs);
  const removeListener = whenAborted(signal, () => controller.abort());
  const stop = (): void => {
    clearTimeout(timer);
    removeListener();
    controller.abort();
  };
  const toFailure = (error: unknown): unknown => {
    stop();
    if (signal.aborted) return signal.reason;
    if (error instanceof DsError || error instanceof TransientFailure) return error;
    const got = isStalled ? `no byte for ${stallMs / 1000} s` : findReason(error);
    return new TransientFailure(
      unreachableError(call.model.name, settings, `${got} from ${url.host}`),
    );
  };
  try {
    signal.throwIfAborted();
    const requestSignal = controller.signal;
    const response = await rejectOnAbort(
      requestSignal,
      fetch(url, { headers, redirect: 'manual', signal: requestSignal }),
    );
    requirePlain(call, response, url);
    timer.refresh();
    return {
      response,
      url,
      stop,
      readChunks: () =>
        readChunks({ response, timer, toFailure: toFailure, stop, signal: requestSignal }),
    };
  } catch (error) {
    throw toFailure(error);
  }
}

/** The response of a request, and the functions that read its body. */
interface BodySource {
  readonly response: Response;
  readonly timer: NodeJS.Timeout;
  readonly signal: AbortSignal;
  toFailure(error: unknown): unknown;
  stop(): void;
}

async function* readChunks(body: BodySource): AsyncGenerator<Uint8Array> {
  const { response, timer, signal, toFailure, stop } = body;
  const reader = response.body?.getReader();
  try {
    while (reader) {
      const { done, value } = await rejectOnAbort(signal, reader.read()).catch((error: unknown) => {
        throw toFailure(error);
      });
      if (done) return;
      timer.refresh();
      yield value;
      timer.refresh(); // The time in which the consumer uses a chunk must not count as a stall.
    }
  } finally {
    stop();
  }
}

/**
 * Rejects when `signal` aborts, because Node's fetch may leave a read of an aborted body pending.
 */
function rejectOnAbort<T>(signal: AbortSignal, result: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const removeListener = whenAborted(signal, () => reject(signal.reason));
    if (signal.aborted) reject(signal.reason);
    result.then(resolve, reject).finally(removeListener);
  });
}

/** Throws DS_HUB for a compressed body: its offsets differ from the file's. */
function requirePlain({ model: { name } }: HubCall, response: Response, url: URL): void {
  const encoding = response.headers.get('content-encoding') ?? 'identity';
  if (encoding === 'identity') return;
  throw badAnswerError(
    name,
    'bytes without Content-Encoding',
    `${encoding.slice(0, 40)} of ${url.host}`,
  );
}

/** Returns a body of at most `limit` bytes as text. Throws DS_HUB for a longer body. */
export async function readText(call: HubCall, answer: Answer, limit: number): Promise<string> {
  const parts: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of answer.readChunks()) {
    bytes += chunk.length;
    if (bytes > limit) {
      throw badAnswerError(
        call.model.name,
        `an answer of at most ${limit} bytes`,
        'a longer answer',
      );
    }
    parts.push(chunk);
  }
  return Buffer.concat(parts).toString('utf8');
}

/** Returns the error of a refusal, with the text of its headers or its body. */
async function readRefusal(call: HubCall, answer: Answer): Promise<DsError> {
  const { response, url } = answer;
  const code = (response.headers.get('x-error-code') ?? '').replaceAll(/\W/g, '').slice(0, 40);
  const text = response.headers.get('x-error-message') ?? (await readErrorText(call, answer));
  return refusalError(call.model, call.settings, {
    status: response.status,
    code,
    text,
    host: url.host,
  });
}

async function readErrorText(call: HubCall, answer: Answer): Promise<string> {
  if (!answer.response.headers.get('content-type')?.startsWith('application/json')) return '';
  try {
    const value: unknown = JSON.parse(await readText(call, answer, ERROR_BYTES));
    return isObject(value) && typeof value.error === 'string' ? value.error : '';
  } catch {
    return ''; // The error then has only the status.
  }
}

/** Returns the innermost reason of a failed fetch, such as "getaddrinfo ENOTFOUND hub". */
function findReason(error: unknown): string {
  let reason = error as { message?: string; cause?: unknown; code?: string };
  while (reason.cause instanceof Error) reason = reason.cause;
  return (reason.message || reason.code || 'a lost connection').slice(0, 200);
}
