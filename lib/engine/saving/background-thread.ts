// The thread of one asynchronous save. It synchronizes with the threads of other ranks, writes the
// files and commits.
import { parentPort, workerData } from 'node:worker_threads';

import { Save, soloWorld } from '../../checkpoint/index.js';
import { Job } from '../../runtime/job.js';
import {
  type BackgroundAnswer,
  type BackgroundJob,
  failureOf,
  takeContent,
} from './background-job.js';
import { releaseShards } from './engine-shards.js';
import { StoreWorld } from './store-world.js';

const job = workerData as BackgroundJob;

function post(answer: BackgroundAnswer): void {
  parentPort?.postMessage(answer);
}

/**
 * Marks the end of the save when this thread ends for any reason. At process exit, the main thread
 * waits for this mark without an event loop.
 */
process.on('exit', () => {
  Atomics.store(job.ended, 0, 1);
  Atomics.notify(job.ended, 0);
});

// The main thread emits the warnings, so this thread must not print them.
process.removeAllListeners('warning');
process.on('warning', (warning: Error & { code?: string }) => {
  const { message, name, code } = warning;
  post({ warning: { message, name, code } });
});

async function save(): Promise<string> {
  const { target, world: offered } = job;
  const content = takeContent(job);
  try {
    const world = offered ? StoreWorld.take(offered, Job.take(offered.offer)) : soloWorld;
    const save = await Save.begin(world, target);
    post({ begun: save.path });
    return await save.write(content);
  } finally {
    releaseShards(content.model);
    releaseShards(content.optimizer);
  }
}

save().then(
  (written) => post({ written }),
  (error: unknown) => post({ failure: failureOf(error) }),
);
