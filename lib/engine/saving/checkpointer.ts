// Saving and loading an engine: one at a time, in this call or beside training.
import type { JsonObject } from '../../../types/json.js';
import {
  BEGIN_EXPORT,
  BEGIN_LOAD,
  BEGIN_SAVE,
  type CheckpointContent,
  type CheckpointWorld,
  inUnison,
  type LocalShard,
  requirePath,
  Save,
  type SaveTarget,
  type TagValidation,
  writeTogether,
} from '../../checkpoint/index.js';
import type { ProcessGroup } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import { mergedNames, requireUnmerged } from '../../peft/index.js';
import { type OptionNames, readOptions } from '../../runtime/options.js';
import { requireType } from '../../runtime/require-type.js';
import { destroyed, interrupted } from '../engine-errors.js';
import type { EngineCore } from '../engine-parts.js';
import { resync } from '../step/resync.js';
import { BackgroundSave } from './background-save.js';
import { catalogOf, releaseShards, wantedOf, weightShards, wholeTensors } from './engine-shards.js';
import { HostCopy } from './host-copy.js';
import { type LoadedCheckpoint, type LoadOptions, restoreEngine } from './restore.js';
import { type ContentOptions, contentOf } from './snapshot.js';
import { standBy } from './stand-by.js';
import { StateUse } from './state-use.js';
import { StoreWorld } from './store-world.js';

/** Options of engine.saveCheckpoint(), the same on every rank. */
export interface SaveOptions {
  /** Default "global_step<N>". */
  tag?: string;
  /** Anything that JSON keeps; returned by load. */
  clientState?: JsonObject;
  /** Point `latest` at this checkpoint. Default true. */
  saveLatest?: boolean;
  /** Delete all but this many checkpoints of the folder, oldest first. Default: none is deleted. */
  keepLast?: number;
  /**
   * Resolve as soon as the state has been copied to host memory and all ranks have begun; a thread
   * writes it, whatever this one does. Its end and its failure come with checkpointDone(), or the
   * next save or load; a failure is also a warning. Default false.
   */
  asynchronous?: boolean;
  /**
   * Leave out what is not trained, as with LoRA the base model: load into a model that has it
   * already. Default false. Source: DeepSpeed's exclude_frozen_parameters.
   */
  excludeFrozenParameters?: boolean;
}

/** Options of engine.save16bitModel(), the same on every rank. */
export interface ExportWeightsOptions {
  /** Leave out what is not trained. Default false. */
  excludeFrozenParameters?: boolean;
}

const EXPORT_OPTIONS: OptionNames<ExportWeightsOptions> = { excludeFrozenParameters: true };

const SAVE_OPTIONS: OptionNames<SaveOptions> = {
  tag: true,
  clientState: true,
  saveLatest: true,
  keepLast: true,
  asynchronous: true,
  excludeFrozenParameters: true,
};

const LOAD_OPTIONS: OptionNames<LoadOptions> = {
  tag: true,
  loadModuleStrict: true,
  loadOptimizerStates: true,
  loadLrSchedulerStates: true,
  loadModuleOnly: true,
  loadCompanions: true,
};

/** What the others find in place of this rank's next call. */
const LEFT = 'engine.destroy()';

/** Every rank makes the same calls in the same order. */
export class Checkpointer {
  /** The asynchronous save under way, or the last one while its result has not been asked for. */
  private pending: Promise<string> | null = null;
  private writing = false;
  private copy: HostCopy | null = null;
  private closed = false;
  private readonly use = new StateUse();
  /** Calls under way, which meet the other ranks. */
  private calls = 0;

  constructor(
    private readonly engine: EngineCore,
    private readonly world: CheckpointWorld,
    /** The groups in which other ranks may wait for this one. */
    groups: () => readonly ProcessGroup[] = () => [],
  ) {
    standBy(world, groups);
  }

  /**
   * Writes `dir`/tag atomically: a crash at any moment leaves the previous checkpoint or the new
   * one, complete. Gradients of an unfinished accumulation step are not part of it. Returns the
   * checkpoint's path. Rejects on all ranks with DS_IO (disk full), DS_CHECKPOINT (different tags,
   * and what fails on another rank), DS_ARGUMENT (an unknown option, a client state that JSON does
   * not keep), DS_COMM (a rank does not take part) or DS_AUTOGRAD (destroy() or a load while it
   * writes). Until a synchronous save has ended, backward() and step() are refused.
   */
  save(dir: string, given: SaveOptions): Promise<string> {
    return this.whileOpen('saveCheckpoint', () => this.saved(dir, given));
  }

