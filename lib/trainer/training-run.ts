// One call of train(): its events are iterated, or the whole run is awaited.
import { DsError } from '../errors.js';
import type { EndEvent, TrainerEvent } from './events.js';

/**
 * Begins when it is iterated or awaited, once. `for await` gives the events, `await` the last one.
 * To leave the iteration is to leave training after the update under way, with the evaluation and
 * the checkpoint that are due behind it: train() goes on as if nobody had left.
 */
export class TrainingRun implements AsyncIterable<TrainerEvent>, PromiseLike<EndEvent> {
  private whole: Promise<EndEvent> | null = null;
  private begun = false;

  /** @internal */
  constructor(private readonly events: () => AsyncGenerator<TrainerEvent, EndEvent>) {}

  /** Throws DS_ARGUMENT where it has begun before. */
  [Symbol.asyncIterator](): AsyncGenerator<TrainerEvent, EndEvent> {
    if (this.begun) {
      throw new DsError({
        code: 'DS_ARGUMENT',
        op: 'Trainer train',
        expected: 'one iteration of a run',
        got: 'another one',
        hint: 'Call train() again.',
      });
    }
    this.begun = true;
    return this.events();
  }

  /** Trains to the end; resolves with the event that says why that is. */
  // biome-ignore lint/suspicious/noThenProperty: to await a run is to wait for its end
  then<Value = EndEvent, Failure = never>(
    resolved?: ((event: EndEvent) => Value | PromiseLike<Value>) | null,
    rejected?: ((reason: unknown) => Failure | PromiseLike<Failure>) | null,
  ): Promise<Value | Failure> {
    this.whole ??= this.drained();
    return this.whole.then(resolved, rejected);
  }

  private async drained(): Promise<EndEvent> {
    const events = this[Symbol.asyncIterator]();
    for (;;) {
      const { done, value } = await events.next();
      if (done) return value;
    }
  }
}
