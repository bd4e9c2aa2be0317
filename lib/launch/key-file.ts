// Reads the API keys of `ds serve`, and reads their file again when it changes.
import { readFileSync, statSync } from 'node:fs';
import { DsError } from '../errors.js';
import { errorMessage } from '../runtime/system-error.js';
import { requireKey } from '../serve/index.js';
import { refuse } from './argument-error.js';

/** Environment variable with a key. */
export const KEY_VARIABLE = 'DS_API_KEY';
/**
 * Milliseconds between two checks of the file. A watch by the operating system would miss files
 * that another file replaces, as Kubernetes does with secrets.
 */
const INTERVAL_MS = 2000;

/**
 * Returns the keys of the environment and of the file, which has one per line. Throws DS_ARGUMENT
 * for an unreadable or empty file, and for a key that does not fit a header.
 */
export function readKeys(file: string | undefined): string[] {
  const environmentKey = process.env[KEY_VARIABLE]?.trim();
  if (environmentKey === '') refuse(KEY_VARIABLE, 'a key, or an unset variable', 'an empty string');
  if (environmentKey !== undefined) requireKey(KEY_VARIABLE, environmentKey);
  const keys = environmentKey === undefined ? [] : [environmentKey];
  if (file === undefined) return keys;
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (cause) {
    refuse('--api-key-file', 'a readable file', errorMessage(cause));
  }
  for (const [i, line] of text.split('\n').entries()) {
    const key = line.trim();
    if (key === '') continue;
    requireKey(`--api-key-file ${file}, line ${i + 1}`, key);
    keys.push(key);
  }
  const isEmpty = text.trim() === '';
  if (isEmpty) refuse('--api-key-file', 'a file with one key on each line', 'an empty file');
  return keys;
}

/** The keys of a server. */
export interface KeyFile {
  /** The keys at the start. */
  readonly keys: readonly string[];
  /**
   * Calls `use` with all keys after each change of the file, until the result is called. If the new
   * file is invalid, prints the error; the former keys stay valid. Does nothing for a pipe, such as
   * the shell's `<(command)`, which has its keys once.
   */
  watch(use: (keys: readonly string[]) => void, intervalMs?: number): () => void;
}

/** Reads the keys. Throws as readKeys() does. */
export function openKeyFile(file: string | undefined): KeyFile {
  let version = file === undefined ? '' : versionOf(file);
  const keys = readKeys(file);
  return {
    keys,
    watch(use, intervalMs = INTERVAL_MS) {
      if (file === undefined || version === NO_FILE) return () => {};
      let last = version;
      const timer = setInterval(() => {
        const now = versionOf(file);
        // A program may still be writing the file, and a part of a key would be a valid key.
        const isStable = now === last;
        last = now;
        if (!isStable || now === version) return;
        version = now;
        reload(file, now, use);
      }, intervalMs).unref();
      return () => clearInterval(timer);
    },
  };
}

function reload(file: string, version: string, use: (keys: readonly string[]) => void): void {
  try {
    // A read of a pipe would block this process until another process writes to it.
    if (version === NO_FILE) refuse('--api-key-file', 'a regular file', 'another kind of file');
    const keys = readKeys(file);
    use(keys);
    const count = keys.length === 1 ? '1 key' : `${keys.length} keys`;
    console.log(`--api-key-file: read again, ${count}`);
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    console.error(`ds serve: the former keys stay valid: ${error.message}`);
  }
}

/** The version of a pipe, a device or a folder. */
const NO_FILE = 'no file';

/**
 * Returns a text that changes with the file. The modification time is not enough: a file that is
 * moved here keeps its old one.
 */
function versionOf(file: string): string {
  try {
    const status = statSync(file);
    if (!status.isFile()) return NO_FILE;
    const { mtimeMs, ctimeMs, size, ino } = status;
    return [mtimeMs, ctimeMs, size, ino].join();
  } catch (cause) {
    return errorMessage(cause);
  }
}
