// Encodes parts of files in order: from the cache, on this thread, or on worker threads that run
// ahead of the reader.

import type { DsError } from '../errors.js';
import { dataError } from '../runtime/refused.js';
import { required } from '../runtime/required.js';
import { ThreadPool } from '../runtime/thread-pool.js';
import { type EncodedPart, encodePart } from './encoded-part.js';
import type { RowSettings } from './row-encoder.js';
import type { FilePart } from './row-files.js';
import { cacheName, readCached, writeCached } from './token-cache.js';
import type { Tokenizer } from './tokenizer.js';

/** Start data of a worker thread. */
export interface EncodeSetup {
  /** The folder of the tokenizer. */
  folder: string;
  settings: RowSettings;
}

export interface PoolOptions {
  tokenizer: Tokenizer;
  settings: RowSettings;
  threads: number;
  /** Folder of the token cache; null without a cache. */
  cache: string | null;
  /** Milliseconds that a thread may take for one part. */
  timeoutMs: number;
}

/** Threads are started when a part needs one, and ended by close(). */
export class EncodePool {
  private readonly pool: ThreadPool<FilePart, EncodedPart>;

  constructor(private readonly options: PoolOptions) {
    const { tokenizer, settings, threads, timeoutMs } = options;
    const data: EncodeSetup = { folder: tokenizer.folder, settings };
    const entry = { folder: __dirname, entry: 'encode-thread', data };
    this.pool = new ThreadPool({ ...entry, threads, timeoutMs });
  }

  /**
   * Parts in their order; at most two for each thread are under way. Throws DS_DATA, naming file
   * and line.
   */
  async *encode(parts: Iterable<FilePart>): AsyncGenerator<EncodedPart> {
    const ahead = Math.max(1, 2 * this.options.threads);
    const running: Promise<EncodedPart>[] = [];
    for (const part of parts) {
      const started = this.one(part);
      // An earlier part's failure is thrown first; this one must not count as unhandled.
      started.catch(() => {});
      running.push(started);
      if (running.length >= ahead) yield await required(running.shift());
    }
    for (const part of running) yield await part;
  }

  /** Ends all threads. Unfinished parts fail. */
  close(): Promise<void> {
    return this.pool.close();
  }

  private async one(part: FilePart): Promise<EncodedPart> {
    const { cache, settings, tokenizer } = this.options;
    if (cache === null) return this.fresh(part);
    const name = cacheName(part, tokenizer, settings);
    const cached = readCached(cache, name);
    if (cached !== null) return cached;
    const encoded = await this.fresh(part);
    writeCached(cache, name, encoded);
    return encoded;
  }

  private async fresh(part: FilePart): Promise<EncodedPart> {
    const { settings, threads, tokenizer } = this.options;
    if (threads === 0) return encodePart(part, tokenizer, settings);
    return this.pool.ask(part, (got) => lost(part, got));
  }
}

function lost({ path, start }: FilePart, got: string): DsError {
  const op = `encoding of ${path} from ${start}`;
  const hint = 'Give fewer threads where memory is short, or threads: 0 to see what happens.';
  return dataError(op, 'the tokens from its thread', got, hint);
}
