// PipelineEngine: the engine of a model in stages, which trains by whole batches.
import type { JointGroups, ProcessGroup } from '../comm/index.js';
import { RepeatingLoader } from '../data/repeating-loader.js';
import { DsError } from '../errors.js';
import {
  type Action,
  forwardsOf,
  type Links,
  lower,
  type Pipeline,
  type PipelineBatch,
  PipelineRun,
  requireValues,
  type Schedule,
  type StageWorker,
  type Values,
} from '../pipe/index.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { noGrad, Scope, type Tensor, within, zeros } from '../tensor/index.js';
import { Engine } from './engine.js';
import { misuse } from './engine-errors.js';
import type { EngineParts } from './engine-parts.js';
import type { BatchShapes } from './step/batch-shapes.js';
import { EvaluatingWorker, TrainingWorker } from './step/stage-worker.js';
import type { Given } from './step/step-rows.js';

/** What a pipeline engine has beside an engine's parts. */
export interface PipelineParts {
  pipeline: Pipeline;
  schedule: Schedule;
  links: Links;
  shapes: BatchShapes;
  /** Groups of stages that share weights. */
  ties: readonly { group: ProcessGroup }[];
}

/** Micro-batches: an iterator that is asked for as many as a batch has, on every call. */
export type MicroBatches = Iterator<unknown> | AsyncIterator<unknown>;

/**
 * Trains and evaluates in whole batches: forward(), backward() and step() are its own. Every rank
 * calls trainBatch() and evalBatch() alike; those of the first stage read inputs from their
 * iterator, those of the last one labels, and the others read nothing. Source: DeepSpeed's
 * PipelineEngine.
 */
export class PipelineEngine extends Engine {
  private isRunning = false;
  private served: MicroBatches | null = null;
  /** Who waits for this rank in a batch: a step is whole there, so all of them do. */
  private readonly together: JointGroups;
  private readonly lists = new Map<string, readonly Action[]>();

  /** @internal Use initialize(). */
  constructor(
    parts: EngineParts,
    /** @internal */
    readonly pipe: PipelineParts,
  ) {
    super(parts);
    const { world, shards, replicas, layers, tokens } = parts.ranks;
    const tied = pipe.ties.map(({ group }) => group);
    const joint = [world, shards, replicas, layers, tokens, ...tied, ...pipe.links.channels];
    this.together = { always: [...new Set(joint)] };
    this.calls.join(this.together);
  }

  /** Stages of the pipeline. */
  get numStages(): number {
    return this.pipe.pipeline.place.ranks;
  }

  /** This rank's place in the pipeline. */
  get stageId(): number {
    return this.pipe.pipeline.place.rank;
  }

  /** Whether this rank reads inputs. */
  get isFirstStage(): boolean {
    return this.stageId === 0;
  }

  /** Whether this rank reads labels and has the loss first. */
  get isLastStage(): boolean {
    return this.stageId === this.numStages - 1;
  }

  /** @internal trainBatch() without an iterator reads from `loader`, again and again. */
  serveFrom(loader: Iterable<unknown> & AsyncIterable<unknown>): void {
    this.served = new RepeatingLoader(loader)[Symbol.asyncIterator]();
  }

