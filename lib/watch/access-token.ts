// The token of this user's watch pages: a file that only the user can read.
import { randomBytes } from 'node:crypto';
import { lstatSync, readFileSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';

import { makeFolderNow } from '../runtime/make-folder.js';

/** A token of 256 bits in base64url. */
const TOKEN = /^[\w-]{43}$/;

/**
 * Returns the token of ~/.cache/ds-native/watch-token, and creates the file with mode 600. So a
 * page reconnects after the server starts again. Returns a new token if the file is not the user's
 * own, or cannot be written.
 */
export function accessToken(file = join(homedir(), '.cache', 'ds-native', 'watch-token')): string {
  const kept = readToken(file);
  if (kept !== null) return kept;
  const token = newToken();
  try {
    makeFolderNow(dirname(file));
    writeFileSync(file, `${token}\n`, { mode: 0o600, flag: 'wx' });
  } catch {
    return readToken(file) ?? token; // Another process was faster, or the folder is read-only.
  }
  return token;
}

export const newToken = (): string => randomBytes(32).toString('base64url');

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
