// TrainingRun: the result of train(). A program iterates its events, or awaits its end.
import { DsError } from '../errors.js';
import type { EndEvent, TrainerEvent } from './events.js';

/**
 * A run of Trainer.train(). It starts when the caller iterates or awaits it, and only once. `for
 * await` yields the events; `await` resolves with the last one. If the caller leaves the iteration,
 * training stops after the current update and its evaluation and checkpoint. The next train()
 * continues there.
 */
export class TrainingRun implements AsyncIterable<TrainerEvent>, PromiseLike<EndEvent> {
  private whole: Promise<EndEvent> | null = null;
  private begun = false;

  /** @internal */
  constructor(private readonly events: () => AsyncGenerator<TrainerEvent, EndEvent>) {}

  /** Starts the run. Throws DS_ARGUMENT if it has already started. */
  [Symbol.asyncIterator](): AsyncGenerator<TrainerEvent, EndEvent> {
    if (this.begun) {
      throw new DsError({
        code: 'DS_ARGUMENT',
        op: 'Trainer train',
        expected: 'one iteration of each run',
        got: 'a second iteration',
        hint: 'Call train() again.',
      });
    }
    this.begun = true;
    return this.events();
  }

  /** Trains to the end. Resolves with the end event. */
  // biome-ignore lint/suspicious/noThenProperty: awaiting a run means waiting for its end
  then<Value = EndEvent, Failure = never>(
    resolved?: ((event: EndEvent) => Value | PromiseLike<Value>) | null,
    rejected?: ((reason: unknown) => Failure | PromiseLike<Failure>) | null,
  ): Promise<Value | Failure> {
    this.whole ??= this.drain();
    return this.whole.then(resolved, rejected);
  }

  private async drain(): Promise<EndEvent> {
    const events = this[Symbol.asyncIterator]();
    for (;;) {
      const { done, value } = await events.next();
      if (done) return value;
    }
  }
}
