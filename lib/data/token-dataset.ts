// TokenDataset: a long sequence of tokens in memory, cut into windows for next-token prediction.
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

/** A dataset of token windows in memory; countWindows() defines a window. */
export class TokenDataset implements Dataset<TokenWindow> {
  /** Number of windows. */
  readonly length: number;
  private shared: Int32Array | null = null;

  /**
   * Keeps `tokens`, without a copy; `location` names them in errors. Throws DS_DATA if no window is
   * full, DS_ARGUMENT unless `tokens` is an Int32Array.
   */
  constructor(
    /** All tokens in their order. */
    readonly tokens: Int32Array,
    /** Tokens per window. */
    readonly seq: number,
    location = 'TokenDataset',
  ) {
    requireTokens(location, tokens);
    this.length = countWindows(tokens.length, seq, location);
  }

  /**
   * Tokenizes a text file or a folder. Throws DS_DATA with the file if it cannot be read, or is
   * empty, binary or too short. Throws DS_ARGUMENT for unknown or wrong options.
   */
  static fromText(given: TextSource): TokenDataset {
    const source = readTextSource(given);
    return new TokenDataset(tokenizeText(source), source.seq, source.path);
  }

  /**
   * Tokenizes JSON Lines. Throws DS_DATA with file and line for a line that is not an object with a
   * text under the key. Throws DS_ARGUMENT for unknown or wrong options.
   */
  static fromJsonl(given: JsonlSource): TokenDataset {
    const source = readJsonlSource(given);
    return new TokenDataset(tokenizeJsonl(source), source.seq, source.path);
  }

  /**
   * The source for worker threads. All threads read the same memory; tokens outside shared memory
   * are copied there once.
   */
  get source(): DatasetSource {
    this.shared ??= copyToSharedMemory(this.tokens);
    return { module: __filename, export: 'buildTokenDataset', args: [this.shared, this.seq] };
  }

  /** Returns window `index` as views of the tokens. Throws DS_INDEX if `index` is out of range. */
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
