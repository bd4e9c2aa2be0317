// Datasets that yield samples one after another, and how worker threads build them.
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

/** Samples one after another: an array, a generator, or a stream. */
export type Samples<Sample> = Iterable<Sample | Promise<Sample>> | AsyncIterable<Sample>;

/**
 * A dataset without a known length, for IterableLoader. Every rank and every worker iterates all
 * samples and keeps some of them. So the samples may depend only on the epoch.
 */
export interface IterableDataset<Sample> {
  /** Returns all samples of an epoch. The first epoch is 0. */
  iterate(epoch: number): Samples<Sample>;
  /**
   * Returns the samples of an epoch from index `start` on. Without this method, a resumed loader
   * reads and skips the samples before `start`.
   */
  iterateFrom?(epoch: number, start: number): Samples<Sample>;
  /**
   * How a worker thread builds this dataset. Without it, only the calling thread can read samples.
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
 * Throws DS_ARGUMENT unless `value` has iterate(). A generator object has no iterate(), because it
 * can be iterated only once.
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

/** The module and the export that build an iterable dataset. */
export type WorkerIterableOptions = Omit<WorkerDatasetOptions, 'length'>;

/**
 * Returns a dataset that each worker thread builds: it calls the export of the module with `args`,
 * which returns the dataset or a promise of it. The calling thread builds it only if it needs
 * samples. Throws DS_ARGUMENT if an option is unknown or invalid. The first read throws DS_ARGUMENT
 * if the module or the export does not exist.
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

/**
 * Returns the samples from index `start` on. Reads and skips earlier ones if the dataset cannot
 * start there.
 */
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
 * Builds the dataset of `source` in a worker thread, numbered or iterable. Throws DS_ARGUMENT if
 * the module lacks the function, or if the function returns no dataset.
 */
export async function buildAnyDataset(
  source: DatasetSource,
): Promise<Dataset<unknown> | IterableDataset<unknown>> {
  const built = await callExport(await importModule(source), source);
  return isIterableDataset(built) ? built : requireDataset(built, source);
}
