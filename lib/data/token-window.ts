// Divides a sequence of tokens into windows for next-token prediction.

import { DsError } from '../errors.js';
import { dataError, valueError } from '../runtime/input-errors.js';
import { errorMessage } from '../runtime/system-error.js';

/** A window. Token i of `targets` follows token i of `tokens`. Both have `seq` elements. */
export interface TokenWindow {
  /** Inputs of the model, [seq]. */
  tokens: Int32Array;
  /** Targets of the model, [seq]: the inputs, shifted by one token. */
  targets: Int32Array;
}

/**
 * Returns the number of windows in a sequence of `tokens` tokens. Window i has the tokens from i *
 * seq to (i + 1) * seq, both included. So the last target of a window is the first input of the
 * next. An incomplete last window is dropped. Throws DS_DATA with `location` if there is no
 * complete window.
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

/** Throws DS_INDEX unless `index` is an integer from 0 to windows - 1. */
export function requireWindow(op: string, index: number, windows: number): void {
  if (Number.isInteger(index) && index >= 0 && index < windows) return;
  throw new DsError({
    code: 'DS_INDEX',
    op,
    expected: `a window index in [0, ${windows})`,
    got: String(index),
  });
}

/** Splits seq + 1 tokens into inputs and targets, as views. */
export function splitWindow(tokens: Int32Array): TokenWindow {
  const seq = tokens.length - 1;
  return { tokens: tokens.subarray(0, seq), targets: tokens.subarray(1) };
}

/** Returns `cause` if it is a DsError, else DS_DATA with the failed file operation. */
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