  /**
   * One update from gradientAccumulationSteps() micro-batches, which `batches` gives as [inputs,
   * labels], by default the loader of initialize()'s trainingData, over and over; resolves with
   * their mean loss over the data ranks, a scalar f32 on the device, on every rank. Rejects with
   * DS_DATA when there are fewer, and with what the model throws; DS_COMM where another rank has
   * failed.
   */
  async trainBatch(batches: MicroBatches | null = this.served): Promise<Tensor> {
    const { module, parts } = this;
    this.requireChangeable('engine.trainBatch');
    const micros = this.gradientAccumulationSteps();
    return this.alone('engine.trainBatch', async () => {
      if (!module.training)
        throw misuse('engine.trainBatch', 'engine.train() before it', 'engine.eval()');
      const given = await this.fetch('engine.trainBatch', batches, micros);
      await this.noteBatch(given, 'inputs', 'labels');
      const cuts = new Scope();
      let worker: TrainingWorker | null = null;
      try {
        const batch = within(cuts, () => parts.curriculum.batches(given));
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
   * The mean loss of `micros` micro-batches over the data ranks, on every rank; nothing changes.
   * Rejects as trainBatch().
   */
  async evalBatch(
    batches: MicroBatches,
    micros = this.gradientAccumulationSteps(),
  ): Promise<Tensor> {
    const { module, parts } = this;
    this.calls.requireOpen('engine.evalBatch');
    return this.alone('engine.evalBatch', async () => {
      const given = await this.fetch('engine.evalBatch', batches, micros);
      await this.noteBatch(given, 'evaluated inputs', 'evaluated labels');
      const worker = new EvaluatingWorker(parts, this.pipe.pipeline, given);
      const { training } = module;
      module.eval();
      try {
        await this.run(forwardsOf(this.pipe.schedule), micros, worker);
        return this.shared(worker.sum, micros);
      } finally {
        module.train(training);
        worker.dispose();
      }
    });
  }

  /** Throws: see trainBatch(). */
  override forward<Result = Tensor>(): Result {
    throw inBatches('engine.forward');
  }

  /** Throws: see trainBatch(). */
  override backward(): void {
    throw inBatches('engine.backward');
  }

  /** Throws: see trainBatch(). */
  override step(): void {
    throw inBatches('engine.step');
  }

  /** Runs a batch; where shapes of another rank are why it fails, the error says that. */
  private async explaining<Result>(body: () => Promise<Result>): Promise<Result> {
    try {
      return await body();
    } catch (error) {
      throw await this.pipe.shapes.explain(error, this.globalSteps + 1);
    }
  }

  /** The first stage computes with the inputs and the last one with the labels. */
  private async noteBatch(
    given: readonly PipelineBatch[],
    inputs: Given,
    labels: Given,
  ): Promise<void> {
    const { control } = this.parts;
    await this.pipe.shapes.report(given);
    control.addInputs(
      inputs,
      given.map(([each]) => each),
    );
    control.addInputs(
      labels,
      given.map(([, each]) => each),
    );
  }

  /** A batch that has failed leaves no gradients. */
  private forget(): void {
    this.parts.control.dropInputs();
    try {
      this.parts.gradients.discard();
    } catch {
      // Ranks are missing, for example; why the batch has failed says more.
    }
  }

  /** Runs a batch; where it fails here, the other ranks are told at once. */
  private async alone<Result>(op: string, body: () => Promise<Result>): Promise<Result> {
    if (this.isRunning) throw misuse(op, 'one batch at a time', 'a call inside another');
    this.isRunning = true;
    const { links } = this.pipe;
    try {
      return await this.calls.inTurns(this.together, () =>
        links.reporting(() => this.explaining(body)),
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
    pipeline.begin(micros);
    links.begin(micros, worker.kind);
    const place = { rank, ranks, stages: pipeline.stages };
    await new PipelineRun(worker, links, place).run(actions);
  }

  private actionsOf(schedule: Schedule, micros: number): readonly Action[] {
    const { rank, ranks } = this.pipe.pipeline.place;
    const name = `${schedule.name} ${micros}`;
    const known = this.lists.get(name) ?? (lower(schedule, ranks, micros)[rank] as Action[]);
    this.lists.set(name, known);
    return known;
  }

  /**
   * The first and the last stage read as many items as there are micro-batches. Throws DS_DATA for
   * fewer.
   */
  private async fetch(
    op: string,
    batches: MicroBatches | null,
    micros: number,
  ): Promise<readonly PipelineBatch[]> {
    if (!this.isFirstStage && !this.isLastStage) return [];
    if (typeof batches?.next !== 'function') throw noIterator(op, batches);
    const found: PipelineBatch[] = [];
    while (found.length < micros) {
      const given: unknown = await batches.next();
      if (typeof given !== 'object' || given === null) throw noResult(op, given);
      const { value, done } = given as IteratorResult<unknown>;
      if (done) throw tooFew(op, found.length, micros);
      found.push(this.batchOf(op, value));
    }
    return found;
  }

  /**
   * The first stage reads inputs, and others may give something else in their place. Throws
   * DS_DATA, DS_ARGUMENT.
   */
  private batchOf(op: string, item: unknown): PipelineBatch {
    const [inputs, labels] = batchOf(op, item);
    if (!this.isFirstStage) return [inputs, labels];
    const hint = 'A micro-batch is [inputs, labels], made by the collate function of the loader.';
    return [requireValues(`${op}, inputs`, inputs, hint), labels];
  }

  /** The mean of what the last stage has summed, on every rank. */
  private async shared(losses: Tensor | null, micros: number): Promise<Tensor> {
    const { device, parts } = this;
    const { world, mesh, copies, reporters } = parts.ranks;
    const total = losses ?? within(null, () => zeros([], { device }));
    if (world.size > 1) {
      // Copies have tellers of their own, and ranks that share layers the losses of one.
      const counts = reporters.includes(world.rank) && mesh.place(...copies) === 0;
      if (!counts) noGrad(() => total.fill_(0));
      world.allReduce(total, { purpose: 'evaluation loss' }).wait();
    }
    return noGrad(() => total.div(micros * reporters.length));
  }
}

type Named = Record<string, unknown>;

/**
 * [inputs, labels], { tokens, targets } or { inputs, labels }. Throws DS_DATA for anything else.
 */
function batchOf(op: string, item: unknown): PipelineBatch {
  if (Array.isArray(item) && item.length === 2) return [item[0], item[1]];
  if (isObject(item)) {
    const { tokens, targets, inputs = tokens, labels = targets, ...more } = item as Named;
    const [other] = Object.entries(more).filter(([, value]) => value != null);
    if (inputs !== undefined && !other) return [inputs as Values, labels];
    if (other) throw beside(op, other[0]);
  }
  throw new DsError({
    code: 'DS_DATA',
    op,
    expected: 'micro-batches [inputs, labels]',
    got: formatValue(item),
    hint: 'Let the collate function of the loader make such pairs.',
  });
}

function beside(op: string, name: string): DsError {
  return new DsError({
    code: 'DS_DATA',
    op,
    expected: 'inputs and labels alone',
    got: `${name} beside them`,
    hint: 'Only what layers give each other travels between stages: give it as one of several inputs.',
  });
}

function noIterator(op: string, got: unknown): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'an iterator of micro-batches',
    got: formatValue(got),
    hint: 'Of a loader it is loader[Symbol.asyncIterator](), of a list list.values(); trainBatch() needs none with the trainingData of initialize().',
  });
}

function noResult(op: string, got: unknown): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'an iterator whose next() gives { value, done }',
    got: formatValue(got),
    hint: 'A generator function, function* () { yield [inputs, labels]; }, makes such iterators.',
  });
}

function tooFew(op: string, got: number, micros: number): DsError {
  return new DsError({
    code: 'DS_DATA',
    op,
    expected: `${micros} micro-batches (gradient_accumulation_steps)`,
    got: `an iterator that ended after ${got}`,
    hint: 'Use a RepeatingLoader, and the same one on the first and the last stage.',
  });
}

function inBatches(op: string): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op,
    expected: 'engine.trainBatch() or engine.evalBatch()',
    got: 'a part of a step',
    hint: 'A pipeline trains by whole batches.',
  });
}
