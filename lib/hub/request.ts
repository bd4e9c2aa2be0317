// HTTP requests of the hub. The token goes to the hub's own origin only, at every redirect.
import { DsError } from '../errors.js';
import { isObject } from '../runtime/is-object.js';
import { whenAborted } from '../runtime/when-aborted.js';
import type { HubSettings } from './environment.js';
import { badAnswer, type HubRequestInfo, refusalError, unreachable } from './hub-error.js';
import { retryAfterMs, TransientFailure } from './retries.js';

/** The settings of all requests of a call. */
export interface HubCall {
  readonly settings: HubSettings;
  readonly asked: HubRequestInfo;
  readonly signal: AbortSignal;
}

/** An answer with a body to read. The caller reads it to its end, or calls stop(). */
export interface Answer {
  readonly response: Response;
  /** The URL after redirects. */
  readonly url: URL;
  /** Ends the connection. */
  stop(): void;
  /** Yields the body. A pause of stallMs or a lost connection is a PassingFailure. */
  chunks(): AsyncGenerator<Uint8Array>;
}

/** A file, a range of it, and no such range. */
const ANSWERS = [200, 206, 416];
const REDIRECTS = [301, 302, 303, 307, 308];
const MAX_REDIRECTS = 8;
/** Bytes of an error's body that are read. */
const ERROR_BYTES = 16_384;
const AGENT = `ds-native (node ${process.versions.node})`;

/**
 * Sends a GET request and follows redirects. Any status but 200, 206 and 416 throws: a
 * PassingFailure for a busy server or a lost connection, DS_HUB for a refusal.
 */
export async function send(
  call: HubCall,
  from: string | URL,
  headers: Readonly<Record<string, string>> = {},
): Promise<Answer> {
  const answer = await follow(call, new URL(from), headers);
  const { response } = answer;
  if (ANSWERS.includes(response.status)) return answer;
  const error = await refusalOf(call, answer);
  answer.stop();
  const { status } = response;
  const mayPass = status === 408 || status === 425 || status === 429 || status >= 500;
  if (!mayPass) throw error;
  throw new TransientFailure(error, retryAfterMs(response.headers.get('retry-after')));
}

async function follow(
  call: HubCall,
  from: URL,
  headers: Readonly<Record<string, string>>,
): Promise<Answer> {
  let url = from;
  for (let hops = 0; hops <= MAX_REDIRECTS; ++hops) {
    const answer = await get(call, url, headers);
    const { status, headers: fields } = answer.response;
    if (!REDIRECTS.includes(status)) return answer;
    answer.stop();
    url = nextUrl(call, url, fields.get('location'));
  }
  throw badAnswer(call.asked.name, `at most ${MAX_REDIRECTS} redirects`, 'more of them');
}

function nextUrl({ asked: { name } }: HubCall, from: URL, location: string | null): URL {
  const isUrl = location !== null && URL.canParse(location, from.href);
  const url = isUrl ? new URL(location, from) : null;
  if (!url || !/^https?:$/.test(url.protocol)) {
    throw badAnswer(name, 'a redirect to an HTTP URL', `another one from ${from.host}`);
  }
  if (from.protocol === 'https:' && url.protocol === 'http:') {
    throw badAnswer(name, 'redirects to HTTPS', `one from ${from.host} to http://${url.host}`);
  }
  return url;
}

