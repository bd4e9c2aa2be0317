// Entry of the supervisor thread. It starts the workers and reports their ends to the loader's
// thread. That thread cannot do it itself, because it receives no events while it blocks.
import { extname, join } from 'node:path';
import { Worker, workerData } from 'node:worker_threads';

import { Signal, type SupervisorSetup, serializeError, type WorkerEnd } from './worker-protocol.js';

const { workers, signal: words, control, thread } = workerData as SupervisorSetup;
const signal = Signal.of(words);
const entry = join(__dirname, `worker${extname(__filename)}`);

function report(end: WorkerEnd): void {
  control.postMessage(end);
  signal.raise();
}

for (const setup of workers) {
  const { worker, port } = setup;
  try {
    new Worker(entry, { ...thread, workerData: setup, transferList: [port] })
      .on('error', (error) => {
        report({
          worker,
          error: serializeError(error, signal.describeActivity(worker)),
          exitCode: null,
        });
      })
      .on('exit', (exitCode) => report({ worker, error: null, exitCode }));
  } catch (error) {
    report({ worker, error: serializeError(error, 'starting'), exitCode: null });
  }
}
