// The data of a Trainer as this rank's micro-batches, in groups that make an update each.
import {
  DataLoader,
  type Dataset,
  DistributedSampler,
  IterableLoader,
  type Sampler,
} from '../data/index.js';
import { isIterableDataset } from '../data/iterable-dataset.js';
import { LengthGroupedSampler } from '../data/length-sampler.js';
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { phrase } from '../runtime/phrase.js';
import { collateSamples, type TextSample, type Tokenizer } from '../text/index.js';
import type { MicroBatch, Objective } from './objective.js';
import type { BatchSource, DataPlace, TrainerData } from './options.js';
import type { TrainerSettings } from './read-options.js';

type DataSettings<Sample, Batch> = Pick<TrainerSettings<Sample, Batch>, 'data' | 'tokenizer'>;

/** What is served, and where it is dealt out: by a source of its own, or in this rank's loader. */
export async function openTrainData<Sample, Batch>(
  data: TrainerData<Sample, Batch>,
  settings: DataSettings<Sample, Batch>,
  place: DataPlace,
): Promise<BatchSource<Batch>> {
  const opened = typeof data === 'function' ? await data(place) : data;
  const { sampling, dropLast, workers, lengths, collate: own } = settings.data;
  const { rank, worldSize, seed } = place;
  if (isIterableDataset<Sample>(opened)) {
    const { batchSize, device } = place;
    const shared = { rank, worldSize, batchSize, device, dropLast, collate: own };
    return new IterableLoader(opened, { ...shared, numWorkers: workers });
  }
  if (!isDataset<Sample>(opened)) return requireSource(opened);
  const share = { rank, worldSize, seed };
  const batchSize = place.batchSize * worldSize;
  const sampler: Sampler =
    sampling === 'group_by_length'
      ? new LengthGroupedSampler(lengths ?? (await lengthsOf(opened)), { ...share, batchSize })
      : new DistributedSampler(opened.length, { ...share, shuffle: sampling === 'random' });
  const collate = await collateFor(opened, settings, place);
  const { device } = place;
  const options = { batchSize: place.batchSize, device, sampler, dropLast, collate };
  return new DataLoader(opened, { ...options, numWorkers: workers });
}

/**
 * The caller's, or for rows of text one that pads them; undefined for samples that are stacked as
 * they are.
 */
export async function collateFor<Sample, Batch>(
  dataset: Dataset<Sample>,
  { data, tokenizer }: DataSettings<Sample, Batch>,
  { tokenRanks }: DataPlace,
): Promise<((samples: Sample[], device: Device) => Batch) | undefined> {
  if (data.collate || dataset.length === 0) return data.collate;
  const first = await dataset.get(0);
  if (!isTextSample(first)) return undefined;
  const collate: unknown = collateSamples(padOf(tokenizer), tokenRanks);
  return collate as (samples: Sample[], device: Device) => Batch;
}

/** Rows are filled up with it; what fills them counts nowhere. */
const padOf = (tokenizer: Tokenizer | null): number => tokenizer?.padId ?? tokenizer?.eosId ?? 0;

/**
 * The rest of the epoch in groups of `size` micro-batches; the last one may have fewer. `seqlen`
 * says how many tokens of each sample the coming update trains on; null: all.
 */
export async function* groupsOf<Batch>(
  source: BatchSource<Batch>,
  objective: Objective<Batch>,
  { size, seqlen }: { size: number; seqlen: () => number | null },
): AsyncGenerator<MicroBatch<Batch>[]> {
  let group: MicroBatch<Batch>[] = [];
  for await (const batch of source) {
    const most = seqlen();
    group.push(objective.counted(most === null ? batch : objective.shortened(batch, most)));
    if (group.length < size) continue;
    yield group;
    group = [];
  }
  if (group.length > 0) yield group;
}

export function isDataset<Sample>(value: unknown): value is Dataset<Sample> {
  return typeof (value as { get?: unknown } | null)?.get === 'function';
}

/** Throws DS_ARGUMENT for what has no batches. */
export function requireSource<Batch>(source: unknown): BatchSource<Batch> {
  const isIterable =
    typeof source === 'object' && source !== null && Symbol.asyncIterator in source;
  if (isIterable) return source as BatchSource<Batch>;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'Trainer data',
    expected: 'a dataset, or an async iterable of batches, from the function that opens them',
    got: phrase(source),
  });
}

function isTextSample(sample: unknown): sample is TextSample {
  const { ids, labels, documents } = (sample ?? {}) as Record<string, unknown>;
  return [ids, labels, documents].every((part) => part instanceof Int32Array);
}

/** Tokens of each sample. Throws DS_ARGUMENT where samples have none. */
async function lengthsOf<Sample>(dataset: Dataset<Sample>): Promise<Float64Array> {
  const lengths = new Float64Array(dataset.length);
  for (let i = 0; i < dataset.length; ++i) {
    const { ids, tokens = ids } = ((await dataset.get(i)) ?? {}) as Record<string, unknown>;
    if (!ArrayBuffer.isView(tokens)) {
      const expected = 'the lengths of samples that have no `ids`';
      const op = 'Trainer data.lengths';
      throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: 'none' });
    }
    lengths[i] = (tokens as Int32Array).length;
  }
  return lengths;
}
