// TokenDataset: a sequence of tokens in memory, divided into windows for next-token prediction.
import type { Dataset, DatasetSource } from './dataset.js';
import {
  type JsonlSource,
  readJsonlSource,
  readTextSource,
  type TextSource,
  tokenizeJsonl,
  tokenizeText,
} from './token-text.js';
import {
  countWindows,
  requireTokens,
  requireWindow,
  splitWindow,
  type TokenWindow,
} from './token-window.js';

/** A dataset of windows of tokens in memory. token-window.ts defines a window. */
export class TokenDataset implements Dataset<TokenWindow> {
  /** Number of windows. */
  readonly length: number;
  private shared: Int32Array | null = null;

  /**
   * Keeps `tokens` without a copy. `location` names them in errors. Throws DS_DATA if there are
   * fewer than seq + 1 tokens, DS_ARGUMENT unless `tokens` is an Int32Array.
   */
  constructor(
    /** All tokens, in order. */
    readonly tokens: Int32Array,
    /** Tokens per window. */
    readonly seq: number,
    location = 'TokenDataset',
  ) {
    requireTokens(location, tokens);
    this.length = countWindows(tokens.length, seq, location);
  }

  /**
   * Encodes a text file, or all text files of a folder. Throws DS_DATA if a file cannot be read, is
   * binary, or has too few tokens; the error names it. Throws DS_ARGUMENT for unknown or invalid
   * options.
   */
  static fromText(given: TextSource): TokenDataset {
    const source = readTextSource(given);
    return new TokenDataset(tokenizeText(source), source.seq, source.path);
  }

  /**
   * Encodes a JSON Lines file. Throws DS_DATA if a line is not an object with a text under the key;
   * the error names file and line. Throws DS_ARGUMENT for unknown or invalid options.
   */
  static fromJsonl(given: JsonlSource): TokenDataset {
    const source = readJsonlSource(given);
    return new TokenDataset(tokenizeJsonl(source), source.seq, source.path);
  }

  /**
   * The source for worker threads. All threads read the same memory. Tokens that are not in shared
   * memory are copied there once.
   */
  get source(): DatasetSource {
    this.shared ??= copyToSharedMemory(this.tokens);
    return { module: __filename, export: 'buildTokenDataset', args: [this.shared, this.seq] };
  }

  /** Returns window `index` as views of the tokens. Throws DS_INDEX if there is no such window. */
  get(index: number): TokenWindow {
    requireWindow('TokenDataset.get', index, this.length);
    const start = index * this.seq;
    return splitWindow(this.tokens.subarray(start, start + this.seq + 1));
  }
}

/** Builds the dataset in a worker thread. */
export function buildTokenDataset(tokens: Int32Array, seq: number): TokenDataset {
  return new TokenDataset(tokens, seq);
}

function copyToSharedMemory(tokens: Int32Array): Int32Array {
  if (tokens.buffer instanceof SharedArrayBuffer) return tokens;
  const shared = new Int32Array(new SharedArrayBuffer(tokens.byteLength));
  shared.set(tokens);
  return shared;
}
