// The data of an evaluation: every sample once and in order, with the same number of batches per
// rank.
import { DataLoader, type Dataset, type IterableDataset, Sampler } from '../data/index.js';
import { isIterableDataset } from '../data/iterable-dataset.js';
import { getIteratorMethod } from '../data/round-reader.js';
import type { DataPlace, TrainerData } from './data-source.js';
import type { TrainerSettings } from './read-options.js';
import { collateFor, isDataset, requireSource } from './train-data.js';

/** A batch of an evaluation. */
interface EvalBatch<Batch> {
  batch: Batch;
  /**
   * False for a repeated batch. It does not count; it keeps the collective calls of all ranks
   * equal.
   */
  isOwn: boolean;
}

/** The evaluation data of one rank. Only one iteration may run at a time. */
export interface EvalData<Batch> {
  /** Number of batches of this rank, including repeated ones; null if unknown. */
  readonly batches: number | null;
  [Symbol.asyncIterator](): AsyncIterator<EvalBatch<Batch>>;
  close(): Promise<void>;
}

/** Opens `data` for this rank. Of a dataset, rank r gets the samples r, r + worldSize, ... */
export async function openEvalData<Sample, Batch>(
  data: TrainerData<Sample, Batch>,
  settings: Pick<TrainerSettings<Sample, Batch>, 'data' | 'tokenizer'> &
    Partial<Pick<TrainerSettings<Sample, Batch>, 'model'>>,
  place: DataPlace,
): Promise<EvalData<Batch>> {
  const opened = typeof data === 'function' ? await data(place) : data;
  const dataset = isIterableDataset<Sample>(opened) ? await loadAll(opened) : opened;
  if (!isDataset<Sample>(dataset)) return new SourceBatches(requireSource<Batch>(dataset));
  const collate = await collateFor(dataset, settings, place);
  return new DatasetBatches(dataset, place, collate);
}

/** Reads a stream of samples into memory, so that each sample can be given to exactly one rank. */
async function loadAll<Sample>(dataset: IterableDataset<Sample>): Promise<Dataset<Sample>> {
  const samples: Sample[] = [];
  const iterable = dataset.iterate(0);
  getIteratorMethod(iterable);
  for await (const sample of iterable) samples.push(sample);
  return { length: samples.length, get: (index) => samples[index] as Sample };
}

/** The batches of a source, which has distributed them to ranks itself. */
class SourceBatches<Batch> implements EvalData<Batch> {
  readonly batches = null;

  constructor(private readonly source: AsyncIterable<Batch>) {}

  async *[Symbol.asyncIterator](): AsyncGenerator<EvalBatch<Batch>> {
    for await (const batch of this.source) yield { batch, isOwn: true };
  }

  async close(): Promise<void> {}
}

class DatasetBatches<Sample, Batch> implements EvalData<Batch> {
  readonly batches: number;
  private readonly loader: DataLoader<Sample, Batch>;
  private readonly ownBatches: number;

  constructor(
    dataset: Dataset<Sample>,
    { rank, worldSize, batchSize, device }: DataPlace,
    collate: ((samples: Sample[], device: DataPlace['device']) => Batch) | undefined,
  ) {
    const sampler = new RankSampler(dataset.length, rank, worldSize);
    this.loader = new DataLoader(dataset, { batchSize, device, sampler, collate });
    this.ownBatches = Math.ceil(sampler.ownSamples / batchSize);
    this.batches = Math.ceil(Math.ceil(dataset.length / worldSize) / batchSize);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<EvalBatch<Batch>> {
    let served = 0;
    // The previous iteration may have ended before the end of the epoch.
    this.loader.setEpoch(this.loader.epoch + 1);
    while (served < this.batches) {
      for await (const batch of this.loader) {
        yield { batch, isOwn: served < this.ownBatches };
        if (++served === this.batches) return;
      }
    }
  }

  close(): Promise<void> {
    return this.loader.close();
  }
}

/**
 * Serves the samples rank, rank + ranks, ... A rank without samples gets sample 0, because it must
 * make the same collective calls as other ranks.
 */
class RankSampler extends Sampler {
  readonly length: number;
  /** Number of samples of this rank, not counting sample 0 for a rank without samples. */
  readonly ownSamples: number;

  constructor(
    private readonly samples: number,
    private readonly rank: number,
    private readonly ranks: number,
  ) {
    super();
    this.ownSamples = Math.max(0, Math.ceil((samples - rank) / ranks));
    this.length = Math.max(1, this.ownSamples);
  }

  order(served: number): Uint32Array {
    const { rank, ranks, ownSamples, samples } = this;
    if (ownSamples === 0)
      return served === 0 && samples > 0 ? Uint32Array.of(0) : new Uint32Array(0);
    return Uint32Array.from({ length: ownSamples }, (_, i) => rank + i * ranks).subarray(served);
  }
}
