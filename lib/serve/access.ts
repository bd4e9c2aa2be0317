// Checks API keys in constant time.

import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { required } from '../runtime/required.js';
import { ApiError } from './api-error.js';

/** Accepts the requests of clients with a key. It keeps digests of the keys, not the keys. */
export class Access {
  private digests: readonly Buffer[] = [];

  /**
   * Requests need one of `keys`. Without keys, every request passes. Throws DS_ARGUMENT for a key
   * that does not fit a header.
   */
  constructor(keys: readonly string[]) {
    this.replace(keys);
  }

  /** Replaces all keys. Requests in progress continue. Throws as the constructor does. */
  replace(keys: readonly string[]): void {
    if (!Array.isArray(keys)) {
      const expected = 'a list of keys';
      const got = formatValue(keys);
      throw new DsError({ code: 'DS_ARGUMENT', op: 'serve apiKeys', expected, got });
    }
    for (const [i, key] of keys.entries()) requireKey(`serve apiKeys[${i}]`, key);
    this.digests = keys.map(digestOf);
  }

  /** Number of different keys. */
  get size(): number {
    return new Set(this.digests.map((digest) => digest.toString('hex'))).size;
  }

  /** Whether no key is needed. */
  get isOpen(): boolean {
    return this.digests.length === 0;
  }

  /**
   * Names the client of a request by its key: the digest of the key, or "" if no key is needed.
   * Throws 401 unless the headers have one of the keys.
   */
  require(request: IncomingMessage): string {
    if (this.isOpen) return '';
    const key = keyOf(request.headers);
    const headers = { 'www-authenticate': 'Bearer' };
    if (key === undefined) {
      const message = 'Authorization: expected "Bearer KEY", got no key.';
      throw new ApiError(401, message, { code: 'missing_api_key', headers });
    }
    const digest = digestOf(key);
    let isKnown = false;
    // Compare with all keys, so the time does not depend on the key.
    for (const known of this.digests) isKnown = timingSafeEqual(known, digest) || isKnown;
    if (isKnown) return digest.toString('hex');
    throw new ApiError(401, 'Authorization: expected a key of this server, got another one.', {
      code: 'invalid_api_key',
      headers,
    });
  }
}

/**
 * Returns the key of a request: of "Authorization: Bearer KEY", or of "X-Api-Key: KEY", which
 * Anthropic's clients send. Returns undefined without a key.
 */
export function keyOf(headers: IncomingHttpHeaders): string | undefined {
  const [, key] = /^Bearer\s+(\S+)\s*$/i.exec(headers.authorization ?? '') ?? [];
  const other = headers['x-api-key'];
  return key ?? (typeof other === 'string' && other !== '' ? other : undefined);
}

/** Throws DS_ARGUMENT, naming `location` and not the key, unless "Bearer KEY" can show the key. */
export function requireKey(location: string, key: unknown): void {
  if (typeof key === 'string' && /^[\x21-\x7e]+$/.test(key)) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: location,
    expected: 'a key of visible ASCII characters, which "Authorization: Bearer KEY" can show',
    got: typeof key === 'string' ? describeInvalidKey(key) : formatValue(key),
  });
}

/** Describes the first character that a header cannot carry. */
function describeInvalidKey(key: string): string {
  const position = key.search(/[^\x21-\x7e]/u);
  if (position < 0) return 'an empty one';
  const code = required(key.codePointAt(position)).toString(16).toUpperCase().padStart(4, '0');
  return `U+${code} at character ${position + 1}`;
}

/** Returns the SHA-256 of a key: all digests have the same length. */
const digestOf = (key: string): Buffer => createHash('sha256').update(key).digest();
