// Opens the training data of a Trainer, and groups the micro-batches of this rank by update.
import type { ResolvedConfig } from '../../types/config.js';
import {
  DataLoader,
  type Dataset,
  DistributedSampler,
  IterableLoader,
  type Sampler,
} from '../data/index.js';
import { isIterableDataset } from '../data/iterable-dataset.js';
import { LengthGroupedSampler } from '../data/length-sampler.js';
import { createSampler, isSampled, noRandomAccessError } from '../engine/data-sampling.js';
import { DsError } from '../errors.js';
import { TaskModel } from '../models/tasks/task-model.js';
import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { requireFinite } from '../runtime/require-number.js';
import {
  collateLabelled,
  collatePairs,
  collateSamples,
  collateUnpaired,
  type TextSample,
  type Tokenizer,
} from '../text/index.js';
import { isLabelledSample } from '../text/labelled-dataset.js';
import { isPairSample } from '../text/pair-dataset.js';
import { isUnpairedSample, type UnpairedSample, withOthers } from '../text/unpaired-dataset.js';
import type { BatchSource, DataPlace, TrainerData } from './data-source.js';
import type { MicroBatch, Objective } from './micro-batch.js';
import type { TrainerSettings } from './read-options.js';

type DataSettings<Sample, Batch> = Pick<TrainerSettings<Sample, Batch>, 'data' | 'tokenizer'> &
  Partial<Pick<TrainerSettings<Sample, Batch>, 'model'>>;

/**
 * Opens training data: a source of batches, or a loader of this rank for a dataset.
 */
export async function openTrainData<Sample, Batch>(
  data: TrainerData<Sample, Batch>,
  settings: DataSettings<Sample, Batch>,
  place: DataPlace,
  config: ResolvedConfig,
): Promise<BatchSource<Batch>> {
  const opened = typeof data === 'function' ? await data(place) : data;
  const { dropLast, collate: own } = settings.data;
  const { rank, worldSize } = place;
  const sampled = isSampled(config);
  const workers = workersOf(settings, config);
  if (isIterableDataset<Sample>(opened)) {
    if (sampled) throw noRandomAccessError('Trainer data', 'an iterable dataset');
    requireDataset('sampling', settings, ['random', 'sequential'], 'an iterable dataset');
    const { batchSize, device } = place;
    const shared = { rank, worldSize, batchSize, device, dropLast, collate: own };
    return new IterableLoader(opened, { ...shared, numWorkers: workers });
  }
  if (!isDataset<Sample>(opened)) {
    if (sampled) throw noRandomAccessError('Trainer data', 'batches');
    requireDataset('sampling', settings, ['random'], 'batches');
    requireDataset('workers', settings, [0], 'batches');
    return requireSource(opened);
  }
  if (sampled) requireNoOrder(settings);
  const sampler =
    createSampler(config, opened.length, { rank, worldSize }) ??
    (await ownSampler(opened, settings, place, config));
  const first: unknown = settings.data.collate || opened.length === 0 ? null : await opened.get(0);
  const collate = collateOf(first, settings, place);
  const { device, batchSize } = place;
  const options = { batchSize, device, sampler, dropLast, collate };
  const size = batchSize * worldSize * config.gradient_accumulation_steps;
  const rows = workers === 0 && isUnpairedSample(first) ? othersIn(opened, size) : opened;
  return new DataLoader(rows, { ...options, numWorkers: workers });
}

/**
 * Returns the rows of an UnpairedDataset, each with a mismatched row for kto(); see withOthers().
 * `size`: number of rows of an update.
 */
function othersIn<Sample>(rows: Dataset<Sample>, size: number): Dataset<Sample> {
  if (rows.length < 2) return rows;
  return withOthers(rows as Dataset<unknown> as Dataset<UnpairedSample>, size) as never;
}

/**
 * Throws DS_ARGUMENT if the option has a value that requires a dataset with random access.
 * `obeyed`: the values that do not.
 */
function requireDataset<Sample, Batch>(
  option: 'sampling' | 'workers',
  { data }: DataSettings<Sample, Batch>,
  obeyed: readonly unknown[],
  got: string,
): void {
  if (obeyed.includes(data[option])) return;
  const expected = 'a dataset with length and get(index)';
  const hint = 'Pass such a dataset, or remove the option.';
  throw argumentError(`Trainer data.${option} ${formatValue(data[option])}`, expected, got, hint);
}

/** Returns the number of threads of the loader, from the options or else from the configuration. */
function workersOf<Sample, Batch>(
  { data }: DataSettings<Sample, Batch>,
  config: ResolvedConfig,
): number {
  const { num_workers: workers } = config.data_efficiency.data_sampling;
  return data.workers === 0 && isSampled(config) ? workers : data.workers;
}

/**
 * Throws DS_ARGUMENT if `sampling` is given although data_efficiency.data_sampling sets the order.
 */
function requireNoOrder<Sample, Batch>({ data }: DataSettings<Sample, Batch>): void {
  if (data.sampling === 'random') return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'Trainer data.sampling',
    expected: '"random" with data_efficiency.data_sampling, which chooses the samples',
    got: formatValue(data.sampling),
    hint: 'Remove data.sampling, or disable data_efficiency.data_sampling.',
  });
}

