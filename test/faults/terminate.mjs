// Terminates workers in the midst of failing native calls: node test/faults/terminate.mjs [TIMES]
// [ADDON].
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';

const here = fileURLToPath(new URL('.', import.meta.url));
const times = Number(process.argv[2] ?? 500);
const addon =
  process.argv[3] ??
  process.env.DS_NATIVE_BINDING ??
  join(here, '../../build/Release/ds_native.node');

async function once(round) {
  const workerData = { addon, asynchronous: round % 4 === 0 };
  const worker = new Worker(join(here, 'terminate-worker.mjs'), { workerData });
  await new Promise((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('error', reject);
  });
  await new Promise((resolve) => setTimeout(resolve, Math.random() * 10));
  await worker.terminate();
}

for (let round = 0; round < times; ++round) await once(round);
console.log(`${times} workers terminated`);
