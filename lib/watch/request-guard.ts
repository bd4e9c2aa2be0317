// Decides which requests the server answers, by method, host, origin and token.
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import { lstatSync, readFileSync, writeFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { isLoopback } from '../runtime/loopback.js';
import { makeFolderNow } from '../runtime/make-folder.js';

/** The refusal of a request. */
interface Refusal {
  status: number;
  message: string;
}

/** Maximum number of characters of a request's target. */
const MAX_TARGET_LENGTH = 1024;
/** "name", "name:port" or "[::1]:port". */
const HOST = /^(\[[\da-f:.]+\]|[\w.-]+)(:\d{1,5})?$/i;
const ADDRESS = /^(\d{1,3}(\.\d{1,3}){3}|\[[\da-f:.]+\])$/i;

export class RequestGuard {
  private readonly digest: Buffer;

  /** `host`: the address on which the server listens. */
  constructor(
    token: string,
    private readonly host: string,
  ) {
    this.digest = computeDigest(token);
  }

  /**
   * Returns a refusal, or null. Every request needs the method GET or HEAD, no body, a Host of this
   * server, and no foreign Origin. In a DNS rebinding attack, the Host is the attacker's name.
   */
  findRefusal({ method, url = '', headers }: IncomingMessage): Refusal | null {
    if (method !== 'GET' && method !== 'HEAD') {
      return { status: 405, message: 'Method: expected GET or HEAD.' };
    }
    const hasBody = headers['transfer-encoding'] !== undefined;
    if (hasBody || !/^0*$/.test(headers['content-length'] ?? '')) {
      return { status: 400, message: 'Body: expected an empty body.' };
    }
    if (url.length > MAX_TARGET_LENGTH || !url.startsWith('/')) {
      return { status: 400, message: 'Target: expected a path of this server.' };
    }
    const { host, origin, 'sec-fetch-site': site } = headers;
    if (!this.isOwnHost(host)) {
      return { status: 403, message: 'Host: expected the address that ds watch printed.' };
    }
    const isForeign = origin !== undefined && origin !== `http://${host}`;
    if (isForeign || site === 'cross-site' || site === 'same-site') {
      return { status: 403, message: 'Origin: expected the page of this server.' };
    }
    return null;
  }

  /**
   * Returns whether "Authorization: Bearer TOKEN" has the token. Compares digests in constant time.
   */
  hasToken({ headers: { authorization } }: IncomingMessage): boolean {
    const [, token] = /^Bearer ([\w-]{1,128})$/.exec(authorization ?? '') ?? [];
    return timingSafeEqual(this.digest, computeDigest(token ?? ''));
  }

  private isOwnHost(hostHeader: string | undefined): boolean {
    const [, name] = HOST.exec(hostHeader ?? '') ?? [];
    if (name === undefined) return false;
    const host = name.toLowerCase();
    if (isLoopback(host)) return true;
    // DNS rebinding needs a name. An address of this machine is safe if the server listens there.
    return !isLoopback(this.host) && (host === this.host || ADDRESS.test(host));
  }
}

/** Returns a digest: digests of all tokens have the same length. */
const computeDigest = (token: string): Buffer => createHash('sha256').update(token).digest();

// The token of this user's watch pages: a file that only the user can read.

/** A token of 256 bits in base64url. */
const TOKEN = /^[\w-]{43}$/;

/**
 * Returns the token of ~/.cache/ds-native/watch-token, and creates the file with mode 600. A page
 * can thus reconnect after a restart of the server. Returns a new token if the file does not belong
 * to the user only, or cannot be written.
 */
export function readOrCreateToken(
  file = join(homedir(), '.cache', 'ds-native', 'watch-token'),
): string {
  const savedToken = readToken(file);
  if (savedToken !== null) return savedToken;
  const token = createToken();
  try {
    makeFolderNow(dirname(file));
    writeFileSync(file, `${token}\n`, { mode: 0o600, flag: 'wx' });
  } catch {
    return readToken(file) ?? token; // Another process was faster, or the folder is read-only.
  }
  return token;
}

export const createToken = (): string => randomBytes(32).toString('base64url');

function readToken(file: string): string | null {
  try {
    const { mode, uid } = lstatSync(file);
    const isOwn = uid === process.getuid?.() && (mode & 0o170077) === 0o100000;
    const token = isOwn ? readFileSync(file, 'utf8').trim() : '';
    return TOKEN.test(token) ? token : null;
  } catch {
    return null;
  }
}
