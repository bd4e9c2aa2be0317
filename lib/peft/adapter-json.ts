// Names of the files of an adapter, and the reader of its JSON files.
import { readFile } from 'node:fs/promises';
import type { JsonObject } from '../../types/json.js';
import { HINTS } from '../checkpoint/file-error.js';
import { DsError } from '../errors.js';
import { isObject } from '../runtime/is-object.js';
import { parseJson } from '../runtime/parse-json.js';
import { errorCode, errorMessage } from '../runtime/system-error.js';

export const CONFIG = 'adapter_config.json';
export const WEIGHTS = 'adapter_model.safetensors';

/**
 * Reads a JSON object. Throws DS_IO if the file cannot be read, DS_CHECKPOINT for other contents.
 */
export async function readJson(path: string): Promise<JsonObject> {
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (cause) {
    throw unreadError(path, cause);
  }
  try {
    const value: unknown = parseJson(text);
    if (isObject<JsonObject>(value)) return value;
  } catch {
    // Reported below.
  }
  const expected = 'a JSON object';
  throw new DsError({ code: 'DS_CHECKPOINT', op: path, expected, got: 'other contents' });
}

function unreadError(path: string, cause: unknown): Error {
  const isMissing = errorCode(cause) === 'ENOENT';
  if (!isMissing) return ioError('loadAdapter', path, cause);
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: `${CONFIG} and ${WEIGHTS}, as PEFT writes them`,
    got: 'no such file',
  });
}

/** Returns `cause` if it is a DsError, otherwise a DS_IO with its message. */
export function ioError(op: string, path: string, cause: unknown): Error {
  if (cause instanceof DsError) return cause;
  const got = errorMessage(cause);
  const hint = HINTS[errorCode(cause) ?? ''] ?? '';
  return new DsError({ code: 'DS_IO', op: `${op} ${path}`, expected: 'success', got, hint, cause });
}
