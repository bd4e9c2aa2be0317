// Trainer: a model, its data and a configuration become a run that can be watched, stopped and
// resumed.

import type { JsonObject } from '../../types/json.js';
import type { Batched } from '../data/index.js';
import type { Engine } from '../engine/engine.js';
import type { RunWatch } from '../engine/watch/run-watch.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireNoSurplus, requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';
import type { TrainerData } from './data-source.js';
import { type Prediction, predict } from './evaluation.js';
import type { LossInput } from './evaluation-options.js';
import {
  type EndEvent,
  EVENT_TYPES,
  type EventName,
  type Listener,
  Listeners,
  type Metrics,
  type TrainerEvent,
} from './events.js';
import { createStateJson } from './loop.js';
import type { TrainerOptions } from './options.js';
import { readTrainerOptions, type TrainerSettings } from './read-options.js';
import { type Beginning, runOf } from './run.js';
import { closeSession, judge, openSession, type Session } from './session.js';
import type { TrainerState } from './trainer-state.js';
import { TrainingRun } from './training-run.js';
import { writeWeightFolder } from './weight-folder.js';

/** How a call of train() begins and ends; the same on every rank but for the signal. */
export interface TrainOptions {
  /**
   * If it is aborted on any rank, training ends on all ranks after an update, with a checkpoint.
   */
  signal?: AbortSignal;
  /**
   * true: resume from the newest checkpoint of `save.dir`, if there is one. Or the folder of a
   * checkpoint. Default: false.
   */
  resume?: boolean | string;
  /** Also resume the position in the data. Default: true. */
  resumeData?: boolean;
}

/**
 * Trains a model on data with its own engine. On several ranks each has a Trainer of the same
 * options, and all call the same methods. Source: Hugging Face's Trainer.
 */
export class Trainer<Sample = unknown, Batch = Batched<Sample>> {
  private readonly settings: TrainerSettings<Sample, Batch>;
  private readonly listeners = new Listeners();
  private opened: Promise<Session<Batch>> | null = null;
  private isTraining = false;
  private destroyed = false;

  /** Builds nothing yet. Throws DS_ARGUMENT, naming the option that is unknown or wrong. */
  constructor(options: TrainerOptions<Sample, Batch>) {
    this.settings = readTrainerOptions(options);
    for (const callbacks of this.settings.callbacks) {
      for (const [type, callback] of Object.entries(callbacks)) {
        if (callback) this.listeners.add(type as EventName, callback as Listener<EventName>);
      }
    }
  }

  /**
   * Calls `listener` for each event of a type, or of "any", before train() yields it; a returned
   * promise is awaited. Throws DS_ARGUMENT for an unknown type.
   */
  on<Type extends EventName>(type: Type, listener: Listener<Type>): this {
    requireEvent('Trainer on', type);
    requireType('Trainer on', listener, 'function');
    this.listeners.add(type, listener);
    return this;
  }

  /** Ends on(). */
  off<Type extends EventName>(type: Type, listener: Listener<Type>): this {
    requireEvent('Trainer off', type);
    this.listeners.remove(type, listener);
    return this;
  }

  /**
   * Returns the engine. The first call builds it, unless train(), evaluate() or predict() did.
   */
  async engine(): Promise<Engine> {
    return (await this.session()).engine;
  }

  /**
   * Trains from the state of this Trainer, or from a checkpoint, to the end of the run. Training
   * begins when the result is iterated (`for await`: all events) or awaited (the last event).
   * Rejects with errors of the engine, the data, a listener or a save.
   */
  train(given?: TrainOptions): TrainingRun;
  train(given: TrainOptions = {}, ...surplus: readonly unknown[]): TrainingRun {
    requireNoSurplus('Trainer train', surplus);
    const options = readOptions('Trainer train', given, namesOf.TrainOptions);
    const { resume = false, signal } = options;
    if (typeof resume !== 'string') requireType('Trainer train resume', resume, 'boolean');
    if (signal !== undefined && !(signal instanceof AbortSignal)) {
      throw argumentError('Trainer train signal', 'an AbortSignal', formatValue(signal));
    }
    return new TrainingRun(() => this.run(options));
  }

  /**
   * Returns the mean loss of `data` (default: `eval`) per counted target, over all ranks, and the
   * metrics of `eval.accuracy` and `eval.metrics`. Throws DS_ARGUMENT without data.
   */
  evaluate(data?: TrainerData<Sample, Batch>): Promise<Metrics>;
  async evaluate(
    data?: TrainerData<Sample, Batch>,
    ...surplus: readonly unknown[]
  ): Promise<Metrics> {
    requireNoSurplus('Trainer evaluate', surplus);
    const { eval: own, batchSize } = this.settings;
    const judged = data ?? own?.data;
    if (!judged) throw argumentError('Trainer evaluate', 'data, or the option `eval`', 'neither');
    const session = await this.session();
    const how = data ? { accuracy: own?.accuracy, metrics: own?.metrics } : (own ?? {});
    return judge(session, judged as never, { ...how, batchSize: own?.batchSize ?? batchSize });
  }

