// Trainer: trains a model on data by a configuration. A run can be watched, stopped and resumed.

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
import { type RunStart, runSession } from './run.js';
import { closeSession, evaluateSession, openSession, type Session } from './session.js';
import type { TrainerState } from './trainer-state.js';
import { TrainingRun } from './training-run.js';
import { writeWeightFolder } from './weight-folder.js';

/** Options of train(). Except for `signal`, they must be the same on every rank. */
export interface TrainOptions {
  /**
   * If it is aborted on any rank, training ends on all ranks after the current update, with a
   * checkpoint.
   */
  signal?: AbortSignal;
  /**
   * The folder of the checkpoint to load. true: the newest checkpoint in `save.dir`, if there is
   * one. Default: false.
   */
  resume?: boolean | string;
  /** Whether the data continue at the position of the checkpoint. Default: true. */
  resumeData?: boolean;
}

/**
 * Trains a model on data with an engine that it builds. If there are several ranks, each creates a
 * Trainer with the same options, and all ranks call the same methods. Source: Hugging Face's
 * Trainer.
 */
export class Trainer<Sample = unknown, Batch = Batched<Sample>> {
  private readonly settings: TrainerSettings<Sample, Batch>;
  private readonly listeners = new Listeners();
  private opened: Promise<Session<Batch>> | null = null;
  private isTraining = false;
  private destroyed = false;

  /**
   * Only checks the options; the engine is built later. Throws DS_ARGUMENT with the name of an
   * unknown or invalid option.
   */
  constructor(options: TrainerOptions<Sample, Batch>) {
    this.settings = readTrainerOptions(options);
    for (const callbacks of this.settings.callbacks) {
      for (const [type, callback] of Object.entries(callbacks)) {
        if (callback) this.listeners.add(type as EventName, callback as Listener<EventName>);
      }
    }
  }

  /**
   * Adds a listener for a type of event, or for "any". It is called before train() yields the
   * event. If it returns a promise, the Trainer awaits it. Throws DS_ARGUMENT for an unknown type.
   */
  on<Type extends EventName>(type: Type, listener: Listener<Type>): this {
    requireEvent('Trainer on', type);
    requireType('Trainer on', listener, 'function');
    this.listeners.add(type, listener);
    return this;
  }

  /** Removes a listener that on() has added. Throws DS_ARGUMENT for an unknown type. */
  off<Type extends EventName>(type: Type, listener: Listener<Type>): this {
    requireEvent('Trainer off', type);
    this.listeners.remove(type, listener);
    return this;
  }

  /** Resolves with the engine. Builds it if no earlier call of a method has. */
  async engine(): Promise<Engine> {
    return (await this.session()).engine;
  }

  /**
   * Trains from the current state of this Trainer, or from a checkpoint, to the end of the run.
   * Training starts when the caller iterates the result (`for await` yields all events) or awaits
   * it (`await` resolves with the last event). Rejects with the errors of the engine, the data, a
   * listener or a checkpoint.
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
   * Resolves with the mean loss of `data` per counted target over all ranks, and with the metrics
   * of `eval.accuracy` and `eval.metrics`. Default of `data`: the data of the option `eval`. Throws
   * DS_ARGUMENT without data.
   */
  evaluate(data?: TrainerData<Sample, Batch>): Promise<Metrics>;
  async evaluate(
    data?: TrainerData<Sample, Batch>,
    ...surplus: readonly unknown[]
  ): Promise<Metrics> {
    requireNoSurplus('Trainer evaluate', surplus);
    const { eval: own, batchSize } = this.settings;
    const evalData = data ?? own?.data;
    if (!evalData) throw argumentError('Trainer evaluate', 'data, or the option `eval`', 'neither');
    const session = await this.session();
    const how = data ? { accuracy: own?.accuracy, metrics: own?.metrics } : (own ?? {});
    return evaluateSession(session, evalData as never, {
      ...how,
      batchSize: own?.batchSize ?? batchSize,
    });
  }

  /**
   * Resolves with the outputs for all samples of `data`, in order, on every rank. `output` returns
   * a tensor with one row per sample of a batch. Default for a CausalLM: the most probable next
   * token at each position.
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
   * Writes whole weights, config.json and the tokenizer to `dir`, for transformers and
   * nn.models.fromPretrained(). For a model with adapters, writes only the adapters, for PEFT and
   * peft.loadAdapter(). Rejects on all ranks with DS_IO, and with DS_CHECKPOINT if `dir` contains
   * other files that would be overwritten.
   */
  save(dir: string): Promise<void>;
  async save(dir: string, ...surplus: readonly unknown[]): Promise<void> {
    requireNoSurplus('Trainer save', surplus);
    requireType('Trainer save', dir, 'string');
    const { engine, world } = await this.session();
    await writeWeightFolder({ engine, world, tokenizer: this.settings.tokenizer }, dir, null);
  }

  /** Resolves with the progress of the training. Builds the engine if no earlier call has. */
  async state(): Promise<Readonly<TrainerState>> {
    return (await this.session()).state;
  }

  /** @internal Resolves with the content of trainer_state.json. */
  async stateJson(): Promise<JsonObject> {
    return createStateJson(await this.session());
  }

  /**
   * Resolves with the recording of the option `watch`, which has the address of its page; null
   * without the option.
   */
  async watched(): Promise<RunWatch | null> {
    return (await this.session()).watch;
  }

  /** Ends training on all ranks after the current update, with a checkpoint, as a signal does. */
  async requestStop(): Promise<void> {
    (await this.session()).engine.requestStop();
  }

  /** Frees everything except the weights; see engine.destroy(). */
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
   * Yields the events of a run after the listeners and the reports have received them. If the
   * caller leaves the iteration, the current update is completed, and only listeners and reports
   * receive its events.
   */
  private async *reportEvents(
    session: Session<Batch>,
    start: RunStart,
  ): AsyncGenerator<TrainerEvent, EndEvent> {
    const { book, data } = session;
    if (!data) throw argumentError('Trainer train', '`train` data', 'none');
    let isLeft = false;
    const events = runSession(session, data, start, () => isLeft);
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