  private async saved(dir: string, given: SaveOptions): Promise<string> {
    this.use.requireLoaded('saveCheckpoint');
    const { engine, world } = this;
    const read = readOrReport(world, BEGIN_SAVE, () => readSave(given, engine));
    // An asynchronous save takes its state within the call: nothing is awaited where all is well.
    const { options, wanted } = 'then' in read ? await read : read;
    const target = targetOf(engine, dir, options);
    if (this.pending) {
      const { globalSteps } = engine;
      await this.done();
      if (engine.globalSteps !== globalSteps) throw goneOn(globalSteps, engine.globalSteps);
    }
    this.requireNotInterrupted('saveCheckpoint');
    resync(engine.parts);
    engine.synchronize();
    if (options.asynchronous) return this.saveBeside(target, wanted);
    return this.use.reading('saveCheckpoint', () => this.saveNow(target, wanted));
  }

  /** Writes the state; who changes it meanwhile is refused. */
  private async saveNow(target: SaveTarget, wanted: ContentOptions): Promise<string> {
    await this.engine.flushMonitors();
    const save = await Save.begin(this.world, target);
    let content: CheckpointContent;
    try {
      content = this.takeContent(wanted);
    } catch (error) {
      await save.cancel(error);
      throw error;
    }
    try {
      return await save.write(content);
    } finally {
      release(content);
    }
  }

  /**
   * Resumes from a checkpoint saved by any number of ranks at any stage: see restoreEngine. Until
   * it has ended, forward(), backward() and step() are refused.
   */
  load(dir: string, given: LoadOptions): Promise<LoadedCheckpoint> {
    return this.whileOpen('loadCheckpoint', () =>
      this.use.changing('loadCheckpoint', () => this.loadNow(dir, given)),
    );
  }

  private async loadNow(dir: string, given: LoadOptions): Promise<LoadedCheckpoint> {
    const { engine, world } = this;
    const read = () => readLoad(dir, given);
    const options = await readOrReport(world, BEGIN_LOAD, read);
    await this.done();
    resync(engine.parts);
    engine.synchronize();
    return restoreEngine(engine, dir, options, world);
  }

  /**
   * Writes all weights and buffers as they are (f32 in an fp32 run) into the safetensors file
   * `dir`/`file` under the model's names; no rank gathers them. Merged adapters are left out: the
   * weights have them. Returns its path. Rejects on all ranks with DS_IO or DS_COMM. `ds
   * consolidate` makes other formats.
   */
  exportWeights(dir: string, file: string, given: ExportWeightsOptions = {}): Promise<string> {
    return this.whileOpen('save16bitModel', () =>
      this.use.reading('save16bitModel', () => this.exportNow({ dir, file }, given)),
    );
  }

  private async exportNow(
    target: { dir: string; file: string },
    given: ExportWeightsOptions,
  ): Promise<string> {
    const { engine, world } = this;
    const without = await readOrReport(world, BEGIN_EXPORT, () => withoutFrozen(given));
    await this.done();
    resync(engine.parts);
    engine.synchronize();
    engine.parts.hooks.awaitWeights();
    const [own, merged] = [wantedOf(engine, !without), mergedNames(engine.module)];
    const wanted = (name: string): boolean => own(name) && !merged.has(name);
    const whole = engine.parts.ranks.shards.rank === 0 ? wholeTensors(engine, wanted) : [];
    const shards = [...weightShards(engine, wanted), ...whole];
    try {
      return await writeTogether(target, catalogOf(engine, wanted).model, shards, world);
    } finally {
      releaseShards(shards);
    }
  }

  /**
   * Resolves with the path of the last asynchronous save once it is complete, null where there is
   * none. Rejects with what made it fail, once; the next save or load waits and rejects likewise.
   */
  async done(): Promise<string | null> {
    const { pending } = this;
    try {
      return await pending;
    } finally {
      if (this.pending === pending) this.pending = null;
    }
  }

  /** A save under way is finished all the same. */
  close(): void {
    this.closed = true;
    if (!this.writing) this.freeCopy();
    if (this.calls === 0) this.leave();
  }

  /**
   * Throws DS_AUTOGRAD while a call that was not awaited saves or loads: `op` changes the state.
   */
  requireIdle(op: string): void {
    this.use.requireIdle(op);
  }

  /** Throws DS_AUTOGRAD while a call that was not awaited loads: `op` reads the state. */
  requireLoaded(op: string): void {
    this.use.requireLoaded(op);
  }

  private requireNotInterrupted(op: string): void {
    if (this.closed) throw interrupted(op);
  }

  /**
   * Runs a call, which begins at once and meets the other ranks. Where close() comes in the middle,
   * what it meets of an engine that is gone is said to be that.
   */
  private async whileOpen<Result>(op: string, body: () => Promise<Result>): Promise<Result> {
    if (this.closed) throw destroyed(op);
    this.calls++;
    try {
      return await body();
    } catch (error) {
      const isOfItself = error instanceof DsError && error.code !== 'DS_RELEASED';
      throw this.closed && !isOfItself ? interrupted(op, error) : error;
    } finally {
      this.calls--;
      if (this.closed && this.calls === 0) this.leave();
    }
  }

  /** Ranks that come to one more call learn at once that this one does not. */
  private leave(): void {
    const { world } = this;
    // Where the job is over, nobody waits.
    if (world instanceof StoreWorld) world.announce(LEFT, null).catch(() => {});
  }

