// Cross-origin requests (CORS): permits web pages of other origins to use the API.
import type { IncomingMessage, ServerResponse } from 'node:http';
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';

/** Seconds that a browser caches a preflight answer. */
const PREFLIGHT_SECONDS = '86400';

/** Permits one origin, all origins, or no origin. */
export class Cors {
  /** `origin`: an origin, "*" for all, or undefined. Throws DS_ARGUMENT for another value. */
  constructor(private readonly origin: string | undefined) {
    if (origin === undefined || origin === '*' || isOrigin(origin)) return;
    const expected = 'an origin such as "https://chat.example:8443", or "*"';
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'serve cors',
      expected,
      got: formatValue(origin),
    });
  }

  /**
   * Sets the headers that permit the page to read the answer. Returns true if the request was a
   * preflight, which is then answered.
   */
  answer({ method, headers }: IncomingMessage, response: ServerResponse): boolean {
    if (this.origin === undefined) return false;
    if (this.origin !== '*') response.setHeader('vary', 'Origin');
    const { origin } = headers;
    if (origin === undefined || (this.origin !== '*' && origin !== this.origin)) return false;
    response.setHeader('access-control-allow-origin', this.origin);
    const asksFirst = headers['access-control-request-method'] !== undefined;
    if (method !== 'OPTIONS' || !asksFirst) return false;
    response.writeHead(204, {
      'access-control-allow-methods': 'GET, POST, DELETE',
      // Clients send the key and custom headers. Permitting these headers grants no access.
      'access-control-allow-headers': headers['access-control-request-headers'] ?? '',
      'access-control-max-age': PREFLIGHT_SECONDS,
    });
    response.end();
    return true;
  }
}

function isOrigin(text: unknown): boolean {
  try {
    return new URL(text as string).origin === text;
  } catch {
    return false;
  }
}
