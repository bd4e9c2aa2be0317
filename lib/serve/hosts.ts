// Checks Host headers of a keyless server on loopback, against DNS rebinding by web pages.
import type { IncomingMessage } from 'node:http';

import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { isLoopback } from '../runtime/loopback.js';
import { ApiError } from './api-error.js';

/** "name", "name:port" or "[::1]:port". */
const HOST = /^(\[[\da-f:.]+\]|[^\s:/?#@[\]\\]+)(:\d*)?$/i;

/**
 * Refuses unknown hosts. In DNS rebinding, an attacker resolves its own name to 127.0.0.1, so that
 * its page reaches a local server as its own origin. The requests of that page name the attacker's
 * host.
 */
export class Hosts {
  private readonly allowed: ReadonlySet<string>;

  /** `names`: hosts without a port, or "*" for all. Throws DS_ARGUMENT for other values. */
  constructor(names: readonly string[] = []) {
    const isList = Array.isArray(names);
    const invalid = isList ? names.find((name) => name !== '*' && parseHost(name) !== name) : names;
    if (isList && invalid === undefined) this.allowed = new Set(names);
    else {
      const expected = 'hosts in lower case without a port, such as "chat.example", or "*"';
      const got = formatValue(invalid);
      throw new DsError({ code: 'DS_ARGUMENT', op: 'serve allowedHosts', expected, got });
    }
  }

  /** Throws 403 for a request to a name that is neither this machine's loopback nor allowed. */
  require({ url = '/', headers }: IncomingMessage): void {
    if (this.allowed.has('*')) return;
    // A target that is a complete URL names a host too. Source: RFC 9112, 3.2.2.
    const [, authority] = /^https?:\/\/([^/?#]*)/i.exec(url) ?? [];
    for (const name of [headers.host, authority]) {
      if (name === undefined) continue;
      const host = parseHost(name);
      if (host !== null && (isLoopback(host) || this.allowed.has(host))) continue;
      const got = JSON.stringify(name.slice(0, 60));
      const message = `Host: expected localhost, 127.0.0.0/8 or [::1], got ${got}. Start the server with a key, or name the host in --allowed-hosts.`;
      throw new ApiError(403, message, { code: 'foreign_host' });
    }
  }
}

/**
 * Returns the host of a Host header in lower case, without the port; null for an invalid header.
 */
function parseHost(text: unknown): string | null {
  const [, host] = HOST.exec(typeof text === 'string' ? text : '') ?? [];
  return host?.toLowerCase() ?? null;
}