async function ownSampler<Sample, Batch>(
  dataset: Dataset<Sample>,
  { data }: DataSettings<Sample, Batch>,
  { rank, worldSize, seed, batchSize: micro }: DataPlace,
  { gradient_accumulation_steps: accumulation }: ResolvedConfig,
): Promise<Sampler> {
  const { sampling, lengths } = data;
  const share = { rank, worldSize, seed };
  if (sampling !== 'group_by_length') {
    return new DistributedSampler(dataset.length, { ...share, shuffle: sampling === 'random' });
  }
  // The batch of one rank, as in transformers' Trainer: so the order does not depend on the number
  // of ranks.
  const batchSize = micro * accumulation;
  const known = lengths ? requireLengths(lengths, dataset) : await lengthsOf(dataset);
  return new LengthGroupedSampler(known, { ...share, batchSize });
}

/** Returns the collate function for `dataset`; see collateOf(). */
export async function collateFor<Sample, Batch>(
  dataset: Dataset<Sample>,
  settings: DataSettings<Sample, Batch>,
  place: DataPlace,
): Promise<Collate<Sample, Batch> | undefined> {
  const needsSample = !settings.data.collate && dataset.length > 0;
  return collateOf(needsSample ? await dataset.get(0) : null, settings, place);
}

type Collate<Sample, Batch> = (samples: Sample[], device: Device) => Batch;

/**
 * Returns the caller's collate function, or else a function that pads rows of text. Returns
 * undefined for other samples, which the loader stacks. `first`: a sample, or null for an empty
 * dataset.
 */
function collateOf<Sample, Batch>(
  first: unknown,
  { data, tokenizer, model }: DataSettings<Sample, Batch>,
  { tokenRanks }: DataPlace,
): Collate<Sample, Batch> | undefined {
  if (data.collate || first === null) return data.collate;
  if (isLabelledSample(first)) {
    const own = model instanceof TaskModel ? model.padTokenId : null;
    const labelled: unknown = collateLabelled(own ?? padOf(tokenizer));
    return labelled as Collate<Sample, Batch>;
  }
  if (isUnpairedSample(first)) {
    const answers: unknown = collateUnpaired(padOf(tokenizer));
    return answers as Collate<Sample, Batch>;
  }
  if (isPairSample(first)) {
    const own = model instanceof TaskModel ? model.padTokenId : null;
    const pairs: unknown = collatePairs(own ?? padOf(tokenizer));
    return pairs as Collate<Sample, Batch>;
  }
  if (!isTextSample(first)) return undefined;
  const collate: unknown = collateSamples(padOf(tokenizer), tokenRanks);
  return collate as Collate<Sample, Batch>;
}

/**
 * Returns the token that fills shorter rows. Any token is possible, because losses do not count
 * padding.
 */
const padOf = (tokenizer: Tokenizer | null): number => tokenizer?.padId ?? tokenizer?.eosId ?? 0;

/**
 * Yields the rest of the epoch in groups of `size` micro-batches. The last group may be smaller.
 * `seqlen` returns the number of tokens per sample of the next update; null: all.
 */
export async function* groupsOf<Batch>(
  source: BatchSource<Batch>,
  objective: Objective<Batch>,
  { size, seqlen }: { size: number; seqlen: () => number | null },
): AsyncGenerator<MicroBatch<Batch>[]> {
  let group: MicroBatch<Batch>[] = [];
  for await (const batch of source) {
    const max = seqlen();
    group.push(objective.countBatch(max === null ? batch : objective.shorten(batch, max)));
    if (group.length < size) continue;
    yield group;
    group = [];
  }
  if (group.length > 0) yield group;
}

export function isDataset<Sample>(value: unknown): value is Dataset<Sample> {
  return typeof (value as { get?: unknown } | null)?.get === 'function';
}

/** Returns `source`. Throws DS_ARGUMENT unless it is an async iterable. */
export function requireSource<Batch>(source: unknown): BatchSource<Batch> {
  const isIterable =
    typeof source === 'object' && source !== null && Symbol.asyncIterator in source;
  if (isIterable) return source as BatchSource<Batch>;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'Trainer data',
    expected: 'a dataset or an async iterable of batches, or a function that returns one',
    got: formatValue(source),
  });
}

function isTextSample(sample: unknown): sample is TextSample {
  const { ids, labels, documents } = (sample ?? {}) as Record<string, unknown>;
  return [ids, labels, documents].every((part) => part instanceof Int32Array);
}

/** Returns `lengths`. Throws DS_ARGUMENT unless they are one finite number for each sample. */
function requireLengths(
  lengths: ArrayLike<number>,
  { length }: { length: number },
): ArrayLike<number> {
  const op = 'Trainer data.lengths';
  if (lengths.length !== length) {
    throw argumentError(op, `${length} lengths, one for each sample`, `${lengths.length}`);
  }
  Array.from(lengths, (length, i) => requireFinite(`${op} ${i}`, length, 0));
  return lengths;
}

/** Returns the number of tokens of each sample. Throws DS_ARGUMENT if a sample has no tokens. */
async function lengthsOf<Sample>(dataset: Dataset<Sample>): Promise<Float64Array> {
  const lengths = new Float64Array(dataset.length);
  for (let i = 0; i < dataset.length; ++i) {
    const { ids, tokens = ids } = ((await dataset.get(i)) ?? {}) as Record<string, unknown>;
    if (!ArrayBuffer.isView(tokens)) {
      throw argumentError(
        'Trainer data.lengths',
        'a length for each sample, because the samples have no `ids`',
        'no lengths',
      );
    }
    lengths[i] = (tokens as Int32Array).length;
  }
  return lengths;
}
