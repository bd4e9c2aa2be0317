// RoundReader: reads an iterable dataset in rounds. A round has one batch for every rank.

import { types } from 'node:util';
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { required } from '../runtime/required.js';
import { asynchronousError } from './dataset.js';
import type { IterableDataset, Samples } from './iterable-dataset.js';
import type { Round } from './worker-protocol.js';

/** The `op` of errors of iterate() itself, which differs from errors of samples. */
export const ITERATE = 'iterate()';

type ReadResult<Sample> = IteratorResult<Sample | Promise<Sample>>;

/**
 * Reads rounds. Consecutive rounds continue one iterator. For any other round it opens a new
 * iterator and skips earlier samples.
 */
export class RoundReader<Sample> {
  /** Index in the epoch of the next sample. After an error, index of the sample that failed. */
  nextSample = 0;
  private epoch = -1;
  private iterator: Iterator<Sample | Promise<Sample>> | AsyncIterator<Sample> | null = null;
  private isAsync = false;
  private isOver = false;

  constructor(
    private readonly dataset: IterableDataset<Sample>,
    /**
     * Is called with the index of each sample before it is read; a worker reports it as its
     * activity.
     */
    private readonly onSample: (sample: number) => void = () => {},
  ) {}

  /**
   * Returns this rank's samples of a round; null after the last round. If the last round is
   * incomplete, its samples are repeated from its start until all ranks have the same number, as
   * DistributedSampler does. Throws the errors of the dataset, and DS_DATA if a sample is a
   * promise.
   */
  read(round: Round): Sample[] | null {
    const steps = this.collect(round);
    let step = steps.next();
    while (!step.done) step = steps.next(this.pullSample());
    return step.value;
  }

  /** read() for samples that may be promises. */
  async readAsync(round: Round): Promise<Sample[] | null> {
    const steps = this.collect(round);
    let step = steps.next();
    while (!step.done) step = steps.next(await this.pullSampleAsync());
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
      // Errors of return() are ignored: the error that closed the reader is more useful.
    }
  }

  /**
   * Collects this rank's samples of a round. Each yield requests the next sample from the caller,
   * so that read() and readAsync() can share this code.
   */
  private *collect(round: Round): Generator<void, Sample[] | null, IteratorResult<Sample>> {
    const { epoch, start, rank, worldSize, batchSize, dropLast } = round;
    if (epoch !== this.epoch || start < this.nextSample) this.openAt(epoch, start);
    while (this.nextSample < start && !this.isOver) this.countSample(yield);
    const rankSamples: Sample[] = [];
    /** The first samples of the round. They complete it if it is incomplete. */
    const firstSamples: Sample[] = [];
    let count = 0;
    for (; count < batchSize * worldSize && !this.isOver; ++count) {
      const result = yield;
      this.countSample(result);
      if (result.done) break;
      if (count % worldSize === rank) rankSamples.push(result.value);
      if (count < worldSize) firstSamples.push(result.value);
    }
    if (count === 0 || (dropLast && this.isOver)) return null;
    for (let i = rankSamples.length; i < Math.ceil(count / worldSize); ++i) {
      rankSamples.push(firstSamples[(rank + i * worldSize) % count] as Sample);
    }
    return rankSamples;
  }

  private countSample({ done }: IteratorResult<Sample>): void {
    if (done) this.isOver = true;
    else this.nextSample++;
  }

  private openAt(epoch: number, start: number): void {
    this.close();
    const { dataset } = this;
    const canSkip = start > 0 && dataset.iterateFrom !== undefined;
    this.nextSample = canSkip ? start : 0;
    this.onSample(this.nextSample);
    const samples = (canSkip && dataset.iterateFrom?.(epoch, start)) || dataset.iterate(epoch);
    const opened = openSamples(samples);
    this.isAsync = opened.isAsync;
    this.iterator = opened.iterator;
    this.isOver = false;
    this.epoch = epoch;
  }

  /** Returns the next result of the iterator. Throws DS_DATA if the sample is a promise. */
  private pullSample(): IteratorResult<Sample> {
    this.onSample(this.nextSample);
    try {
      if (this.isAsync) throw asynchronousError('an asynchronous dataset');
      const result = requireResult(this.iterator?.next() as ReadResult<Sample>);
      if (!types.isPromise(result.value)) return result as IteratorResult<Sample>;
      result.value.catch(() => {});
      throw asynchronousError('a dataset of promises');
    } catch (error) {
      return this.closeAndThrow(error);
    }
  }

  private async pullSampleAsync(): Promise<IteratorResult<Sample>> {
    this.onSample(this.nextSample);
    try {
      const result = requireResult(required(await this.iterator?.next()));
      return { done: result.done, value: await result.value } as IteratorResult<Sample>;
    } catch (error) {
      return this.closeAndThrow(error);
    }
  }

  /** Closes the iterator, so that a later read opens a new one; then throws `error`. */
  private closeAndThrow(error: unknown): never {
    this.close();
    throw error;
  }
}

type OpenedSamples<Sample> = {
  isAsync: boolean;
  iterator: Iterator<Sample | Promise<Sample>> | AsyncIterator<Sample>;
};

/** Opens an iterator of `samples`. Throws DS_DATA if it is not iterable. */
function openSamples<Sample>(samples: Samples<Sample>): OpenedSamples<Sample> {
  const { open, isAsync } = getIteratorMethod(samples);
  const iterator = open.call(samples) as OpenedSamples<Sample>['iterator'];
  if (typeof iterator?.next === 'function') return { isAsync, iterator };
  throw dataError(ITERATE, 'an iterator with next()', formatValue(iterator));
}

/**
 * Returns the function that opens an iterator of `samples`, the result of iterate(). Throws DS_DATA
 * if `samples` is not iterable.
 */
export function getIteratorMethod(samples: unknown): { open: () => unknown; isAsync: boolean } {
  const isObjectOrList = isObject(samples) || Array.isArray(samples);
  const { [Symbol.iterator]: openSync, [Symbol.asyncIterator]: openAsync } = (
    isObjectOrList ? samples : {}
  ) as Partial<Iterable<unknown> & AsyncIterable<unknown>>;
  const open = openSync ?? openAsync;
  if (typeof open === 'function') return { open, isAsync: open !== openSync };
  const expected = 'iterate() to return an iterable or an async iterable of samples';
  const hint = 'Write *iterate(epoch) { yield ...; }, or async *iterate(epoch), with the star.';
  throw dataError(ITERATE, expected, formatValue(samples), hint);
}

/** Returns `result`, which next() returned. Throws DS_DATA if it is not an object. */
function requireResult<Step>(result: Step): Step {
  if (typeof result === 'object' && result !== null) return result;
  throw dataError(ITERATE, 'next() to return { value, done }', formatValue(result));
}
