// RepeatingLoader: repeats a loader endlessly, epoch after epoch. DeepSpeed has a class of this
// name.
import type { DsError } from '../errors.js';
import { waitForEventLoop } from '../runtime/event-loop.js';
import { dataError, valueError } from '../runtime/input-errors.js';

function isIterable(loader: Partial<Iterable<unknown> & AsyncIterable<unknown>> | null): boolean {
  const begins = [loader?.[Symbol.iterator], loader?.[Symbol.asyncIterator]];
  return begins.some((begin) => typeof begin === 'function');
}

/**
 * Returns the batches of a loader, from the loader's position on. At the end of an epoch it starts
 * the next epoch. All uses (next(), `for`, iterators) continue the same iteration. nextAsync() and
 * `for await` also serve datasets of promises.
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
   * Returns the next batch; `done` is always false. Throws DS_DATA if an epoch has no batch, and
   * the errors of the loader.
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

  /** Resolves with the next batch. Required if the dataset returns promises. */
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
        // A loader of another class may not let the event loop run.
        await waitForEventLoop();
        return this.nextAsync();
      },
      [Symbol.asyncIterator]: () => iterator,
    };
    return iterator;
  }

  /**
   * Returns the next result of the iteration. After an error, the next call starts a new iteration.
   */
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
