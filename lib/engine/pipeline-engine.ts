// PipelineEngine: the engine of a pipeline model. It trains whole batches with trainBatch().

import type { JointGroups } from '../comm/index.js';
import { RepeatingLoader } from '../data/repeating-loader.js';
import { DsError } from '../errors.js';
import {
  type Action,
  type Links,
  lower,
  type Pipeline,
  type PipelineBatch,
  PipelineRun,
  requireValues,
  type Schedule,
  type StageWorker,
  selectForwards,
  type Values,
} from '../pipe/index.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { required } from '../runtime/required.js';
import { noGrad, Scope, type Tensor, within, zeros } from '../tensor/index.js';
import { Engine } from './engine.js';
import { misuseError } from './engine-errors.js';
import type { EngineParts } from './engine-parts.js';
import type { BatchShapes } from './step/batch-shapes.js';
import { EvaluatingWorker, TrainingWorker } from './step/stage-worker.js';
import type { BatchUse } from './step/step-rows.js';

/** The parts of a pipeline engine in addition to EngineParts. */
interface PipelineParts {
  pipeline: Pipeline;
  schedule: Schedule;
  links: Links;
  shapes: BatchShapes;
}

/**
 * An iterator of micro-batches. trainBatch() and evalBatch() read the micro-batches of one batch
 * from it.
 */
export type MicroBatches = Iterator<unknown> | AsyncIterator<unknown>;

/**
 * Trains and evaluates whole batches. It runs forwards, backwards and the step itself. All ranks
 * must call trainBatch() and evalBatch(). Ranks of the first stage read inputs from their iterator,
 * ranks of the last stage read labels, and other ranks read nothing. Source: DeepSpeed's
 * PipelineEngine.
 */
export class PipelineEngine extends Engine {
  private isRunning = false;
  private defaultBatches: MicroBatches | null = null;
  /**
   * The groups that wait for this rank during a batch. A batch is a whole step, so these are all
   * groups.
   */
  private readonly allGroups: JointGroups;
  private readonly actionLists = new Map<string, readonly Action[]>();

  /** @internal Use initialize(). */
  constructor(
    parts: EngineParts,
    /** @internal */
    readonly pipe: PipelineParts,
  ) {
    super(parts);
    const { world, shardGroup, replicaGroup, tensorGroup, sequenceGroup } = parts.ranks;
    const joint = [
      world,
      shardGroup,
      replicaGroup,
      tensorGroup,
      sequenceGroup,
      ...parts.zeroGroups.own.map(({ group }) => group.group),
      ...pipe.links.channels,
    ];
    this.allGroups = { always: [...new Set(joint)] };
    this.calls.join(this.allGroups);
  }

  /** Number of pipeline stages. */
  get numStages(): number {
    return this.pipe.pipeline.place.ranks;
  }

  /** Index of this rank's stage. */
  get stageId(): number {
    return this.pipe.pipeline.place.rank;
  }

  /** Whether this rank reads inputs. */
  get isFirstStage(): boolean {
    return this.stageId === 0;
  }

  /** Whether this rank reads labels and computes the loss. */
  get isLastStage(): boolean {
    return this.stageId === this.numStages - 1;
  }

  /** @internal Sets `loader`, repeated without end, as the default source of trainBatch(). */
  serveFrom(loader: Iterable<unknown> & AsyncIterable<unknown>): void {
    this.defaultBatches = new RepeatingLoader(loader)[Symbol.asyncIterator]();
  }

  /**
   * Runs one update. `batches` yields gradientAccumulationSteps() micro-batches [inputs, labels].
   * Default: the loader of initialize()'s trainingData, repeated. Resolves on every rank with the
   * mean loss over micro-batches and data ranks, a scalar f32 on the device. Rejects with DS_DATA
   * if there are too few micro-batches, with the errors of the model, and with DS_COMM if another
   * rank failed.
   */
  async trainBatch(batches: MicroBatches | null = this.defaultBatches): Promise<Tensor> {
    const { module, parts } = this;
    this.calls.requireChangeable('engine.trainBatch');
    const micros = this.gradientAccumulationSteps();
    return this.runExclusive('engine.trainBatch', async () => {
      if (!module.training)
        throw misuseError('engine.trainBatch', 'engine.train() before it', 'engine.eval()');
      const items = await this.fetch('engine.trainBatch', batches, micros);
      await this.digestBatch(items, 'inputs', 'labels');
      const cuts = new Scope();
      let worker: TrainingWorker | null = null;
      try {
        const batch = within(cuts, () => parts.curriculum.cutBatches(items));
        worker = new TrainingWorker(parts, this.pipe.pipeline, batch);
        await this.run(this.pipe.schedule, micros, worker);
        this.update();
        return parts.control.meanLoss(micros);
      } finally {
        worker?.dispose();
        cuts.release();
      }
    });
  }

