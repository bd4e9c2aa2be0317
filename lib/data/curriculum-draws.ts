// Draws the samples of curriculum steps at random within the step's difficulties, as a function of
// seed and step. Source: DeepSpeed's DeepSpeedDataSampler.

import type { DsError } from '../errors.js';
import { dataError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import type { DifficultyPath } from './curriculum-schedule.js';
import { naturalOrder, risingOrder, shuffledOrder } from './order.js';
import { PhiloxStream } from './philox.js';

/** Accepts samples with a key of at most the bound of the step's difficulty. */
export interface Gate {
  /** The metric. */
  readonly name: string;
  readonly path: DifficultyPath;
  /** A key for each sample. */
  readonly keys: Float64Array;
  bound(difficulty: number): number;
  /** The least difficulty that lets a sample in, for errors. */
  easiest(): number;
}

/** Options of draws. */
interface DrawsOptions {
  /** Samples of the dataset. */
  length: number;
  /** A sample must be accepted by all gates. */
  gates: readonly Gate[];
  /** Samples of a step. */
  batchSize: number;
  seed: number;
}

/** Passes over a cluster, and clusters, that have streams of their own. */
const MAX_STREAMS = 2 ** 26;

/**
 * Samples that become available at the same step form a cluster. Each pass over a cluster has a new
 * random order, so no sample repeats before the others of its cluster were drawn. A step draws from
 * each cluster in proportion to its size.
 */
export class CurriculumDraws {
  private current = 0;
  /** All samples, the easiest by the first gate first. */
  private readonly order: Uint32Array;
  /** Number of samples in `order` that the first gate accepts. */
  private reached = 0;
  /** Available samples that another gate refuses. */
  private waiting = new Uint32Array(0);
  private readonly clusters: Cluster[] = [];
  /** Prefix sums of cluster sizes. */
  private readonly sums: number[] = [];
  private bounds: readonly number[] | null = null;

  constructor(private readonly options: DrawsOptions) {
    const [first] = options.gates;
    this.order = first ? risingOrder(first.keys) : naturalOrder(options.length);
  }

  /** The last step that was drawn. */
  get step(): number {
    return this.current;
  }

  /** Skips `steps` steps. Throws DS_DATA if a step has no sample to draw. */
  skip(steps: number): void {
    for (let i = 0; i < steps; ++i) {
      this.countSamples(this.begin(), (cluster, from, end) => {
        cluster.served += end - from;
      });
    }
  }

  /** Returns the samples of the next steps. Throws DS_DATA if a step has no sample to draw. */
  take(steps: number): Uint32Array {
    const { batchSize } = this.options;
    const out = new Uint32Array(steps * batchSize);
    for (let i = 0; i < steps; ++i) {
      const batch = out.subarray(i * batchSize, (i + 1) * batchSize);
      const random = this.begin();
      this.countSamples(random, (cluster, from, end) => cluster.take(batch, from, end));
      shuffle(batch, random);
    }
    return out;
  }

  /** Goes to the next step, and lets samples in. */
  private begin(): PhiloxStream {
    this.current++;
    this.grow();
    if (this.clusters.length === 0) throw this.noSampleError();
    return new PhiloxStream(this.options.seed, 2 * this.current);
  }

  private grow(): void {
    const { gates, seed } = this.options;
    const bounds = gates.map(({ path, bound }) => bound(path.at(this.current)));
    if (this.bounds && bounds.every((bound, i) => bound === this.bounds?.[i])) return;
    this.bounds = bounds;
    const entered = this.newSamples(bounds);
    if (entered.length === 0) return;
    this.sums.push((this.sums.at(-1) ?? 0) + entered.length);
    this.clusters.push(new Cluster(entered, seed, this.clusters.length));
  }

  /** Samples that come within reach under `bounds`, by their number. */
  private newSamples(bounds: readonly number[]): Uint32Array {
    const [first, ...others] = this.options.gates;
    const { order, reached } = this;
    if (first) {
      const bound = required(bounds[0]);
      while (this.reached < order.length && keyAt(first, order, this.reached) <= bound) {
        this.reached++;
      }
    } else this.reached = order.length;
    const fresh = order.subarray(reached, this.reached);
    if (others.length === 0) return sortAscending(fresh, order.length);
    const isIn = (sample: number): boolean =>
      others.every(({ keys }, g) => required(keys[sample]) <= required(bounds[g + 1]));
    const asked = new Uint32Array(this.waiting.length + fresh.length);
    asked.set(this.waiting);
    asked.set(fresh, this.waiting.length);
    this.waiting = asked.filter((sample) => !isIn(sample));
    return sortAscending(asked.filter(isIn), order.length);
  }

  /**
   * Number of samples per cluster in a step, proportional to its size, rounded up or down at
   * random, so that the counts sum to a batch. It uses one random number per step, DeepSpeed one
   * per sample. So skipped steps are cheap, and counts are even.
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
    const begins = gates.map((gate) => `"${gate.name}" ${gate.easiest()}`);
    return dataError(
      `CurriculumSampler, step ${this.current}`,
      `samples within the difficulties ${gateTexts.join(', ')}`,
      `none of ${length}; the easiest samples have ${begins.join(', ')}`,
      'Raise the min_difficulty of these metrics.',
    );
  }
}

/** Different numbers below `limit`, the least first: marked where they are many, not compared. */
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

/** Samples that came within reach together. */
class Cluster {
  /** Draws so far. */
  served = 0;
  /** Number of draws at the end of the pass of `order`; 0 before the first pass. */
  private passEnd = 0;
  private order: Uint32Array;

  constructor(
    private readonly samples: Uint32Array,
    private readonly seed: number,
    private readonly number: number,
  ) {
    this.order = samples;
  }

  /** Fills these places of `out` with the next samples. */
  take(out: Uint32Array, from: number, end: number): void {
    const { length } = this.samples;
    for (let at = from; at < end; ++at) {
      if (this.served >= this.passEnd) this.goTo(Math.floor(this.served / length));
      out[at] = required(this.order[length - (this.passEnd - this.served)]);
      this.served++;
    }
  }

  private goTo(pass: number): void {
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
    const kept = required(batch[last]);
    batch[last] = required(batch[other]);
    batch[other] = kept;
  }
}
