// Entry of the thread that serves the watch page, because training blocks the event loop of its own
// thread.
import { parentPort, workerData } from 'node:worker_threads';

import { DsError, type DsErrorFields } from '../errors.js';
import { WatchServer, type WatchServerOptions } from './server.js';

/** The first message of the thread. */
export type ThreadAnswer = { url: string } | { failure: DsErrorFields };

const port = parentPort;

WatchServer.start(workerData as WatchServerOptions).then(
  (server) => {
    port?.once('message', () => {
      void server.close().then(() => port.close());
    });
    port?.postMessage({ url: server.url } satisfies ThreadAnswer);
  },
  (error: unknown) => {
    const { code, op, expected, got, hint } =
      error instanceof DsError
        ? error
        : new DsError({
            code: 'DS_INTERNAL',
            op: 'watch',
            expected: 'a server',
            got: String(error),
          });
    port?.postMessage({ failure: { code, op, expected, got, hint } } satisfies ThreadAnswer);
    port?.close();
  },
);
