// CurriculumDraws: draws the samples of each step among all samples within its difficulty. Draws
// depend only on seed and step. Source: DeepSpeed's DeepSpeedDataSampler.

import type { DsError } from '../errors.js';
import { dataError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import type { DifficultyPath } from './curriculum-schedule.js';
import { naturalOrder, shuffledOrder, sortByKey } from './order.js';
import { PhiloxStream } from './philox.js';

/**
 * Limits the samples of a step by one metric. A sample is accepted if its key is at most the bound
 * of the step's difficulty.
 */
export interface Gate {
  /** Name of the metric. */
  readonly name: string;
  readonly path: DifficultyPath;
  /** The key of each sample. */
  readonly keys: Float64Array;
  bound(difficulty: number): number;
  /** Returns the lowest difficulty that accepts a sample; errors name it. */
  easiest(): number;
}

/** Options of CurriculumDraws. */
interface DrawsOptions {
  /** Number of samples in the dataset. */
  length: number;
  /** The metrics. A sample is drawn only if every gate accepts it. */
  gates: readonly Gate[];
  /** Number of samples per step. */
  batchSize: number;
  seed: number;
}

/** Maximum number of clusters, and of passes over a cluster, that have separate random streams. */
const MAX_STREAMS = 2 ** 26;

/**
 * Draws samples by clusters. A cluster consists of the samples that become available at the same
 * step. Each pass over a cluster has a new random order, so every sample of the cluster is drawn
 * once before any is drawn again. A step draws from each cluster in proportion to its size.
 */
export class CurriculumDraws {
  private current = 0;
  /** All samples, sorted by the key of the first gate. */
  private readonly order: Uint32Array;
  /** Number of samples at the start of `order` that the first gate accepts. */
  private accepted = 0;
  /** Samples that the first gate accepts and another gate does not. */
  private waiting = new Uint32Array(0);
  private readonly clusters: Cluster[] = [];
  /** Prefix sums of the sizes of the clusters. */
  private readonly sums: number[] = [];
  private bounds: readonly number[] | null = null;

  constructor(private readonly options: DrawsOptions) {
    const [first] = options.gates;
    this.order = first ? sortByKey(first.keys) : naturalOrder(options.length);
  }

  /** Number of steps that were drawn. */
  get step(): number {
    return this.current;
  }

  /** Skips `steps` steps. Throws DS_DATA if a step accepts no sample. */
  skip(steps: number): void {
    for (let i = 0; i < steps; ++i) {
      this.countSamples(this.beginStep(), (cluster, from, end) => {
        cluster.drawCount += end - from;
      });
    }
  }

  /** Returns the samples of the next `steps` steps. Throws DS_DATA if a step accepts no sample. */
  take(steps: number): Uint32Array {
    const { batchSize } = this.options;
    const out = new Uint32Array(steps * batchSize);
    for (let i = 0; i < steps; ++i) {
      const batch = out.subarray(i * batchSize, (i + 1) * batchSize);
      const random = this.beginStep();
      this.countSamples(random, (cluster, from, end) => cluster.take(batch, from, end));
      shuffle(batch, random);
    }
    return out;
  }

  /**
   * Goes to the next step and adds a cluster of the samples that it newly accepts. Returns the
   * random stream of the step.
   */
  private beginStep(): PhiloxStream {
    this.current++;
    this.addCluster();
    if (this.clusters.length === 0) throw this.noSampleError();
    return new PhiloxStream(this.options.seed, 2 * this.current);
  }

  private addCluster(): void {
    const { gates, seed } = this.options;
    const bounds = gates.map(({ path, bound }) => bound(path.at(this.current)));
    if (this.bounds && bounds.every((bound, i) => bound === this.bounds?.[i])) return;
    this.bounds = bounds;
    const entered = this.takeNewSamples(bounds);
    if (entered.length === 0) return;
    this.sums.push((this.sums.at(-1) ?? 0) + entered.length);
    this.clusters.push(new Cluster(entered, seed, this.clusters.length));
  }

  /** Returns the samples that `bounds` newly accept, in ascending order. */
  private takeNewSamples(bounds: readonly number[]): Uint32Array {
    const [first, ...others] = this.options.gates;
    const { order, accepted } = this;
    if (first) {
      const bound = required(bounds[0]);
      while (this.accepted < order.length && keyAt(first, order, this.accepted) <= bound) {
        this.accepted++;
      }
    } else this.accepted = order.length;
    const fresh = order.subarray(accepted, this.accepted);
    if (others.length === 0) return sortAscending(fresh, order.length);
    const isAccepted = (sample: number): boolean =>
      others.every(({ keys }, g) => required(keys[sample]) <= required(bounds[g + 1]));
    const candidates = new Uint32Array(this.waiting.length + fresh.length);
    candidates.set(this.waiting);
    candidates.set(fresh, this.waiting.length);
    this.waiting = candidates.filter((sample) => !isAccepted(sample));
    return sortAscending(candidates.filter(isAccepted), order.length);
  }

  /**
   * Calls `fill` with the range of the batch that each cluster fills. The numbers of samples are
   * proportional to the sizes of the clusters, and are rounded at random so that they sum to a
   * batch. This takes one random number per step (DeepSpeed: one per sample), so skipping steps is
   * cheap.
   */
  private countSamples(
    random: PhiloxStream,
    fill: (cluster: Cluster, from: number, end: number) => void,
  ): void {
    const { sums, clusters } = this;
    const { batchSize } = this.options;
    const total = required(sums.at(-1));
    const offset = random.unit();
    let from = 0;
    for (let c = 0; c < sums.length; ++c) {
      const sum = required(sums[c]);
      const end = sum === total ? batchSize : Math.floor((sum * batchSize) / total + offset);
      if (end > from) fill(required(clusters[c]), from, end);
      from = end;
    }
  }

  private noSampleError(): DsError {
    const { gates, length } = this.options;
    const gateTexts = gates.map(({ name, path }) => `"${name}" ${path.at(this.current)}`);
    const easiestTexts = gates.map((gate) => `"${gate.name}" ${gate.easiest()}`);
    return dataError(
      `CurriculumSampler, step ${this.current}`,
      `samples within the difficulties ${gateTexts.join(', ')}`,
      `none of ${length}; the easiest samples have ${easiestTexts.join(', ')}`,
      'Raise the min_difficulty of these metrics.',
    );
  }
}

/**
 * Returns distinct numbers below `limit` in ascending order. For many numbers it uses a table of
 * marks, which is faster than comparisons.
 */
function sortAscending(numbers: Uint32Array, limit: number): Uint32Array {
  const sorted = numbers.slice();
  if (numbers.length * 16 < limit) return sorted.sort();
  const marks = new Uint8Array(limit);
  for (let i = 0; i < numbers.length; ++i) marks[required(numbers[i])] = 1;
  for (let number = 0, at = 0; number < limit; ++number) {
    if (marks[number] === 1) sorted[at++] = number;
  }
  return sorted;
}

const keyAt = ({ keys }: Gate, order: Uint32Array, at: number): number =>
  required(keys[required(order[at])]);

/** Samples that became available at the same step. */
class Cluster {
  /** Number of draws until now. */
  drawCount = 0;
  /** Number of draws at the end of the current pass; 0 before the first pass. */
  private passEnd = 0;
  private order: Uint32Array;

  constructor(
    private readonly samples: Uint32Array,
    private readonly seed: number,
    private readonly number: number,
  ) {
    this.order = samples;
  }

  /** Fills elements `from` to `end` - 1 of `out` with the next samples. */
  take(out: Uint32Array, from: number, end: number): void {
    const { length } = this.samples;
    for (let at = from; at < end; ++at) {
      if (this.drawCount >= this.passEnd) this.beginPass(Math.floor(this.drawCount / length));
      out[at] = required(this.order[length - (this.passEnd - this.drawCount)]);
      this.drawCount++;
    }
  }

  private beginPass(pass: number): void {
    this.passEnd = (pass + 1) * this.samples.length;
    const stream = 2 * (this.number * MAX_STREAMS + (pass % MAX_STREAMS)) + 1;
    const positions = shuffledOrder(this.samples.length, this.seed, stream);
    for (let i = 0; i < positions.length; ++i)
      positions[i] = required(this.samples[required(positions[i])]);
    this.order = positions;
  }
}

function shuffle(batch: Uint32Array, random: PhiloxStream): void {
  for (let last = batch.length - 1; last > 0; --last) {
    const other = random.below(last + 1);
    const swapped = required(batch[last]);
    batch[last] = required(batch[other]);
    batch[other] = swapped;
  }
}
