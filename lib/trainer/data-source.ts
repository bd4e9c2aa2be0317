// Types of a Trainer's data: samples that it distributes to ranks, or batches of each rank.
import type { Dataset, IterableDataset } from '../data/index.js';
import type { Stateful } from '../engine/engine-parts.js';
import type { Device } from '../runtime/device.js';
import { valueError } from '../runtime/input-errors.js';

/** Micro-batches in a given order, such as a TextStream or a DataLoader. */
export interface BatchSource<Batch> extends AsyncIterable<Batch>, Partial<Stateful> {
  /** Number of micro-batches of an epoch on this rank. Without it, `maxSteps` must be given. */
  readonly length?: number;
  /** Ends threads and other resources of the data. */
  close?(): Promise<void>;
}

/** Rank and batch size for which data are opened. */
export interface DataPlace {
  /** Number of this rank among the data ranks. */
  rank: number;
  /** Number of data ranks. */
  worldSize: number;
  /** Number of samples per micro-batch. */
  batchSize: number;
  /** Device for the batches. The Trainer counts their targets there, then moves them. */
  device: Device;
  /** Seed of the order. */
  seed: number;
  /**
   * Number of ranks that share each sample (sequence_parallel_size); each has the same number of
   * tokens.
   */
  tokenRanks: number;
}

/**
 * A dataset or a stream of samples, which the Trainer distributes to ranks; or a source of this
 * rank's batches; or a function that opens one of them.
 */
export type TrainerData<Sample, Batch> =
  | Served<Sample, Batch>
  | ((place: DataPlace) => Served<Sample, Batch> | Promise<Served<Sample, Batch>>);

/** Samples by index, a stream of samples, or batches. */
export type Served<Sample, Batch> = Dataset<Sample> | IterableDataset<Sample> | BatchSource<Batch>;

const SERVABLE =
  'a dataset (length and get(), or iterate()), an async iterable of batches, or a function';

/** Returns whether a Trainer can open `value`. */
export function isServable(value: unknown): boolean {
  if (typeof value === 'function') return true;
  if (typeof value !== 'object' || value === null) return false;
  return 'get' in value || 'iterate' in value || Symbol.asyncIterator in value;
}

/** Returns `data`. Throws DS_ARGUMENT with `op` unless a Trainer can open it. */
export function requireData<Data>(op: string, data: Data): Data {
  if (isServable(data)) return data;
  throw valueError(op, SERVABLE, data, hintFor(data));
}

function hintFor(data: unknown): string {
  if (Array.isArray(data)) return 'For an array: { length: list.length, get: (i) => list[i] }.';
  if (typeof data !== 'string') return '';
  return 'For files: await text.TextDataset.open({ files, tokenizer, length: 1024 }).';
}
