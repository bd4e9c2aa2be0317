// Host headers of a keyless server on loopback: a foreign name may be a web page of a browser here.
import type { IncomingMessage } from 'node:http';

import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { isLoopback } from '../runtime/loopback.js';
import { ApiError } from './api-error.js';

/** "name", "name:port" or "[::1]:port". */
const HOST = /^(\[[\da-f:.]+\]|[^\s:/?#@[\]\\]+)(:\d*)?$/i;

/**
 * Refuses hosts of DNS rebinding: an attacker resolves its own name to 127.0.0.1. A page of that
 * name would reach a local server as its own origin. Its requests name the attacker's host.
 */
export class Hosts {
  private readonly allowed: ReadonlySet<string>;

  /** `names`: hosts without a port, or "*" for all. Throws DS_ARGUMENT for other values. */
  constructor(names: readonly string[] = []) {
    const isList = Array.isArray(names);
    const odd = isList ? names.find((name) => name !== '*' && hostOf(name) !== name) : names;
    if (isList && odd === undefined) this.allowed = new Set(names);
    else {
      const expected = 'hosts in lower case without a port, such as "chat.example", or "*"';
      const got = formatValue(odd);
      throw new DsError({ code: 'DS_ARGUMENT', op: 'serve allowedHosts', expected, got });
    }
  }

  /** Throws 403 for a request to a name that is neither this machine's loopback nor allowed. */
  require({ url = '/', headers }: IncomingMessage): void {
    if (this.allowed.has('*')) return;
    // A target that is a whole URL names a host as well. Source: RFC 9112, 3.2.2.
    const [, authority] = /^https?:\/\/([^/?#]*)/i.exec(url) ?? [];
    for (const named of [headers.host, authority]) {
      if (named === undefined) continue;
      const host = hostOf(named);
      if (host !== null && (isLoopback(host) || this.allowed.has(host))) continue;
      const got = JSON.stringify(named.slice(0, 60));
      const message = `Host: expected localhost, 127.0.0.0/8 or [::1], got ${got}. Start the server with a key, or name the host in --allowed-hosts.`;
      throw new ApiError(403, message, { code: 'foreign_host' });
    }
  }
}

/** The host of a Host header, in lower case; null for an invalid header. */
function hostOf(text: unknown): string | null {
  const [, host] = HOST.exec(typeof text === 'string' ? text : '') ?? [];
  return host?.toLowerCase() ?? null;
}
