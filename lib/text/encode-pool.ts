// Encodes parts of files in order: from the cache, on this thread, or on worker threads that run
// ahead of the reader.

import { createHash } from 'node:crypto';
import { closeSync, constants, fstatSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { DsError } from '../errors.js';
import { dataError } from '../runtime/input-errors.js';
import { makeFolderNow } from '../runtime/make-folder.js';
import { required } from '../runtime/required.js';
import { errorMessage } from '../runtime/system-error.js';
import { ThreadPool } from '../runtime/thread-pool.js';
import { writeOwn } from '../runtime/whole-file.js';
import { type EncodedPart, encodePart } from './encoded-part.js';
import type { RowSettings } from './row-encoder.js';
import type { FilePart } from './row-files.js';
import type { Tokenizer } from './tokenizer.js';

/** The `workerData` of a worker thread. */
export interface EncodeSetup {
  /** The folder of the tokenizer. */
  folder: string;
  /** Chat template that replaces that of the folder, or null. */
  ownTemplate: string | null;
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

/** Encodes parts on threads, which start when they are needed; close() ends them. */
export class EncodePool {
  private readonly pool: ThreadPool<FilePart, EncodedPart>;

  constructor(private readonly options: PoolOptions) {
    const { tokenizer, settings, threads, timeoutMs } = options;
    const { folder, ownTemplate } = tokenizer;
    const data: EncodeSetup = { folder, ownTemplate, settings };
    const entry = { folder: __dirname, entry: 'encode-thread', data };
    this.pool = new ThreadPool({ ...entry, threads, timeoutMs });
  }

  /**
   * Yields encoded parts in order. At most two parts per thread are in progress. Throws DS_DATA
   * with file and line.
   */
  async *encode(parts: Iterable<FilePart>): AsyncGenerator<EncodedPart> {
    const ahead = Math.max(1, 2 * this.options.threads);
    const running: Promise<EncodedPart>[] = [];
    for (const part of parts) {
      const started = this.encodePart(part);
      // The reader gets an earlier part's error first; this one must not count as unhandled.
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

  private async encodePart(part: FilePart): Promise<EncodedPart> {
    const { cache, settings, tokenizer } = this.options;
    if (cache === null) return this.encodeFresh(part);
    const name = cacheName(part, tokenizer, settings);
    const cached = readCached(cache, name);
    if (cached !== null) return cached;
    const encoded = await this.encodeFresh(part);
    writeCached(cache, name, encoded);
    return encoded;
  }

  private async encodeFresh(part: FilePart): Promise<EncodedPart> {
    const { settings, threads, tokenizer } = this.options;
    if (threads === 0) return encodePart(part, tokenizer, settings);
    return this.pool.ask(part, (got) => lostError(part, got));
  }
}

function lostError({ path, start }: FilePart, got: string): DsError {
  const op = `encoding of ${path} from ${start}`;
  const hint = 'Set fewer threads if memory is short, or threads: 0 to see the error of this part.';
  return dataError(op, 'tokens from the thread of this part', got, hint);
}

// The token cache stores each encoded part in a file named by a hash of its inputs.

/** Raise it when the format of cache files changes, or when rows get other tokens. */
const VERSION = 4;
/** Bytes of the digest at the start of a file; it covers the remaining bytes. */
const DIGEST = 32;
/** Pattern of the names that cacheName() returns. */
const NAME = /^[0-9a-f]{32}\.tokens$/;
/**
 * 32-bit words after the digest: rows, empty, unlearned, blurred, unended, number of kept rows,
 * number of tokens.
 */
const HEADER_WORDS = 7;
type HeaderCounts = [number, number, number, number, number, number, number];

/**
 * Returns the file name for a part, from the content of the file, the tokenizer and the settings;
 * paths and dates do not matter.
 */
function cacheName(part: FilePart, tokenizer: Tokenizer, settings: RowSettings): string {
  const { digest, format, start, end, columns } = part;
  const { fingerprint } = tokenizer;
  const key = JSON.stringify({
    ...{ VERSION, digest, format, start, end, fingerprint, settings },
    // Absent without renamed columns.
    columns,
  });
  return `${createHash('sha256').update(key).digest('hex').slice(0, 32)}.tokens`;
}

/** Returns the cached part; null if the file is missing, unreadable or damaged. */
function readCached(folder: string, name: string): EncodedPart | null {
  const bytes = readRegularFile(join(folder, name));
  if (bytes === null || bytes.length < DIGEST + 4 * HEADER_WORDS || bytes.length % 4 !== 0)
    return null;
  const digest = bytes.subarray(0, DIGEST);
  const content = bytes.subarray(DIGEST);
  if (!createHash('sha256').update(content).digest().equals(digest)) return null;
  const words = new Int32Array(
    content.buffer.slice(content.byteOffset, bytes.byteOffset + bytes.length),
  );
  const [rows, empty, unlearned, blurred, unended, count, tokens] =
    words as unknown as HeaderCounts;
  const idsAt = HEADER_WORDS + count;
  const lengths = words.slice(HEADER_WORDS, idsAt);
  const isWhole =
    Math.min(empty, unlearned, blurred, unended, count, tokens) >= 0 &&
    rows === empty + unlearned + count &&
    rows >= Math.max(blurred, unended) &&
    words.length === idsAt + 2 * tokens &&
    lengths.every((length) => length > 0) &&
    lengths.reduce((sum, length) => sum + length, 0) === tokens;
  if (!isWhole) return null;
  return {
    counts: { rows, empty, unlearned, blurred, unended },
    lengths,
    ids: words.slice(idsAt, idsAt + tokens),
    labels: words.slice(idsAt + tokens),
  };
}

/**
 * Returns null unless `path` is a readable regular file; the later write reports the reason. Does
 * not follow links, and does not block on a pipe.
 */
function readRegularFile(path: string): Buffer | null {
  try {
    const { O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = constants;
    const file = openSync(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    try {
      return fstatSync(file).isFile() ? readFileSync(file) : null;
    } finally {
      closeSync(file);
    }
  } catch {
    return null;
  }
}

/**
 * Writes the file atomically and deletes the partial files of dead processes. Throws DS_DATA if the
 * write fails.
 */
function writeCached(folder: string, name: string, part: EncodedPart): void {
  const { counts, ids, labels, lengths } = part;
  const { rows, empty, unlearned, blurred, unended } = counts;
  const header = [rows, empty, unlearned, blurred, unended, lengths.length];
  const head = Int32Array.from([...header, ids.length]);
  const arrays = [head, lengths, ids, labels];
  const content = Buffer.concat(
    arrays.map((a) => Buffer.from(a.buffer, a.byteOffset, a.byteLength)),
  );
  const digest = createHash('sha256').update(content).digest();
  try {
    makeFolderNow(folder);
    const write = (file: number): void => writeFileSync(file, Buffer.concat([digest, content]));
    writeOwn(join(folder, name), write, (other) => NAME.test(other));
  } catch (cause) {
    const hint = 'Set `cache` to a writable folder, or remove the option.';
    throw dataError(folder, 'a writable folder for the token cache', errorMessage(cause), hint);
  }
}
