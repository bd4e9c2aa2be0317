// TokenDataset: a long run of tokens in memory, cut into windows for next-token prediction.
import type { Dataset, DatasetSource } from './dataset.js';
import {
  type JsonlSource,
  jsonlSource,
  type TextSource,
  textSource,
  tokensOfJsonl,
  tokensOfText,
} from './token-text.js';
import {
  requireTokens,
  requireWindow,
  type TokenWindow,
  windowCount,
  windowOf,
} from './token-window.js';

/** A dataset of token windows in memory; windowCount() defines a window. */
export class TokenDataset implements Dataset<TokenWindow> {
  /** Windows. */
  readonly length: number;
  private shared: Int32Array | null = null;

  /**
   * `tokens` is kept, not copied; `location` names it in errors. Throws DS_DATA if no window is
   * full, DS_ARGUMENT unless `tokens` is an Int32Array.
   */
  constructor(
    /** All tokens, one after the other. */
    readonly tokens: Int32Array,
    /** Tokens of a window. */
    readonly seq: number,
    location = 'TokenDataset',
  ) {
    requireTokens(location, tokens);
    this.length = windowCount(tokens.length, seq, location);
  }

  /**
   * Throws DS_DATA, naming the file, for data that cannot be read, is empty, binary or too short;
   * DS_ARGUMENT for unknown or wrong options.
   */
  static fromText(given: TextSource): TokenDataset {
    const source = textSource(given);
    return new TokenDataset(tokensOfText(source), source.seq, source.path);
  }

  /**
   * Throws DS_DATA, naming file and line, for a line that is not an object with such a text;
   * DS_ARGUMENT.
   */
  static fromJsonl(given: JsonlSource): TokenDataset {
    const source = jsonlSource(given);
    return new TokenDataset(tokensOfJsonl(source), source.seq, source.path);
  }

  /**
   * All threads read the same memory; tokens that are not in shared memory are copied to it once.
   */
  get source(): DatasetSource {
    this.shared ??= inSharedMemory(this.tokens);
    return { module: __filename, export: 'tokenDataset', args: [this.shared, this.seq] };
  }

  /** Returns views of the run. Throws DS_INDEX if `index` is out of range. */
  get(index: number): TokenWindow {
    requireWindow('TokenDataset.get', index, this.length);
    const start = index * this.seq;
    return windowOf(this.tokens.subarray(start, start + this.seq + 1));
  }
}

/** Entry point for worker threads. */
export function tokenDataset(tokens: Int32Array, seq: number): TokenDataset {
  return new TokenDataset(tokens, seq);
}

function inSharedMemory(tokens: Int32Array): Int32Array {
  if (tokens.buffer instanceof SharedArrayBuffer) return tokens;
  const shared = new Int32Array(new SharedArrayBuffer(tokens.byteLength));
  shared.set(tokens);
  return shared;
}