  /**
   * Returns the rows of `output` for all samples of `data`, in order, on every rank. `output`
   * returns a tensor with one row per sample of a batch. Default for a CausalLM: the most probable
   * next token at each position.
   */
  async predict(
    data: TrainerData<Sample, Batch>,
    output?: (input: LossInput<Batch>) => Tensor,
  ): Promise<Prediction[]> {
    if (output !== undefined) requireType('Trainer predict output', output, 'function');
    const session = await this.session();
    const { eval: own, batchSize } = this.settings;
    const opened = await session.evalData({
      data: data as never,
      batchSize: own?.batchSize ?? batchSize,
    });
    return predict(session, opened, output);
  }

  /**
   * Writes whole weights, config.json and the tokenizer into `dir`, for transformers and
   * nn.models.fromPretrained(). For a model with adapters it writes only the adapters, for PEFT and
   * peft.loadAdapter(). Rejects on all ranks with DS_IO, and with DS_CHECKPOINT if `dir` holds
   * other files.
   */
  save(dir: string): Promise<void>;
  async save(dir: string, ...surplus: readonly unknown[]): Promise<void> {
    requireNoSurplus('Trainer save', surplus);
    requireType('Trainer save', dir, 'string');
    const { engine, world } = await this.session();
    await writeWeightFolder({ engine, world, tokenizer: this.settings.tokenizer }, dir, null);
  }

  /** Returns how far training is; null before the engine is built. */
  async state(): Promise<Readonly<TrainerState>> {
    return (await this.session()).state;
  }

  /** @internal Contents of trainer_state.json. */
  async stateJson(): Promise<JsonObject> {
    return createStateJson(await this.session());
  }

  /**
   * Returns the recording of the option `watch`, with the address of the page; null without one.
   */
  async watched(): Promise<RunWatch | null> {
    return (await this.session()).watch;
  }

  /** Ends training on all ranks after an update, with a checkpoint, as a signal does. */
  async requestStop(): Promise<void> {
    (await this.session()).engine.requestStop();
  }

  /** Frees everything but the weights: see engine.destroy(). */
  async destroy(): Promise<void> {
    this.destroyed = true;
    const opened = await this.opened?.catch(() => null);
    this.opened = null;
    if (opened) await closeSession(opened);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.destroy();
  }

  private session(): Promise<Session<Batch>> {
    if (this.destroyed)
      throw argumentError('Trainer', 'a call before destroy()', 'a call after destroy()');
    this.opened ??= openSession(this.settings);
    return this.opened;
  }

  private async *run({
    signal,
    resume = false,
    resumeData = true,
  }: TrainOptions): AsyncGenerator<TrainerEvent, EndEvent> {
    if (this.isTraining)
      throw argumentError(
        'Trainer train',
        'one run at a time',
        'a second run before the first one has ended',
      );
    this.isTraining = true;
    const session = await this.session().catch((error) => {
      this.isTraining = false;
      throw error;
    });
    const { engine, book } = session;
    const stop = (): void => engine.requestStop();
    signal?.addEventListener('abort', stop);
    try {
      if (signal?.aborted) stop();
      return yield* this.reportEvents(session, { resume, resumeData });
    } finally {
      this.isTraining = false;
      signal?.removeEventListener('abort', stop);
      await book.pause();
    }
  }

  /**
   * Events of a run, for listeners, reports and the caller. If the caller leaves the loop, the
   * current update ends, and only listeners and reports receive its last events.
   */
  private async *reportEvents(
    session: Session<Batch>,
    beginning: Beginning,
  ): AsyncGenerator<TrainerEvent, EndEvent> {
    const { book, data } = session;
    if (!data) throw argumentError('Trainer train', '`train` data', 'none');
    let isLeft = false;
    const events = runOf(session, data, beginning, () => isLeft);
    const next = async (): Promise<IteratorResult<TrainerEvent, EndEvent | null>> => {
      const result = await events.next();
      if (result.done) return result;
      await this.listeners.report(result.value);
      book.report(result.value);
      return result;
    };
    try {
      for (;;) {
        const { done, value } = await next();
        if (done) return required(value);
        isLeft = true;
        yield value;
        isLeft = false;
      }
    } finally {
      while (isLeft) if ((await next()).done) break;
    }
  }
}

function requireEvent(op: string, type: unknown): void {
  if (typeof type === 'string' && Object.hasOwn(EVENT_TYPES, type)) return;
  throw argumentError(op, Object.keys(EVENT_TYPES).join(', '), formatValue(type));
}
