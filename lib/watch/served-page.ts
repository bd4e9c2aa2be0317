// Serves the page of a run from a separate thread.
import type { Worker } from 'node:worker_threads';

import { DsError } from '../errors.js';
import { startFailure, startThread } from '../runtime/thread.js';
import type { WatchServerOptions } from './server.js';
import type { ThreadAnswer } from './watch-thread.js';

/** Maximum heap of the thread in MB. Above it the page ends, and training continues. */
const HEAP_MB = 512;

/**
 * A page that is served until close(), or until the process ends. It does not keep the process
 * alive.
 */
export class ServedPage {
  private closing: Promise<void> | null = null;

  private constructor(
    private readonly worker: Worker,
    /** Address with the token, for a browser. */
    readonly url: string,
  ) {}

  /**
   * Starts the thread. Rejects with DS_IO if the port is not free, DS_LIMIT if the thread cannot
   * start.
   */
  static async start(options: WatchServerOptions): Promise<ServedPage> {
    let worker: Worker;
    try {
      worker = startThread(__dirname, 'watch-thread', options, {
        maxOldGenerationSizeMb: HEAP_MB,
      });
    } catch (cause) {
      throw startFailure('watch', cause);
    }
    const answer = await waitForAnswer(worker);
    if ('failure' in answer) throw new DsError(answer.failure);
    worker.on('error', (error) => {
      const warning = `The page of ds watch ended, and training continues: ${error.message}`;
      process.emitWarning(warning, { type: 'DsWarning', code: 'DS_MONITOR' });
    });
    worker.unref();
    return new ServedPage(worker, answer.url);
  }

  /** Ends the server and its connections. */
  close(): Promise<void> {
    this.closing ??= new Promise((resolve) => {
      this.worker.once('exit', () => resolve());
      this.worker.ref();
      this.worker.postMessage('close');
    });
    return this.closing;
  }
}

function waitForAnswer(worker: Worker): Promise<ThreadAnswer> {
  return new Promise((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('error', (cause) => reject(startFailure('watch', cause)));
    worker.once('exit', (code) => {
      const got = `exit code ${code}`;
      reject(new DsError({ code: 'DS_INTERNAL', op: 'watch', expected: 'a server', got }));
    });
  });
}
