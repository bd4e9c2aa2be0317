// Options of text datasets and streams: files, tokenizer, lengths, packing and loss.
import { availableParallelism } from 'node:os';
import { valueError } from '../runtime/input-errors.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireOneOf, requireType } from '../runtime/require-type.js';
import { type Columns, readColumns } from './columns.js';
import type { PoolOptions } from './encode-pool.js';
import { OVERLONG, type Overlong } from './packing.js';
import { LOSS_KINDS, type LossKind } from './row-encoder.js';
import { findFiles } from './row-files.js';
import { Tokenizer } from './tokenizer.js';

/** Options of TextDataset and TextStream. */
export interface TextOptions {
  /**
   * Paths, folders, and patterns such as "data/*.jsonl", relative to the working directory. Files
   * of .jsonl (.ndjson), .json (an array, or as .jsonl), .parquet, .csv, .tsv, and .txt or .md (a
   * file is a row).
   */
  files: string | readonly string[];
  /** A tokenizer, or the folder of one. */
  tokenizer: Tokenizer | string;
  /** Number of tokens of a sample. */
  length: number;
  /** Fills samples with several documents, best fit first. Default: true. */
  packing?: boolean;
  /** How documents longer than a sample are handled. Default: "cut". */
  overlong?: Overlong;
  /**
   * Which tokens are learned. Default: the completion in rows { prompt, completion }, else all.
   * "assistant": the assistant's tokens in rows { messages }.
   */
  loss?: LossKind;
  /**
   * New names of columns by their names in the files, such as { question: 'prompt' }. Every row
   * must have these columns. Default: none.
   */
  columns?: Readonly<Record<string, string>>;
  /** Key of the text in rows { text }. Default: "text". */
  textKey?: string;
  /**
   * Threads that read and tokenize. Default: all cores but one, at most 8; 0 for the calling
   * thread.
   */
  threads?: number;
  /** Folder of the token cache. Default: no cache. */
  cache?: string;
  /**
   * Milliseconds that a thread may take for 4 MiB of rows, or one row group of Parquet, before it
   * counts as stalled. Default: 600000.
   */
  timeoutMs?: number;
}

/** Checked TextOptions with defaults. */
export interface TextSettings {
  files: string[];
  columns: Columns | undefined;
  length: number;
  packing: boolean;
  overlong: Overlong;
  /** Padding token. */
  pad: number;
  pool: PoolOptions;
}

/**
 * Returns a tokenizer, or the tokenizer of a folder. Throws DS_ARGUMENT, and DS_DATA for a folder
 * without a tokenizer.
 */
export function readTokenizer(op: string, given: Tokenizer | string): Tokenizer {
  if (given instanceof Tokenizer) return given;
  if (typeof given === 'string') return Tokenizer.fromPretrained(given);
  throw valueError(op, 'a text.Tokenizer, or its folder', given);
}

/** Checks the options. Throws DS_ARGUMENT for invalid options, and DS_DATA for missing files. */
export function readTextSettings(op: string, options: TextOptions): TextSettings {
  const { tokenizer: given, packing = true, overlong = 'cut', loss, textKey = 'text' } = options;
  const tokenizer = readTokenizer(`${op} tokenizer`, given);
  requireType(`${op} textKey`, textKey, 'string');
  if (options.cache !== undefined) requireType(`${op} cache`, options.cache, 'string');
  requireOneOf(`${op} overlong`, overlong, OVERLONG);
  if (loss !== undefined) requireOneOf(`${op} loss`, loss, LOSS_KINDS);
  const threads = options.threads ?? Math.min(8, Math.max(1, availableParallelism() - 1));
  return {
    files: findFiles(`${op} files`, options.files),
    columns: readColumns(`${op} columns`, options.columns),
    length: requireLength(`${op} length`, options.length),
    packing,
    overlong,
    pad: tokenizer.padId ?? tokenizer.eosId ?? 0,
    pool: {
      tokenizer,
      settings: { textKey, loss: loss ?? null },
      threads: requireInteger(`${op} threads`, threads, 0),
      cache: options.cache ?? null,
      timeoutMs: requireInteger(`${op} timeoutMs`, options.timeoutMs ?? 600_000, 1),
    },
  };
}

/** Most tokens of a sample: lists of tokens store their length in 32 bits. */
const MAX_LENGTH = 2 ** 31 - 1;

function requireLength(op: string, length: unknown): number {
  const valid = requireInteger(op, length, 2);
  if (valid > MAX_LENGTH) throw valueError(op, `an integer of 2 to ${MAX_LENGTH}`, length);
  return valid;
}