  private takeContent(options: ContentOptions): CheckpointContent {
    this.requireNotInterrupted('saveCheckpoint');
    this.engine.parts.hooks.awaitWeights();
    return contentOf(this.engine, options);
  }

  /** Takes the state before it returns, so that training may go on even where nobody awaits it. */
  private async saveBeside(target: SaveTarget, options: ContentOptions): Promise<string> {
    const world = this.world instanceof StoreWorld ? this.world.beside() : null;
    let copies: CheckpointContent<LocalShard>;
    try {
      copies = this.copied(this.takeContent(options));
    } catch (error) {
      const save = await Save.begin(world ?? this.world, target).catch(() => null);
      await save?.cancel(error);
      throw error;
    }
    const save = new BackgroundSave(target, copies, world);
    release(copies); // The thread shares their memory.
    this.writing = true;
    const written = save.written().finally(() => {
      this.writing = false;
      if (this.closed) this.freeCopy();
    });
    written.catch(() => {}); // Whoever asks for it next is told.
    this.pending = written;
    try {
      await this.engine.flushMonitors();
      const path = await save.begun();
      written.catch(warn);
      return path;
    } catch (error) {
      await written.catch(() => {});
      this.pending = null;
      throw error;
    }
  }

  /** The content in pinned memory of its own; its tensors are released. */
  private copied(content: CheckpointContent): CheckpointContent<LocalShard> {
    try {
      this.copy ??= new HostCopy(this.engine.device);
      const copies = this.copy.take([...content.model, ...content.optimizer]);
      const model = copies.slice(0, content.model.length);
      const optimizer = copies.slice(content.model.length);
      this.copy.wait();
      return { ...content, model, optimizer };
    } finally {
      release(content);
    }
  }

  private freeCopy(): void {
    this.copy?.dispose();
    this.copy = null;
  }
}

/**
 * What `read` makes of the options of a call, at once. Where it throws, a promise that rejects with
 * that when the other ranks have it, in the exchange `begin`, by which their call begins in the
 * same world.
 */
function readOrReport<Options>(
  world: CheckpointWorld,
  begin: string,
  read: () => Options,
): Options | Promise<never> {
  try {
    return read();
  } catch (error) {
    const fail = () => Promise.reject(error);
    return inUnison(world, begin, fail)
      .catch(() => {})
      .then(fail);
  }
}

function release({ model, optimizer }: Pick<CheckpointContent, 'model' | 'optimizer'>): void {
  releaseShards(model);
  releaseShards(optimizer);
}

function targetOf(engine: EngineCore, dir: string, options: SaveOptions): SaveTarget {
  const { tag = `global_step${engine.globalSteps}`, saveLatest = true, keepLast } = options;
  const { asynchronous = false } = options;
  const tagValidation: TagValidation = engine.config.checkpoint.tag_validation;
  return { dir, tag, saveLatest, keepLast, tagValidation, asynchronous };
}

function readSave(
  given: SaveOptions,
  { module }: EngineCore,
): { options: SaveOptions; wanted: ContentOptions } {
  const options = readOptions('saveCheckpoint', given, SAVE_OPTIONS);
  const { asynchronous = false, saveLatest = true } = options;
  requireType('saveCheckpoint asynchronous', asynchronous, 'boolean');
  requireType('saveCheckpoint saveLatest', saveLatest, 'boolean');
  requireUnmerged('saveCheckpoint', module);
  return { options, wanted: contentOptions(options) };
}

function readLoad(dir: string, given: LoadOptions): LoadOptions {
  requirePath('loadCheckpoint', dir);
  const options = readOptions('loadCheckpoint', given, LOAD_OPTIONS);
  for (const [name, value] of Object.entries(options)) {
    if (name !== 'tag' && value !== undefined)
      requireType(`loadCheckpoint ${name}`, value, 'boolean');
  }
  return options;
}

function contentOptions(given: SaveOptions): ContentOptions {
  const { clientState = {}, excludeFrozenParameters = false } = given;
  requireType('saveCheckpoint excludeFrozenParameters', excludeFrozenParameters, 'boolean');
  return { clientState, excludeFrozenParameters };
}

function withoutFrozen(given: ExportWeightsOptions): boolean {
  const { excludeFrozenParameters: without = false } = readOptions(
    'save16bitModel',
    given,
    EXPORT_OPTIONS,
  );
  requireType('save16bitModel excludeFrozenParameters', without, 'boolean');
  return without;
}

function goneOn(from: number, to: number): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: 'saveCheckpoint',
    expected: `the state of step ${from}, in which it was called`,
    got: `that of step ${to}: training went on while the save before was being written`,
    hint: 'Await saveCheckpoint().',
  });
}

function warn(error: Error): void {
  process.emitWarning(`An asynchronous checkpoint was not saved. ${error.message}`, {
    type: 'DsWarning',
    code: 'DS_CHECKPOINT',
  });
}
