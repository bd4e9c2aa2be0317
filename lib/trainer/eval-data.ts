// Evaluation data: each sample once, in order, and the same number of batches on every rank.
import { DataLoader, type Dataset, type IterableDataset, Sampler } from '../data/index.js';
import { isIterableDataset } from '../data/iterable-dataset.js';
import { getIteratorMethod } from '../data/round-reader.js';
import type { DataPlace, TrainerData } from './data-source.js';
import type { TrainerSettings } from './read-options.js';
import { collateFor, isDataset, requireSource } from './train-data.js';

/** A batch of an evaluation. */
interface EvalBatch<Batch> {
  batch: Batch;
  /** False for a repeated batch, which keeps the ranks in step and is not counted. */
  isOwn: boolean;
}

/** Evaluation data of one rank, for one pass at a time. */
export interface EvalData<Batch> {
  /** Batches of this rank, with repeated ones that keep ranks in step; null if unknown. */
  readonly batches: number | null;
  [Symbol.asyncIterator](): AsyncIterator<EvalBatch<Batch>>;
  close(): Promise<void>;
}

/** Opens `data` for this rank: every worldSize-th sample of a dataset, each sample once. */
export async function openEvalData<Sample, Batch>(
  data: TrainerData<Sample, Batch>,
  settings: Pick<TrainerSettings<Sample, Batch>, 'data' | 'tokenizer'> &
    Partial<Pick<TrainerSettings<Sample, Batch>, 'model'>>,
  place: DataPlace,
): Promise<EvalData<Batch>> {
  const opened = typeof data === 'function' ? await data(place) : data;
  const dataset = isIterableDataset<Sample>(opened) ? await loadAll(opened) : opened;
  if (!isDataset<Sample>(dataset)) return new DealtOut(requireSource<Batch>(dataset));
  const collate = await collateFor(dataset, settings, place);
  return new EvenBatches(dataset, place, collate);
}

/** Loads a stream of samples into memory, so every sample reaches exactly one rank. */
async function loadAll<Sample>(dataset: IterableDataset<Sample>): Promise<Dataset<Sample>> {
  const samples: Sample[] = [];
  const given = dataset.iterate(0);
  getIteratorMethod(given);
  for await (const sample of given) samples.push(sample);
  return { length: samples.length, get: (index) => samples[index] as Sample };
}

/** A source's own batches: it has dealt them out. */
class DealtOut<Batch> implements EvalData<Batch> {
  readonly batches = null;

  constructor(private readonly source: AsyncIterable<Batch>) {}

  async *[Symbol.asyncIterator](): AsyncGenerator<EvalBatch<Batch>> {
    for await (const batch of this.source) yield { batch, isOwn: true };
  }

  async close(): Promise<void> {}
}

class EvenBatches<Sample, Batch> implements EvalData<Batch> {
  readonly batches: number;
  private readonly loader: DataLoader<Sample, Batch>;
  private readonly own: number;

  constructor(
    dataset: Dataset<Sample>,
    { rank, worldSize, batchSize, device }: DataPlace,
    collate: ((samples: Sample[], device: DataPlace['device']) => Batch) | undefined,
  ) {
    const sampler = new TurnSampler(dataset.length, rank, worldSize);
    this.loader = new DataLoader(dataset, { batchSize, device, sampler, collate });
    this.own = Math.ceil(sampler.own / batchSize);
    this.batches = Math.ceil(Math.ceil(dataset.length / worldSize) / batchSize);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<EvalBatch<Batch>> {
    let served = 0;
    this.loader.setEpoch(this.loader.epoch + 1); // Wherever the last pass has ended.
    while (served < this.batches) {
      for await (const batch of this.loader) {
        yield { batch, isOwn: served < this.own };
        if (++served === this.batches) return;
      }
    }
  }

  close(): Promise<void> {
    return this.loader.close();
  }
}

/** Every worldSize-th sample from the rank's first; sample 0 for a rank without samples. */
class TurnSampler extends Sampler {
  readonly length: number;
  /** Samples of this rank, without padding. */
  readonly own: number;

  constructor(
    private readonly samples: number,
    private readonly rank: number,
    private readonly ranks: number,
  ) {
    super();
    this.own = Math.max(0, Math.ceil((samples - rank) / ranks));
    this.length = Math.max(1, this.own);
  }

  order(served: number): Uint32Array {
    const { rank, ranks, own, samples } = this;
    if (own === 0) return served === 0 && samples > 0 ? Uint32Array.of(0) : new Uint32Array(0);
    return Uint32Array.from({ length: own }, (_, i) => rank + i * ranks).subarray(served);
  }
}
