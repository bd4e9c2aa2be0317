// RepeatingLoader: a loader without end, epoch after epoch, as DeepSpeed's.
import type { DsError } from '../errors.js';
import { dataError, valueError } from '../runtime/input-errors.js';
import { turn } from './event-loop.js';

function isIterable(loader: Partial<Iterable<unknown> & AsyncIterable<unknown>> | null): boolean {
  const begins = [loader?.[Symbol.iterator], loader?.[Symbol.asyncIterator]];
  return begins.some((begin) => typeof begin === 'function');
}

/**
 * Serves batches from the loader's position on, and begins the next epoch at the end of one. It
 * keeps one iteration: next(), `for` and iterators all continue at the same position. nextAsync()
 * and `for await` serve a dataset of promises. Throws DS_ARGUMENT if `loader` is not iterable.
 */
export class RepeatingLoader<Batch> implements IterableIterator<Batch> {
  private current: Iterator<Batch> | null = null;
  private currentAsync: AsyncIterator<Batch> | null = null;

  /** Throws DS_ARGUMENT unless `loader` can be iterated. */
  constructor(
    /** The loader that is begun again and again. */
    readonly loader: Iterable<Batch> & AsyncIterable<Batch>,
  ) {
    if (!isIterable(loader)) throw valueError('RepeatingLoader', 'a loader of batches', loader);
  }

  /**
   * Returns the next batch; never done. Throws DS_DATA if the loader is empty, and errors of the
   * loader.
   */
  next(): IteratorYieldResult<Batch> {
    for (let epochs = 0; epochs < 2; ++epochs) {
      this.current ??= this.loader[Symbol.iterator]();
      const result = this.attempt(this.current);
      if (!result.done) return { done: false, value: result.value };
      this.current = null;
    }
    throw empty();
  }

  /** As next(), for asynchronous loaders. */
  async nextAsync(): Promise<IteratorYieldResult<Batch>> {
    for (let epochs = 0; epochs < 2; ++epochs) {
      this.currentAsync ??= this.loader[Symbol.asyncIterator]();
      const result = await this.attemptAsync(this.currentAsync);
      if (!result.done) return { done: false, value: result.value };
      this.currentAsync = null;
    }
    throw empty();
  }

  [Symbol.iterator](): this {
    return this;
  }

  [Symbol.asyncIterator](): AsyncIterableIterator<Batch> {
    const iterator: AsyncIterableIterator<Batch> = {
      next: async () => {
        await turn(); // The loader need not be one of ours.
        return this.nextAsync();
      },
      [Symbol.asyncIterator]: () => iterator,
    };
    return iterator;
  }

  /** A failed iteration has ended; the next call begins a new one. */
  private attempt(iterator: Iterator<Batch>): IteratorResult<Batch> {
    try {
      return iterator.next();
    } catch (error) {
      this.current = null;
      throw error;
    }
  }

  private async attemptAsync(iterator: AsyncIterator<Batch>): Promise<IteratorResult<Batch>> {
    try {
      return await iterator.next();
    } catch (error) {
      this.currentAsync = null;
      throw error;
    }
  }
}

function empty(): DsError {
  return dataError('RepeatingLoader', 'a loader with batches', '0 batches in an epoch');
}