  /**
   * Resolves on every rank with the mean loss of `micros` micro-batches over the data ranks.
   * Changes no state. Rejects as trainBatch() does.
   */
  async evalBatch(
    batches: MicroBatches,
    micros = this.gradientAccumulationSteps(),
  ): Promise<Tensor> {
    const { module, parts } = this;
    this.calls.requireReadable('engine.evalBatch');
    return this.runExclusive('engine.evalBatch', async () => {
      const items = await this.fetch('engine.evalBatch', batches, micros);
      await this.digestBatch(items, 'evaluated inputs', 'evaluated labels');
      const worker = new EvaluatingWorker(parts, this.pipe.pipeline, items);
      const { training } = module;
      module.eval();
      try {
        await this.run(selectForwards(this.pipe.schedule), micros, worker);
        return this.meanLoss(worker.sum, micros);
      } finally {
        module.train(training);
        worker.dispose();
      }
    });
  }

  /** Throws DS_AUTOGRAD: use trainBatch(). */
  override forward<Result = Tensor>(): Result {
    throw inBatchesError('engine.forward');
  }

  /** Throws DS_AUTOGRAD: use trainBatch(). */
  override backward(): void {
    throw inBatchesError('engine.backward');
  }

  /** Throws DS_AUTOGRAD: use trainBatch(). */
  override step(): void {
    throw inBatchesError('engine.step');
  }

  /** Runs a batch. If it fails because ranks have different shapes, the error lists them. */
  private async withShapes<Result>(body: () => Promise<Result>): Promise<Result> {
    try {
      return await body();
    } catch (error) {
      throw await this.pipe.shapes.explain(error, this.globalSteps + 1);
    }
  }

  /**
   * Records the batch for the input digest: inputs on the first stage, labels on the last stage.
   */
  private async digestBatch(
    batches: readonly PipelineBatch[],
    inputs: BatchUse,
    labels: BatchUse,
  ): Promise<void> {
    const { control } = this.parts;
    await this.pipe.shapes.report(batches);
    control.addInputs(
      inputs,
      batches.map(([each]) => each),
    );
    control.addInputs(
      labels,
      batches.map(([, each]) => each),
    );
  }

  /** Drops the gradients of a failed batch. */
  private forget(): void {
    this.parts.control.dropInputs();
    try {
      this.parts.gradients.discard();
    } catch {
      // The discard may fail too, for example if ranks are missing. The error of the batch explains
      // more.
    }
  }

  /** Runs a batch, one at a time. If it fails here, the other ranks get the error at once. */
  private async runExclusive<Result>(op: string, body: () => Promise<Result>): Promise<Result> {
    if (this.isRunning) throw misuseError(op, 'one batch at a time', 'a call inside another');
    this.isRunning = true;
    const { links } = this.pipe;
    try {
      return await this.calls.runAsync(this.allGroups, () =>
        links.reportingFailure(() => this.withShapes(body)),
      );
    } catch (error) {
      this.forget();
      throw error;
    } finally {
      this.isRunning = false;
    }
  }

  private async run(schedule: Schedule, micros: number, worker: StageWorker): Promise<void> {
    const { pipeline, links } = this.pipe;
    const { rank, ranks } = pipeline.place;
    const actions = this.actionsOf(schedule, micros);
    this.parts.hooks.reset();
    this.parts.hooks.awaitWeights();
    pipeline.beginBatch(micros);
    links.beginBatch(micros, worker.kind);
    const position = { rank, ranks, stages: pipeline.stages };
    await new PipelineRun(worker, links, position).run(actions);
  }

  private actionsOf(schedule: Schedule, micros: number): readonly Action[] {
    const { rank, ranks } = this.pipe.pipeline.place;
    const name = `${schedule.name} ${micros}`;
    const known = this.actionLists.get(name) ?? required(lower(schedule, ranks, micros)[rank]);
    this.actionLists.set(name, known);
    return known;
  }

