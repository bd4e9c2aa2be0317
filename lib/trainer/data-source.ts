// The types of a Trainer's data: samples, which it distributes to ranks, or batches of each rank.
import type { Dataset, IterableDataset } from '../data/index.js';
import type { Stateful } from '../engine/engine-parts.js';
import type { Device } from '../runtime/device.js';
import { valueError } from '../runtime/input-errors.js';

/** A source of micro-batches in its own order, such as a TextStream or a DataLoader. */
export interface BatchSource<Batch> extends AsyncIterable<Batch>, Partial<Stateful> {
  /**
   * Number of micro-batches of an epoch on this rank. If it is absent, the Trainer requires
   * `maxSteps`.
   */
  readonly length?: number;
  /** Ends threads and frees other resources. */
  close?(): Promise<void>;
}

/** The argument of a function that opens data: rank, batch size, device and seed. */
export interface DataPlace {
  /** Index of this rank among the data ranks. */
  rank: number;
  /** Number of data ranks. */
  worldSize: number;
  /** Number of samples per micro-batch. */
  batchSize: number;
  /**
   * Device for the batches. The Trainer counts targets there, then moves the batches to the
   * engine's device.
   */
  device: Device;
  /** Seed of the order. */
  seed: number;
  /**
   * Number of ranks that split the tokens of each sample (sequence_parallel_size). Lengths must be
   * multiples of it.
   */
  tokenRanks: number;
}

/**
 * The data of a Trainer: samples, which it distributes to ranks; or a source of this rank's
 * batches; or a function that opens either.
 */
export type TrainerData<Sample, Batch> =
  | Served<Sample, Batch>
  | ((place: DataPlace) => Served<Sample, Batch> | Promise<Served<Sample, Batch>>);

/** Samples by index, a stream of samples, or a source of batches. */
export type Served<Sample, Batch> = Dataset<Sample> | IterableDataset<Sample> | BatchSource<Batch>;

const SERVABLE =
  'a dataset (length and get(), or iterate()), an async iterable of batches, or a function';

/** Returns whether a Trainer can use `value` as data. */
export function isServable(value: unknown): boolean {
  if (typeof value === 'function') return true;
  if (typeof value !== 'object' || value === null) return false;
  return 'get' in value || 'iterate' in value || Symbol.asyncIterator in value;
}

/** Returns `data`. Throws DS_ARGUMENT for the operation `op` unless a Trainer can use it. */
export function requireData<Data>(op: string, data: Data): Data {
  if (isServable(data)) return data;
  throw valueError(op, SERVABLE, data, hintFor(data));
}

function hintFor(data: unknown): string {
  if (Array.isArray(data)) return 'For an array: { length: list.length, get: (i) => list[i] }.';
  if (typeof data !== 'string') return '';
  return 'For files: await text.TextDataset.open({ files, tokenizer, length: 1024 }).';
}
