// Splits a long sequence of tokens into windows for next-token prediction.

import { DsError } from '../errors.js';
import { dataError, valueError } from '../runtime/input-errors.js';
import { errorMessage } from '../runtime/system-error.js';

/** A window: token i of `targets` follows token i of `tokens`. Both have `seq` elements. */
export interface TokenWindow {
  /** Input of the model, [seq]. */
  tokens: Int32Array;
  /** Targets of the model, [seq]: the tokens shifted by one. */
  targets: Int32Array;
}

/**
 * Returns the number of windows in `tokens` tokens. Window i covers tokens [i * seq, (i + 1) *
 * seq]. Windows overlap by one token: the last target of one is the first input of the next. An
 * incomplete last window is dropped. Throws DS_DATA with `location` if no window is full.
 */
export function countWindows(tokens: number, seq: number, location: string): number {
  if (!Number.isInteger(seq) || seq < 1) {
    throw dataError(location, 'a sequence length of at least 1', String(seq));
  }
  const windows = Math.floor((tokens - 1) / seq);
  if (windows >= 1) return windows;
  const hint = 'Use more text, or a shorter sequence.';
  throw dataError(location, `at least ${seq + 1} tokens`, `${tokens}`, hint);
}

/** Throws DS_ARGUMENT with `location` unless `tokens` is an Int32Array. */
export function requireTokens(location: string, tokens: unknown): void {
  if (tokens instanceof Int32Array) return;
  const isList = Array.isArray(tokens) || ArrayBuffer.isView(tokens);
  throw valueError(
    location,
    'tokens as an Int32Array',
    tokens,
    isList ? 'Int32Array.from(tokens) makes one.' : 'TokenDataset.fromText() reads text.',
  );
}

/** Throws DS_INDEX unless `index` is in [0, windows). */
export function requireWindow(op: string, index: number, windows: number): void {
  if (Number.isInteger(index) && index >= 0 && index < windows) return;
  throw new DsError({
    code: 'DS_INDEX',
    op,
    expected: `a window index in [0, ${windows})`,
    got: String(index),
  });
}

/** Splits seq + 1 tokens into inputs and targets, without copying. */
export function splitWindow(tokens: Int32Array): TokenWindow {
  const seq = tokens.length - 1;
  return { tokens: tokens.subarray(0, seq), targets: tokens.subarray(1) };
}

/** Returns `cause` if it is a DsError; else DS_DATA with the failed file operation. */
export function unreadableFileError(path: string, cause: unknown): DsError {
  if (cause instanceof DsError) return cause;
  return new DsError({
    code: 'DS_DATA',
    op: path,
    expected: 'a readable file or folder',
    got: errorMessage(cause),
    hint: 'Check the path and its permissions.',
    cause,
  });
}