/** Sends one request. The connection ends with the call's signal, and after stallMs of silence. */
async function get(
  call: HubCall,
  url: URL,
  given: Readonly<Record<string, string>>,
): Promise<Answer> {
  const { settings, signal } = call;
  const { token, endpoint, stallMs } = settings;
  const isHub = token !== null && url.origin === new URL(endpoint).origin;
  const headers = {
    'user-agent': AGENT,
    'accept-encoding': 'identity',
    ...given,
    ...(isHub && { authorization: `Bearer ${token}` }),
  };
  const controller = new AbortController();
  let isStalled = false;
  const timer = setTimeout(() => {
    isStalled = true;
    controller.abort();
  }, stallMs);
  const forget = whenAborted(signal, () => controller.abort());
  const stop = (): void => {
    clearTimeout(timer);
    forget();
    controller.abort();
  };
  const failureOf = (error: unknown): unknown => {
    stop();
    if (signal.aborted) return signal.reason;
    if (error instanceof DsError || error instanceof TransientFailure) return error;
    const got = isStalled ? `no byte for ${stallMs / 1000} s` : reasonOf(error);
    return new TransientFailure(unreachable(call.asked.name, settings, `${got} from ${url.host}`));
  };
  try {
    signal.throwIfAborted();
    const ownSignal = controller.signal;
    const response = await abortable(
      ownSignal,
      fetch(url, { headers, redirect: 'manual', signal: ownSignal }),
    );
    requirePlain(call, response, url);
    timer.refresh();
    return {
      response,
      url,
      stop,
      chunks: () => chunksOf({ response, timer, failed: failureOf, stop, own: ownSignal }),
    };
  } catch (error) {
    throw failureOf(error);
  }
}

/** A body, and the parts of its request. */
interface Body {
  readonly response: Response;
  readonly timer: NodeJS.Timeout;
  readonly own: AbortSignal;
  failed(error: unknown): unknown;
  stop(): void;
}

async function* chunksOf(body: Body): AsyncGenerator<Uint8Array> {
  const { response, timer, own, failed, stop } = body;
  const reader = response.body?.getReader();
  try {
    while (reader) {
      const { done, value } = await abortable(own, reader.read()).catch((error: unknown) => {
        throw failed(error);
      });
      if (done) return;
      timer.refresh();
      yield value;
      timer.refresh(); // Time of the consumer is no silence of the server.
    }
  } finally {
    stop();
  }
}

/** Rejects when `signal` is aborted: Node's fetch may leave a read of an aborted body pending. */
function abortable<T>(signal: AbortSignal, result: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const forget = whenAborted(signal, () => reject(signal.reason));
    if (signal.aborted) reject(signal.reason);
    result.then(resolve, reject).finally(forget);
  });
}

/** A compressed body has other offsets than the file. */
function requirePlain({ asked: { name } }: HubCall, response: Response, url: URL): void {
  const encoding = response.headers.get('content-encoding') ?? 'identity';
  if (encoding === 'identity') return;
  throw badAnswer(
    name,
    'bytes without Content-Encoding',
    `${encoding.slice(0, 40)} of ${url.host}`,
  );
}

/** Reads a body of at most `limit` bytes. Throws DS_HUB for a longer one. */
export async function textOf(call: HubCall, answer: Answer, limit: number): Promise<string> {
  const parts: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of answer.chunks()) {
    bytes += chunk.length;
    if (bytes > limit) {
      throw badAnswer(call.asked.name, `an answer of at most ${limit} bytes`, 'a longer one');
    }
    parts.push(chunk);
  }
  return Buffer.concat(parts).toString('utf8');
}

/** The refusal of an answer, with the text of its headers or its body. */
async function refusalOf(call: HubCall, answer: Answer): Promise<DsError> {
  const { response, url } = answer;
  const code = (response.headers.get('x-error-code') ?? '').replaceAll(/\W/g, '').slice(0, 40);
  const text = response.headers.get('x-error-message') ?? (await errorText(call, answer));
  return refusalError(call.asked, call.settings, {
    status: response.status,
    code,
    text,
    host: url.host,
  });
}

async function errorText(call: HubCall, answer: Answer): Promise<string> {
  if (!answer.response.headers.get('content-type')?.startsWith('application/json')) return '';
  try {
    const value: unknown = JSON.parse(await textOf(call, answer, ERROR_BYTES));
    return isObject(value) && typeof value.error === 'string' ? value.error : '';
  } catch {
    return ''; // The status is enough.
  }
}

/** Returns the innermost reason of a failed fetch, such as "getaddrinfo ENOTFOUND hub". */
function reasonOf(error: unknown): string {
  let reason = error as { message?: string; cause?: unknown; code?: string };
  while (reason.cause instanceof Error) reason = reason.cause;
  return (reason.message || reason.code || 'a lost connection').slice(0, 200);
}
