// Entry of a worker thread: builds the dataset, then makes the batches that the loader's thread
// requests.
import { types } from 'node:util';
import { workerData } from 'node:worker_threads';

import type { Dataset } from './dataset.js';
import { type HostBatch, stackSamples } from './host-array.js';
import { buildAnyDataset, type IterableDataset, isIterableDataset } from './iterable-dataset.js';
import { RoundReader } from './round-reader.js';
import { isTensor, tensorInWorkerError } from './structure.js';
import {
  type Job,
  Phase,
  type Reply,
  type Round,
  Signal,
  serializeError,
  type Work,
  type WorkerSetup,
} from './worker-protocol.js';

const { worker, source, signal: words, port } = workerData as WorkerSetup;
const signal = Signal.of(words);

function postReply(reply: Reply, transfer: ArrayBuffer[] = []): void {
  port.postMessage(reply, transfer);
  signal.raise();
}

/** Starts all samples first, then awaits the promises among them, so that they run concurrently. */
async function fetchAll(dataset: Dataset<unknown>, indices: Uint32Array): Promise<unknown[]> {
  const started: unknown[] = [];
  for (const index of indices) {
    signal.setPhase(worker, Phase.sample, index);
    const sample = dataset.get(index);
    // If an earlier sample fails, this promise is not awaited. Without a handler, its rejection
    // would end the thread.
    if (types.isPromise(sample)) sample.catch(() => {});
    started.push(sample);
  }
  const samples: unknown[] = [];
  for (const [i, sample] of started.entries()) {
    if (types.isPromise(sample)) signal.setPhase(worker, Phase.sample, indices[i]);
    samples.push(types.isPromise(sample) ? await sample : sample);
  }
  return samples;
}

/**
 * Copies a sample so that its arrays own their memory, and adds the memory to `buffers`. The caller
 * transfers it to the loader's thread.
 */
function copySample(value: unknown, buffers: ArrayBuffer[]): unknown {
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
    const copy = Uint8Array.prototype.slice.call(
      new Uint8Array(value.buffer, value.byteOffset, value.byteLength),
    );
    buffers.push(copy.buffer);
    const Type = value.constructor as new (buffer: ArrayBufferLike) => unknown;
    return value instanceof Buffer ? copy : new Type(copy.buffer);
  }
  if (Array.isArray(value)) return value.map((item) => copySample(item, buffers));
  if (value === null || typeof value !== 'object') return value;
  if (isTensor(value)) throw tensorInWorkerError('sample');
  if (Object.getPrototypeOf(value) !== Object.prototype) return value;
  const parts = Object.entries(value).map(([key, item]) => [key, copySample(item, buffers)]);
  return Object.fromEntries(parts);
}

/** Returns the samples of a batch; null after the last batch. */
type FetchSamples = (work: Work) => Promise<unknown[] | null>;

function createFetch(dataset: Dataset<unknown> | IterableDataset<unknown>): FetchSamples {
  if (!isIterableDataset(dataset)) return (work) => fetchAll(dataset, work as Uint32Array);
  const reader = new RoundReader(dataset, (sample) =>
    signal.setPhase(worker, Phase.sample, sample),
  );
  return (work) => reader.readAsync(work as Round);
}

async function serveJob(fetch: FetchSamples, { id, work, raw }: Job): Promise<void> {
  try {
    const samples = await fetch(work);
    if (samples === null) {
      postReply({ id, isEnd: true });
      return;
    }
    signal.setPhase(worker, Phase.batch, 'start' in work ? work.start : work[0]);
    const buffers: ArrayBuffer[] = [];
    if (raw)
      postReply({ id, samples: samples.map((sample) => copySample(sample, buffers)) }, buffers);
    else {
      const batch: HostBatch = stackSamples(samples);
      for (const { values } of batch.arrays) buffers.push(values.buffer as ArrayBuffer);
      postReply({ id, batch }, buffers);
    }
  } catch (error) {
    postReply({ id, failure: serializeError(error, signal.describeActivity(worker)) });
  } finally {
    signal.setPhase(worker, Phase.idle);
  }
}

async function serveJobs(): Promise<void> {
  signal.setPhase(worker, Phase.start);
  const dataset = buildAnyDataset(source).then(createFetch);
  dataset.then(
    () => signal.setPhase(worker, Phase.idle),
    () => {},
  );
  let previous: Promise<void> = Promise.resolve();
  port.on('message', (job: Job) => {
    previous = previous
      .then(() => dataset)
      .then(
        (ready) => serveJob(ready, job),
        (error) =>
          postReply({ id: job.id, failure: serializeError(error, 'building its dataset') }),
      );
  });
}

void serveJobs();
