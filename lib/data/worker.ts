// The entry of a worker thread: builds the dataset, then turns lists of indices into batches.
import { types } from 'node:util';
import { workerData } from 'node:worker_threads';

import type { Dataset } from './dataset.js';
import { type HostBatch, stackSamples } from './host-array.js';
import { buildServed, type IterableDataset, isIterableDataset } from './iterable-dataset.js';
import { RoundReader } from './round-reader.js';
import { isTensor, tensorOf } from './structure.js';
import {
  failureOf,
  type Job,
  Phase,
  type Reply,
  type Round,
  Signal,
  type Work,
  type WorkerSetup,
} from './worker-protocol.js';

const { worker, source, signal: words, port } = workerData as WorkerSetup;
const signal = Signal.of(words);

function say(reply: Reply, transfer: ArrayBuffer[] = []): void {
  port.postMessage(reply, transfer);
  signal.raise();
}

/** Starts all samples, then awaits the promises among them. */
async function fetchAll(dataset: Dataset<unknown>, indices: Uint32Array): Promise<unknown[]> {
  const started: unknown[] = [];
  for (const index of indices) {
    signal.mark(worker, Phase.sample, index);
    const sample = dataset.get(index);
    // An earlier sample's failure is reported first; this one must not count as unhandled.
    if (types.isPromise(sample)) sample.catch(() => {});
    started.push(sample);
  }
  const samples: unknown[] = [];
  for (const [i, sample] of started.entries()) {
    if (types.isPromise(sample)) signal.mark(worker, Phase.sample, indices[i]);
    samples.push(types.isPromise(sample) ? await sample : sample);
  }
  return samples;
}

/** Copies a sample into arrays that own their memory; the memory is then transferred. */
function owned(value: unknown, memory: ArrayBuffer[]): unknown {
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
    const copy = Uint8Array.prototype.slice.call(
      new Uint8Array(value.buffer, value.byteOffset, value.byteLength),
    );
    memory.push(copy.buffer);
    const Type = value.constructor as new (buffer: ArrayBufferLike) => unknown;
    return value instanceof Buffer ? copy : new Type(copy.buffer);
  }
  if (Array.isArray(value)) return value.map((item) => owned(item, memory));
  if (value === null || typeof value !== 'object') return value;
  if (isTensor(value)) throw tensorOf('sample');
  if (Object.getPrototypeOf(value) !== Object.prototype) return value;
  const parts = Object.entries(value).map(([key, item]) => [key, owned(item, memory)]);
  return Object.fromEntries(parts);
}

/** Gets the samples of a batch; null behind the last. */
type Fetch = (work: Work) => Promise<unknown[] | null>;

function fetchFrom(dataset: Dataset<unknown> | IterableDataset<unknown>): Fetch {
  if (!isIterableDataset(dataset)) return (work) => fetchAll(dataset, work as Uint32Array);
  const reader = new RoundReader(dataset, (sample) => signal.mark(worker, Phase.sample, sample));
  return (work) => reader.readAsync(work as Round);
}

async function serve(fetch: Fetch, { id, work, raw }: Job): Promise<void> {
  try {
    const samples = await fetch(work);
    if (samples === null) {
      say({ id, isEnd: true });
      return;
    }
    signal.mark(worker, Phase.batch, 'start' in work ? work.start : work[0]);
    const memory: ArrayBuffer[] = [];
    if (raw) say({ id, samples: samples.map((sample) => owned(sample, memory)) }, memory);
    else {
      const batch: HostBatch = stackSamples(samples);
      for (const { values } of batch.arrays) memory.push(values.buffer as ArrayBuffer);
      say({ id, batch }, memory);
    }
  } catch (error) {
    say({ id, failure: failureOf(error, signal.activity(worker)) });
  } finally {
    signal.mark(worker, Phase.idle);
  }
}

async function run(): Promise<void> {
  signal.mark(worker, Phase.start);
  const dataset = buildServed(source).then(fetchFrom);
  dataset.then(
    () => signal.mark(worker, Phase.idle),
    () => {},
  );
  let last: Promise<void> = Promise.resolve();
  port.on('message', (job: Job) => {
    last = last
      .then(() => dataset)
      .then(
        (ready) => serve(ready, job),
        (error) => say({ id: job.id, failure: failureOf(error, 'building its dataset') }),
      );
  });
}

void run();
