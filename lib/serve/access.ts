// Who may ask: keys that a client shows, compared in constant time.
import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';

import { ApiError } from './api-error.js';

/** Keeps no key, only what it can be recognised by. */
export class Access {
  private readonly digests: readonly Buffer[];

  /** Any of `keys` opens; without one, everybody may ask. */
  constructor(keys: readonly string[]) {
    this.digests = keys.map(digestOf);
  }

  /** Whether everybody may ask. */
  get isOpen(): boolean {
    return this.digests.length === 0;
  }

  /** Throws 401 unless "Authorization: Bearer KEY" has one of the keys. */
  require({ headers: { authorization } }: IncomingMessage): void {
    if (this.isOpen) return;
    const [, key] = /^Bearer\s+(\S+)\s*$/i.exec(authorization ?? '') ?? [];
    const headers = { 'www-authenticate': 'Bearer' };
    if (key === undefined) {
      const message = 'This server wants a key: send "Authorization: Bearer KEY".';
      throw new ApiError(401, message, { code: 'missing_api_key', headers });
    }
    const digest = digestOf(key);
    let isKnown = false;
    // All are compared, whichever it is.
    for (const known of this.digests) isKnown = timingSafeEqual(known, digest) || isKnown;
    if (isKnown) return;
    throw new ApiError(401, 'The key is not one of this server.', {
      code: 'invalid_api_key',
      headers,
    });
  }
}

/** Digests have one length, whatever the keys'. */
const digestOf = (key: string): Buffer => createHash('sha256').update(key).digest();
