// Rounds of an iterable dataset: as many samples in turn as make a batch for every rank.

import { types } from 'node:util';
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { required } from '../runtime/required.js';
import { onlyLater } from './dataset.js';
import type { IterableDataset, Samples } from './iterable-dataset.js';
import type { Round } from './worker-protocol.js';

/** Place of errors in the dataset's iterate(), as opposed to its samples. */
export const ITERATE = 'iterate()';

type ReadResult<Sample> = IteratorResult<Sample | Promise<Sample>>;

/**
 * Reads rounds. Consecutive rounds share one iterator; for other rounds it opens a new iterator and
 * skips earlier samples.
 */
export class RoundReader<Sample> {
  /** Number of the next sample in the epoch, or of the sample that failed. */
  at = 0;
  private epoch = -1;
  private iterator: Iterator<Sample | Promise<Sample>> | AsyncIterator<Sample> | null = null;
  private isLater = false;
  private isOver = false;

  constructor(
    private readonly dataset: IterableDataset<Sample>,
    /** Called with the number of each sample before it is read. */
    private readonly onSample: (sample: number) => void = () => {},
  ) {}

  /**
   * This rank's samples; null behind the last round. A last round that is not
   * full is repeated from its beginning until every rank is full, as DistributedSampler repeats an
   * epoch. Throws errors of the dataset, and DS_DATA for asynchronous samples.
   */
  read(round: Round): Sample[] | null {
    const steps = this.collect(round);
    let step = steps.next();
    while (!step.done) step = steps.next(this.pull());
    return step.value;
  }

  /** read() that waits for each sample. */
  async readAsync(round: Round): Promise<Sample[] | null> {
    const steps = this.collect(round);
    let step = steps.next();
    while (!step.done) step = steps.next(await this.pullLater());
    return step.value;
  }

  /** Closes the iterator. */
  close(): void {
    const { iterator } = this;
    this.iterator = null;
    this.epoch = -1;
    try {
      const ended: unknown = iterator?.return?.();
      if (types.isPromise(ended)) ended.catch(() => {});
    } catch {
      // The error that closed the reader is more useful.
    }
  }

  /** Collects a round; each yield requests the next sample from the caller. */
  private *collect(round: Round): Generator<void, Sample[] | null, IteratorResult<Sample>> {
    const { epoch, start, rank, worldSize, batchSize, dropLast } = round;
    if (epoch !== this.epoch || start < this.at) this.open(epoch, start);
    while (this.at < start && !this.isOver) this.take(yield);
    const ownSamples: Sample[] = [];
    /** Samples that fill an incomplete round. */
    const first: Sample[] = [];
    let count = 0;
    for (; count < batchSize * worldSize && !this.isOver; ++count) {
      const found = yield;
      this.take(found);
      if (found.done) break;
      if (count % worldSize === rank) ownSamples.push(found.value);
      if (count < worldSize) first.push(found.value);
    }
    if (count === 0 || (dropLast && this.isOver)) return null;
    for (let i = ownSamples.length; i < Math.ceil(count / worldSize); ++i) {
      ownSamples.push(first[(rank + i * worldSize) % count] as Sample);
    }
    return ownSamples;
  }

  private take({ done }: IteratorResult<Sample>): void {
    if (done) this.isOver = true;
    else this.at++;
  }

  private open(epoch: number, start: number): void {
    this.close();
    const { dataset } = this;
    const canSkip = start > 0 && dataset.iterateFrom !== undefined;
    this.at = canSkip ? start : 0;
    this.onSample(this.at);
    const samples = (canSkip && dataset.iterateFrom?.(epoch, start)) || dataset.iterate(epoch);
    const found = openSamples(samples);
    this.isLater = found.isLater;
    this.iterator = found.iterator;
    this.isOver = false;
    this.epoch = epoch;
  }

  /** The next sample, which must be there. */
  private pull(): IteratorResult<Sample> {
    this.onSample(this.at);
    try {
      if (this.isLater) throw onlyLater('an asynchronous dataset');
      const found = requireFound(this.iterator?.next() as ReadResult<Sample>);
      if (!types.isPromise(found.value)) return found as IteratorResult<Sample>;
      found.value.catch(() => {});
      throw onlyLater('a dataset of promises');
    } catch (error) {
      return this.fail(error);
    }
  }

  private async pullLater(): Promise<IteratorResult<Sample>> {
    this.onSample(this.at);
    try {
      const found = requireFound(required(await this.iterator?.next()));
      return { done: found.done, value: await found.value } as IteratorResult<Sample>;
    } catch (error) {
      return this.fail(error);
    }
  }

  /** Closes the iterator, so that a later read opens a new one. */
  private fail(error: unknown): never {
    this.close();
    throw error;
  }
}

type OpenedSamples<Sample> = {
  isLater: boolean;
  iterator: Iterator<Sample | Promise<Sample>> | AsyncIterator<Sample>;
};

/** Opens an iterator. Throws DS_DATA if `samples` is not iterable. */
function openSamples<Sample>(samples: Samples<Sample>): OpenedSamples<Sample> {
  const { open, isLater } = requireSamples(samples);
  const iterator = open.call(samples) as OpenedSamples<Sample>['iterator'];
  if (typeof iterator?.next === 'function') return { isLater, iterator };
  throw dataError(ITERATE, 'an iterator with next()', formatValue(iterator));
}

/** The iterator method of a result of iterate(). Throws DS_DATA if it has none. */
export function requireSamples(samples: unknown): { open: () => unknown; isLater: boolean } {
  const isAny = isObject(samples) || Array.isArray(samples);
  const { [Symbol.iterator]: now, [Symbol.asyncIterator]: later } = (
    isAny ? samples : {}
  ) as Partial<Iterable<unknown> & AsyncIterable<unknown>>;
  const open = now ?? later;
  if (typeof open === 'function') return { open, isLater: open !== now };
  const expected = 'iterate() to give samples in turn: an iterable, or an async one';
  const hint = 'Write *iterate(epoch) { yield ...; }, or async *iterate(epoch), with the star.';
  throw dataError(ITERATE, expected, formatValue(samples), hint);
}

/** Throws DS_DATA if a result of next() is not an object. */
function requireFound<Step>(found: Step): Step {
  if (typeof found === 'object' && found !== null) return found;
  throw dataError(ITERATE, 'next() to give { value, done }', formatValue(found));
}
