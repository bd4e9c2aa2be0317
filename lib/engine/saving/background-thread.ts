// The thread of one asynchronous save: agrees with the other ranks' threads, writes, commits, and
// ends.
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

function say(answer: BackgroundAnswer): void {
  parentPort?.postMessage(answer);
}

/** Whoever waits without an event loop is woken, however this thread ends. */
process.on('exit', () => {
  Atomics.store(job.ended, 0, 1);
  Atomics.notify(job.ended, 0);
});

// A warning is the program's to handle, not this thread's to print.
process.removeAllListeners('warning');
process.on('warning', (warning: Error & { code?: string }) => {
  const { message, name, code } = warning;
  say({ warning: { message, name, code } });
});

async function save(): Promise<string> {
  const { target, seat } = job;
  const content = takeContent(job);
  try {
    const world = seat ? StoreWorld.at(seat, Job.take(seat.offer)) : soloWorld;
    const begun = await Save.begin(world, target);
    say({ begun: begun.path });
    return await begun.write(content);
  } finally {
    releaseShards(content.model);
    releaseShards(content.optimizer);
  }
}

save().then(
  (written) => say({ written }),
  (error: unknown) => say({ failure: failureOf(error) }),
);
