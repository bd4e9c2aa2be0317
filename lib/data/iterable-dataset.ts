// Datasets that yield samples in turn, and their construction in worker threads.
import { valueError } from '../runtime/input-errors.js';
import {
  callExport,
  type Dataset,
  type DatasetSource,
  requireDataset,
  required,
  sourceOf,
  type WorkerDatasetOptions,
} from './dataset.js';

/** Samples in turn: an array, a generator, a stream of lines. */
export type Samples<Sample> = Iterable<Sample | Promise<Sample>> | AsyncIterable<Sample>;

/**
 * Samples without a known number, for IterableLoader. Every rank and every worker reads all samples
 * and keeps its own, so the samples may depend only on the epoch.
 */
export interface IterableDataset<Sample> {
  /** Returns all samples of an epoch (from 0), from the first one. */
  iterate(epoch: number): Samples<Sample>;
  /**
   * Returns the samples of an epoch from number `start` on. Without it, a resumed loader skips
   * samples.
   */
  iterateFrom?(epoch: number, start: number): Samples<Sample>;
  /** How a worker thread builds this dataset; without it only the calling thread can serve it. */
  readonly source?: DatasetSource | undefined;
}

/** Returns whether `value` is an object with iterate(). */
export function isIterableDataset<Sample = unknown>(
  value: unknown,
): value is IterableDataset<Sample> {
  return typeof (value as IterableDataset<Sample> | null)?.iterate === 'function';
}

/** Throws DS_ARGUMENT, also for a generator, which can be gone through but once. */
export function requireIterableDataset(value: unknown): void {
  if (isIterableDataset(value)) return;
  throw valueError(
    'IterableLoader',
    'a dataset with iterate(epoch)',
    value,
    'Write { *iterate(epoch) { yield ...; } }, or async *iterate(epoch). Each epoch calls it.',
  );
}

/** Module and export that build an iterable dataset. */
export type WorkerIterableOptions = Omit<WorkerDatasetOptions, 'length'>;

/**
 * Returns an iterable dataset that each worker thread builds, and the calling thread if it needs
 * one. The `export` of `module`, called with `args`, returns it or a promise of it. Throws
 * DS_ARGUMENT for unknown or invalid options; the first read also throws it for a missing module or
 * export.
 */
export function workerIterable<Sample = unknown>(
  given: WorkerIterableOptions,
): IterableDataset<Sample> {
  const source = sourceOf('workerIterable', given);
  const from = async function* (
    open: (built: IterableDataset<unknown>) => Samples<unknown>,
  ): AsyncGenerator<Sample> {
    yield* open(await buildIterable(source)) as Samples<Sample>;
  };
  return {
    source,
    iterate: (epoch) => from((built) => built.iterate(epoch)),
    iterateFrom: (epoch, start) => from((built) => samplesFrom(built, epoch, start)),
  };
}

/** Samples from number `start` on; skips samples if the dataset cannot start there. */
function samplesFrom<Sample>(
  dataset: IterableDataset<Sample>,
  epoch: number,
  start: number,
): Samples<Sample> {
  return dataset.iterateFrom?.(epoch, start) ?? behind(dataset.iterate(epoch), start);
}

async function* behind<Sample>(samples: Samples<Sample>, start: number): AsyncGenerator<Sample> {
  let at = 0;
  for await (const sample of samples) if (at++ >= start) yield sample;
}

async function buildIterable(source: DatasetSource): Promise<IterableDataset<unknown>> {
  const built = await callExport(await required(source), source);
  if (isIterableDataset(built)) return built;
  throw valueError(`dataset of ${source.module}`, 'a dataset with iterate(epoch)', built);
}

/** In a worker thread: the dataset of `source`, of either kind. Throws DS_ARGUMENT. */
export async function buildServed(
  source: DatasetSource,
): Promise<Dataset<unknown> | IterableDataset<unknown>> {
  const built = await callExport(await required(source), source);
  return isIterableDataset(built) ? built : requireDataset(built, source);
}
