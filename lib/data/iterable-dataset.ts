// Datasets that yield samples one after another, and their construction in worker threads.
import { valueError } from '../runtime/input-errors.js';
import {
  callExport,
  type Dataset,
  type DatasetSource,
  importModule,
  readSource,
  requireDataset,
  type WorkerDatasetOptions,
} from './dataset.js';

/** Samples one after another: an array, a generator, a stream of lines. */
export type Samples<Sample> = Iterable<Sample | Promise<Sample>> | AsyncIterable<Sample>;

/**
 * A dataset without a known length, for IterableLoader. Every rank and every worker reads all
 * samples and keeps its share, so the samples may depend only on the epoch.
 */
export interface IterableDataset<Sample> {
  /** Returns all samples of an epoch (from 0), from the first one. */
  iterate(epoch: number): Samples<Sample>;
  /**
   * Returns the samples of an epoch from number `start` on. Without it, a resumed loader skips
   * samples.
   */
  iterateFrom?(epoch: number, start: number): Samples<Sample>;
  /**
   * The source from which a worker thread builds this dataset. Without it, only the calling thread
   * can serve the dataset.
   */
  readonly source?: DatasetSource | undefined;
}

/** Returns whether `value` is an object with iterate(). */
export function isIterableDataset<Sample = unknown>(
  value: unknown,
): value is IterableDataset<Sample> {
  return typeof (value as IterableDataset<Sample> | null)?.iterate === 'function';
}

/**
 * Throws DS_ARGUMENT unless `value` has iterate(). A generator object has none, because it can be
 * iterated only once.
 */
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
 * Returns a dataset that each worker thread builds. To build it, a thread calls the `export` of
 * `module` with `args`, which returns the dataset or a promise of it. The calling thread builds it
 * only to read samples itself. Throws DS_ARGUMENT for unknown or invalid options; the first read
 * also throws it for a missing module or export.
 */
export function workerIterable<Sample = unknown>(
  given: WorkerIterableOptions,
): IterableDataset<Sample> {
  const source = readSource('workerIterable', given);
  const readFrom = async function* (
    open: (built: IterableDataset<unknown>) => Samples<unknown>,
  ): AsyncGenerator<Sample> {
    yield* open(await buildIterable(source)) as Samples<Sample>;
  };
  return {
    source,
    iterate: (epoch) => readFrom((built) => built.iterate(epoch)),
    iterateFrom: (epoch, start) => readFrom((built) => samplesFrom(built, epoch, start)),
  };
}

/** Returns the samples from number `start` on; skips samples if the dataset cannot start there. */
function samplesFrom<Sample>(
  dataset: IterableDataset<Sample>,
  epoch: number,
  start: number,
): Samples<Sample> {
  return dataset.iterateFrom?.(epoch, start) ?? skipSamples(dataset.iterate(epoch), start);
}

async function* skipSamples<Sample>(
  samples: Samples<Sample>,
  start: number,
): AsyncGenerator<Sample> {
  let at = 0;
  for await (const sample of samples) if (at++ >= start) yield sample;
}

async function buildIterable(source: DatasetSource): Promise<IterableDataset<unknown>> {
  const built = await callExport(await importModule(source), source);
  if (isIterableDataset(built)) return built;
  throw valueError(`dataset of ${source.module}`, 'a dataset with iterate(epoch)', built);
}

/**
 * Builds the dataset of `source`, of either kind, in a worker thread. Throws DS_ARGUMENT if the
 * module lacks the function, or returns no dataset.
 */
export async function buildAnyDataset(
  source: DatasetSource,
): Promise<Dataset<unknown> | IterableDataset<unknown>> {
  const built = await callExport(await importModule(source), source);
  return isIterableDataset(built) ? built : requireDataset(built, source);
}
