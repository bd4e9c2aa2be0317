// A worker that makes failing native calls in an endless loop until it is terminated.
import { createRequire } from 'node:module';
import { parentPort, workerData } from 'node:worker_threads';

const addon = createRequire(import.meta.url)(workerData.addon);
const block = new Float64Array(512).fill(77); // an invalid handle
addon.setArguments(block);
const stream = addon.open(0);
parentPort.postMessage('ready');
const run = (op) => {
  block[510] = stream;
  block[511] = op;
  addon.run();
};
const failing = [
  () => run(0),
  () => addon.runOnHost(0, stream),
  () => addon.allocate(),
  () => run(1e6),
  () => addon.read(77, 0, new Uint8Array(1), stream),
  () => addon.memoryStats(0),
  () => addon.deviceInfo(99),
  () => addon.checksumFile('/no/such/file').catch(() => {}),
];
const calls = workerData.asynchronous ? failing : failing.slice(0, -1);
const round = () => {
  for (let i = 0; i < 2000; ++i) {
    try {
      calls[i % calls.length]();
    } catch {
      // That it fails is the point.
    }
  }
};
if (workerData.asynchronous) setInterval(round, 0);
else for (;;) round();
