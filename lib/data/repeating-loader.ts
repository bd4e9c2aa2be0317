// RepeatingLoader: repeats a loader without end, epoch after epoch, like DeepSpeed's class of this
// name.
import type { DsError } from '../errors.js';
import { waitForEventLoop } from '../runtime/event-loop.js';
import { dataError, valueError } from '../runtime/input-errors.js';

function isIterable(loader: Partial<Iterable<unknown> & AsyncIterable<unknown>> | null): boolean {
  const begins = [loader?.[Symbol.iterator], loader?.[Symbol.asyncIterator]];
  return begins.some((begin) => typeof begin === 'function');
}

/**
 * Serves batches from the loader's position on. At the end of an epoch, it begins the next one. It
 * keeps one iteration: next(), `for` and iterators all continue at the same position. nextAsync()
 * and `for await` serve a dataset of promises. Throws DS_ARGUMENT if `loader` is not iterable.
 */
export class RepeatingLoader<Batch> implements IterableIterator<Batch> {
  private current: Iterator<Batch> | null = null;
  private currentAsync: AsyncIterator<Batch> | null = null;

  /** Throws DS_ARGUMENT unless `loader` can be iterated. */
  constructor(
    /** The loader to repeat. */
    readonly loader: Iterable<Batch> & AsyncIterable<Batch>,
  ) {
    if (!isIterable(loader)) throw valueError('RepeatingLoader', 'a loader of batches', loader);
  }

  /**
   * Returns the next batch; `done` is always false. Throws DS_DATA if the loader is empty, and
   * errors of the loader.
   */
  next(): IteratorYieldResult<Batch> {
    for (let epochs = 0; epochs < 2; ++epochs) {
      this.current ??= this.loader[Symbol.iterator]();
      const result = this.advance(this.current);
      if (!result.done) return { done: false, value: result.value };
      this.current = null;
    }
    throw emptyLoaderError();
  }

  /** Returns the next batch, for asynchronous loaders. */
  async nextAsync(): Promise<IteratorYieldResult<Batch>> {
    for (let epochs = 0; epochs < 2; ++epochs) {
      this.currentAsync ??= this.loader[Symbol.asyncIterator]();
      const result = await this.advanceAsync(this.currentAsync);
      if (!result.done) return { done: false, value: result.value };
      this.currentAsync = null;
    }
    throw emptyLoaderError();
  }

  [Symbol.iterator](): this {
    return this;
  }

  [Symbol.asyncIterator](): AsyncIterableIterator<Batch> {
    const iterator: AsyncIterableIterator<Batch> = {
      next: async () => {
        await waitForEventLoop(); // Other classes of loaders may not wait.
        return this.nextAsync();
      },
      [Symbol.asyncIterator]: () => iterator,
    };
    return iterator;
  }

  /** Advances the iteration. After an error, the next call begins a new iteration. */
  private advance(iterator: Iterator<Batch>): IteratorResult<Batch> {
    try {
      return iterator.next();
    } catch (error) {
      this.current = null;
      throw error;
    }
  }

  private async advanceAsync(iterator: AsyncIterator<Batch>): Promise<IteratorResult<Batch>> {
    try {
      return await iterator.next();
    } catch (error) {
      this.currentAsync = null;
      throw error;
    }
  }
}

function emptyLoaderError(): DsError {
  return dataError('RepeatingLoader', 'a loader with batches', '0 batches in an epoch');
}