  /**
   * Reads one item per micro-batch. Only the first and the last stage read. Throws DS_DATA if there
   * are too few.
   */
  private async fetch(
    op: string,
    batches: MicroBatches | null,
    micros: number,
  ): Promise<readonly PipelineBatch[]> {
    if (!this.isFirstStage && !this.isLastStage) return [];
    if (typeof batches?.next !== 'function') throw noIteratorError(op, batches);
    const items: PipelineBatch[] = [];
    while (items.length < micros) {
      const result: unknown = await batches.next();
      if (typeof result !== 'object' || result === null) throw noResultError(op, result);
      const { value, done } = result as IteratorResult<unknown>;
      if (done) throw tooFewError(op, items.length, micros);
      items.push(this.readMicroBatch(op, value));
    }
    return items;
  }

  /**
   * Checks one micro-batch. Only the first stage needs valid inputs. Throws DS_DATA or DS_ARGUMENT.
   */
  private readMicroBatch(op: string, item: unknown): PipelineBatch {
    const [inputs, labels] = readBatch(op, item);
    if (!this.isFirstStage) return [inputs, labels];
    const hint = 'A micro-batch is [inputs, labels], made by the collate function of the loader.';
    return [requireValues(`${op}, inputs`, inputs, hint), labels];
  }

  /** Returns, on every rank, the mean of the losses that the last stage summed. */
  private async meanLoss(losses: Tensor | null, micros: number): Promise<Tensor> {
    const { device, parts } = this;
    const { world, mesh, replicaAxes, lossRanks } = parts.ranks;
    const total = losses ?? within(null, () => zeros([], { device }));
    if (world.size > 1) {
      // Each copy of the model has its own loss ranks. If tensor parallelism repeats the loss, only
      // one rank counts it.
      const counts = lossRanks.includes(world.rank) && mesh.place(...replicaAxes) === 0;
      if (!counts) noGrad(() => total.fill_(0));
      world.allReduce(total, { purpose: 'evaluation loss' }).wait();
    }
    return noGrad(() => total.div(micros * lossRanks.length));
  }
}

type Named = Record<string, unknown>;

/**
 * Reads a micro-batch: [inputs, labels], { tokens, targets } or { inputs, labels }. Throws DS_DATA
 * for other items.
 */
function readBatch(op: string, item: unknown): PipelineBatch {
  if (Array.isArray(item) && item.length === 2) return [item[0], item[1]];
  if (isObject(item)) {
    const { tokens, targets, inputs = tokens, labels = targets, ...more } = item as Named;
    const [other] = Object.entries(more).filter(([, value]) => value != null);
    if (inputs !== undefined && !other) return [inputs as Values, labels];
    if (other) throw extraKeyError(op, other[0]);
  }
  throw new DsError({
    code: 'DS_DATA',
    op,
    expected: 'micro-batches [inputs, labels]',
    got: formatValue(item),
    hint: 'Let the collate function of the loader make such pairs.',
  });
}

function extraKeyError(op: string, name: string): DsError {
  return new DsError({
    code: 'DS_DATA',
    op,
    expected: 'only inputs and labels',
    got: `another key, ${name}`,
    hint: 'Only outputs of layers move between stages. Pass it as one of several inputs.',
  });
}

function noIteratorError(op: string, got: unknown): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'an iterator of micro-batches',
    got: formatValue(got),
    hint: 'Use loader[Symbol.asyncIterator]() or list.values(). With trainingData of initialize(), call trainBatch() without arguments.',
  });
}

function noResultError(op: string, got: unknown): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'next() of the iterator to return { value, done }',
    got: formatValue(got),
    hint: 'A generator function, function* () { yield [inputs, labels]; }, returns such iterators.',
  });
}

function tooFewError(op: string, got: number, micros: number): DsError {
  return new DsError({
    code: 'DS_DATA',
    op,
    expected: `${micros} micro-batches (gradient_accumulation_steps)`,
    got: `an iterator that ended after ${got}`,
    hint: 'Use a RepeatingLoader, and the same one on the first and the last stage.',
  });
}

function inBatchesError(op: string): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op,
    expected: 'engine.trainBatch() or engine.evalBatch()',
    got: 'a part of a step',
    hint: 'A pipeline trains by whole batches.',
  });
}
