// Cross-origin requests: which web pages may ask, and what their browsers are told of it.
import type { IncomingMessage, ServerResponse } from 'node:http';
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';

/** Seconds that a browser caches a preflight answer. */
const REMEMBERED = '86400';

/** The pages of one origin, of all, or of none. */
export class Cors {
  /** "*" for all origins; none without one. Throws DS_ARGUMENT for what is no origin. */
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
   * Says in the head of the answer whether the page may read it. Returns whether the request asks
   * for no more than that, and is answered.
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
      'access-control-allow-methods': 'GET, POST',
      // Keys are headers, and clients send some of their own: none of them opens anything else.
      'access-control-allow-headers': headers['access-control-request-headers'] ?? '',
      'access-control-max-age': REMEMBERED,
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
