// Parts of files to tokens, in the order of the parts: from the cache, on this thread, or on others
// ahead of the reader.
import type { Worker } from 'node:worker_threads';

import { DsError, type DsErrorFields } from '../errors.js';
import { startThread } from '../runtime/thread.js';
import {
  cacheName,
  type EncodedPart,
  encodePart,
  readCached,
  writeCached,
} from './encoded-part.js';
import type { RowSettings } from './row-encoder.js';
import type { FilePart } from './row-files.js';
import type { Tokenizer } from './tokenizer.js';

/** What a thread is started with. */
export interface EncodeSetup {
  /** The tokenizer's. */
  folder: string;
  settings: RowSettings;
}

/** What a thread says of a part. */
export type EncodeReply = { encoded: EncodedPart } | { failure: DsErrorFields };

export interface PoolOptions {
  tokenizer: Tokenizer;
  settings: RowSettings;
  threads: number;
  /** Folder of the token cache; null for none. */
  cache: string | null;
  /** Milliseconds that a thread may take for one part. */
  timeoutMs: number;
}

/** Threads are started when a part needs one, and ended by close(). */
export class EncodePool {
  private readonly idle: EncodeThread[] = [];
  private readonly all: EncodeThread[] = [];
  /** Those who wait for a thread to be free. */
  private readonly waiting: (() => void)[] = [];
  private isClosed = false;

  constructor(private readonly options: PoolOptions) {}

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
      if (running.length >= ahead) yield await (running.shift() as Promise<EncodedPart>);
    }
    for (const part of running) yield await part;
  }

  /** What is still asked of it fails; no thread starts from now on. */
  async close(): Promise<void> {
    this.isClosed = true;
    for (const wake of this.waiting.splice(0)) wake();
    await Promise.all(this.all.splice(0).map((thread) => thread.end()));
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
    const thread = await this.freeThread(part);
    try {
      return await thread.encode(part, this.options.timeoutMs);
    } finally {
      this.idle.push(thread);
      this.waiting.shift()?.();
    }
  }

  private async freeThread(part: FilePart): Promise<EncodeThread> {
    while (!this.isClosed && this.idle.length === 0 && this.all.length >= this.options.threads) {
      await new Promise<void>((resolve) => this.waiting.push(resolve));
    }
    if (this.isClosed) throw lost(part, 'a pool that was closed');
    const free = this.idle.pop();
    if (free) return free;
    const { settings, tokenizer } = this.options;
    const made = new EncodeThread({ folder: tokenizer.folder, settings });
    this.all.push(made);
    return made;
  }
}

/** One thread, which encodes one part at a time. */
class EncodeThread {
  private readonly worker: Worker;
  private ended: string | null = null;

  constructor(setup: EncodeSetup) {
    this.worker = startThread(__dirname, 'encode-thread', setup);
    this.worker.on('error', (error) => {
      this.ended = error.message;
    });
    this.worker.on('exit', (code) => {
      this.ended ??= `exit code ${code}`;
    });
    this.worker.unref();
  }

  encode(part: FilePart, timeoutMs: number): Promise<EncodedPart> {
    return new Promise((resolve, reject) => {
      const finish = (body: () => void): void => {
        clearTimeout(timer);
        this.worker.off('message', onMessage).off('exit', onExit);
        this.worker.unref();
        body();
      };
      const onMessage = (reply: EncodeReply): void =>
        finish(() => {
          if ('encoded' in reply) resolve(reply.encoded);
          else reject(new DsError(reply.failure));
        });
      const onExit = (): void => finish(() => reject(lost(part, this.ended ?? 'it ended')));
      const timer = setTimeout(() => {
        this.ended = `nothing for ${timeoutMs} ms`;
        void this.worker.terminate();
        onExit();
      }, timeoutMs);
      if (this.ended !== null) {
        onExit();
        return;
      }
      this.worker.ref();
      this.worker.on('message', onMessage).on('exit', onExit);
      this.worker.postMessage(part);
    });
  }

  async end(): Promise<void> {
    await this.worker.terminate();
  }
}

function lost({ path, start }: FilePart, got: string): DsError {
  const op = `encoding of ${path} from ${start}`;
  const hint = 'Give fewer threads where memory is short, or threads: 0 to see what happens.';
  return new DsError({ code: 'DS_DATA', op, expected: 'the tokens from its thread', got, hint });
}
