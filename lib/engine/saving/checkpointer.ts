// Checkpointer: the saves, loads and exports of an engine, one at a time. A save runs at once or on
// a thread.
import type { JsonObject } from '../../../types/json.js';
import {
  BEGIN_EXPORT,
  BEGIN_LOAD,
  BEGIN_SAVE,
  type CheckpointContent,
  type CheckpointWorld,
  type LocalShard,
  onAllRanks,
  requirePath,
  Save,
  type SaveTarget,
  type TagValidation,
  writeTogether,
} from '../../checkpoint/index.js';
import { DsError, type DsErrorCode } from '../../errors.js';
import { mergedNames, requireUnmerged } from '../../peft/index.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { type EngineCalls, StateUse } from '../calls.js';
import { destroyedError, interruptedError } from '../engine-errors.js';
import type { EngineCore } from '../engine-parts.js';
import { resync } from '../step/step-decisions.js';
import { BackgroundSave } from './background-save.js';
import {
  buildCatalog,
  createNameFilter,
  releaseShards,
  weightShards,
  wholeTensors,
} from './engine-shards.js';
import { HostCopy } from './host-copy.js';
import { type LoadedCheckpoint, type LoadOptions, restoreEngine } from './restore.js';
import { type ContentOptions, createContent } from './snapshot.js';
import { StoreWorld } from './store-world.js';

/** Options of engine.saveCheckpoint(). Must be equal on every rank. */
export interface SaveOptions {
  /** Folder name of the checkpoint. Default: "global_step<N>". */
  tag?: string;
  /** A JSON object to store. loadCheckpoint() returns it. Default: {}. */
  clientState?: JsonObject;
  /** Make `latest` name this checkpoint. Default: true. */
  saveLatest?: boolean;
  /** Number of checkpoints to keep in the folder. Older ones are deleted. Default: keep all. */
  keepLast?: number;
  /**
   * Resolve as soon as the state is copied to host memory and all ranks have begun. A thread then
   * writes the files. checkpointDone(), or the next save or load, waits for it, and rejects if it
   * fails. A failure also emits a warning. Default: false.
   */
  asynchronous?: boolean;
  /**
   * Omit frozen parameters, such as the base model of LoRA. Such a checkpoint loads into a model
   * that already has them. Default: false. Source: DeepSpeed's exclude_frozen_parameters.
   */
  excludeFrozenParameters?: boolean;
}

/** Options of engine.save16bitModel(). Must be equal on every rank. */
export interface ExportWeightsOptions {
  /** Omit frozen parameters. Default: false. */
  excludeFrozenParameters?: boolean;
}

/** Label of the exchange that reports a rank's last call. */
const LEAVE_LABEL = 'engine.destroy()';

/** Codes of errors that access to released tensors causes after engine.destroy(). */
const RELEASED_CODES: readonly DsErrorCode[] = ['DS_RELEASED', 'DS_INTERNAL'];

/** Saves and loads checkpoints. All ranks must make the same calls in the same order. */
export class Checkpointer {
  /** The running asynchronous save, or the last one until a caller reads its result. */
  private pending: Promise<string> | null = null;
  private isWriting = false;
  private copy: HostCopy | null = null;
  private isClosed = false;
  private readonly use: StateUse;
  /** Number of running calls. They wait for other ranks. */
  private runningCalls = 0;

  constructor(
    private readonly engine: EngineCore,
    private readonly world: CheckpointWorld,
    calls: Pick<EngineCalls, 'use' | 'groups'> = { use: new StateUse(), groups: [] },
  ) {
    this.use = calls.use;
    if (!(world instanceof StoreWorld)) return;
    world.onAbsence((text) => {
      for (const group of calls.groups) group.giveUp(text);
    });
  }

  /**
   * Writes the checkpoint `dir`/tag atomically: after a crash at any time, either the previous or
   * the new checkpoint is complete. Gradients of an unfinished accumulation step are not saved.
   * During a synchronous save, backward() and step() throw. Resolves with the path of the
   * checkpoint.
   *
   * Rejects on all ranks:
   * - DS_IO: the disk is full.
   * - DS_CHECKPOINT: ranks have different tags, or another rank failed.
   * - DS_ARGUMENT: an unknown option, or a client state that JSON cannot store.
   * - DS_COMM: a rank does not take part.
   * - DS_AUTOGRAD: destroy() or a load during the save.
   */
  save(dir: string, given: SaveOptions): Promise<string> {
    return this.runWhileOpen('saveCheckpoint', () => this.beginSave(dir, given));
  }

  private async beginSave(dir: string, given: SaveOptions): Promise<string> {
    this.use.requireLoaded('saveCheckpoint');
    const { engine, world } = this;
    const read = readOrReport(world, BEGIN_SAVE, () => {
      this.use.requirePresent('saveCheckpoint');
      return readSave(given, engine);
    });
    // An asynchronous save must copy the state before the caller can change it. So a valid call
    // awaits nothing here.
    const { options, contentSettings } = 'then' in read ? await read : read;
    const target = targetOf(engine, dir, options);
    if (this.pending) {
      const { globalSteps } = engine;
      await this.whenDone();
      if (engine.globalSteps !== globalSteps)
        throw stepChangedError(globalSteps, engine.globalSteps);
    }
    this.requireNotInterrupted('saveCheckpoint');
    resync(engine.parts);
    engine.synchronize();
    if (options.asynchronous) return this.saveInBackground(target, contentSettings);
    return this.use.runReading('saveCheckpoint', () => this.saveNow(target, contentSettings));
  }

  /** Writes the state. Calls that would change it throw until the save ends. */
  private async saveNow(target: SaveTarget, settings: ContentOptions): Promise<string> {
    await this.engine.flushMonitors();
    const save = await Save.begin(this.world, target);
    let content: CheckpointContent;
    try {
      content = this.takeContent(settings);
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
   * Loads a checkpoint of any number of ranks and any stage: see restoreEngine(). During the load,
   * forward(), backward() and step() throw.
   */
  load(dir: string, given: LoadOptions): Promise<LoadedCheckpoint> {
    return this.runWhileOpen('loadCheckpoint', () =>
      this.use.runChanging('loadCheckpoint', () => this.loadNow(dir, given)),
    );
  }

  private async loadNow(dir: string, given: LoadOptions): Promise<LoadedCheckpoint> {
    const { engine, world } = this;
    const read = () => readLoad(dir, given);
    const options = await readOrReport(world, BEGIN_LOAD, read);
    await this.whenDone();
    this.requireNotInterrupted('loadCheckpoint');
    resync(engine.parts);
    engine.synchronize();
    return restoreEngine(engine, dir, options, world);
  }

  /**
   * Writes all weights and buffers to the safetensors file `dir`/`file`, in their dtype and under
   * the model's names. Each rank writes its shards, so no rank gathers the model. Merged adapters
   * are omitted, because the weights contain them. Resolves with the path. Rejects on all ranks
   * with DS_IO or DS_COMM. `ds export` writes other formats.
   */
  exportWeights(dir: string, file: string, given: ExportWeightsOptions = {}): Promise<string> {
    return this.runWhileOpen('save16bitModel', () =>
      this.use.runReading('save16bitModel', () => this.exportNow({ dir, file }, given)),
    );
  }

  private async exportNow(
    target: { dir: string; file: string },
    given: ExportWeightsOptions,
  ): Promise<string> {
    const { engine, world } = this;
    const without = await readOrReport(world, BEGIN_EXPORT, () => withoutFrozen(given));
    await this.whenDone();
    resync(engine.parts);
    engine.synchronize();
    engine.parts.hooks.awaitWeights();
    const [isSaved, merged] = [createNameFilter(engine, !without), mergedNames(engine.module)];
    const isWanted = (name: string): boolean => isSaved(name) && !merged.has(name);
    const wholeShards =
      engine.parts.ranks.shardGroup.rank === 0 ? wholeTensors(engine, isWanted) : [];
    const shards = [...weightShards(engine, isWanted), ...wholeShards];
    try {
      return await writeTogether(target, buildCatalog(engine, isWanted).model, shards, world);
    } finally {
      releaseShards(shards);
    }
  }

  /**
   * Resolves with the path of the last asynchronous save when it is complete. Resolves with null
   * without such a save. Rejects once if the save failed. If the next save or load waits for it
   * first, that call rejects instead.
   */
  async whenDone(): Promise<string | null> {
    const { pending } = this;
    try {
      return await pending;
    } finally {
      if (this.pending === pending) this.pending = null;
    }
  }

  /** Refuses all further calls. A running background save still finishes. */
  close(): void {
    this.isClosed = true;
    if (!this.isWriting) this.freeCopy();
    if (this.runningCalls === 0) this.leave();
  }

  private requireNotInterrupted(op: string): void {
    if (this.isClosed) throw interruptedError(op);
  }

  /**
   * Runs a call. If close() comes during the call, errors of released tensors and missing state
   * become DS_AUTOGRAD.
   */
  private async runWhileOpen<Result>(op: string, body: () => Promise<Result>): Promise<Result> {
    if (this.isClosed) throw destroyedError(op);
    this.runningCalls++;
    try {
      return await body();
    } catch (error) {
      const isOwnError = error instanceof DsError && !RELEASED_CODES.includes(error.code);
      throw this.isClosed && !isOwnError ? interruptedError(op, error) : error;
    } finally {
      this.runningCalls--;
      if (this.isClosed && this.runningCalls === 0) this.leave();
    }
  }

  /** Reports to the other ranks that this rank makes no further call. */
  private leave(): void {
    const { world } = this;
    // If the job has ended, the report fails. Then no rank waits for it.
    if (world instanceof StoreWorld) world.announce(LEAVE_LABEL, null).catch(() => {});
  }

  private takeContent(options: ContentOptions): CheckpointContent {
    this.requireNotInterrupted('saveCheckpoint');
    this.engine.parts.hooks.awaitWeights();
    return createContent(this.engine, options);
  }

  /** Copies the state before it returns, so that the caller may train on without await. */
  private async saveInBackground(target: SaveTarget, options: ContentOptions): Promise<string> {
    const world = this.world instanceof StoreWorld ? this.world.beside() : null;
    let copies: CheckpointContent<LocalShard>;
    try {
      copies = this.copyToHost(this.takeContent(options));
    } catch (error) {
      const save = await Save.begin(world ?? this.world, target).catch(() => null);
      await save?.cancel(error);
      throw error;
    }
    const save = new BackgroundSave(target, copies, world);
    release(copies); // The thread shares their memory.
    this.isWriting = true;
    const written = save.whenWritten().finally(() => {
      this.isWriting = false;
      if (this.isClosed) this.freeCopy();
    });
    written.catch(() => {}); // The next caller gets the rejection.
    this.pending = written;
    try {
      await this.engine.flushMonitors();
      const path = await save.whenBegun();
      written.catch(warn);
      return path;
    } catch (error) {
      await written.catch(() => {});
      this.pending = null;
      throw error;
    }
  }

  /** Copies the tensors of `content` to pinned memory and releases them. Returns the copies. */
  private copyToHost(content: CheckpointContent): CheckpointContent<LocalShard> {
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
 * Returns the options of a call, synchronously if they are valid. If `read` throws, returns a
 * promise. It rejects with this error after the other ranks have received it, in the exchange
 * `begin`, the first exchange of their call.
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
    return onAllRanks(world, begin, fail)
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
): { options: SaveOptions; contentSettings: ContentOptions } {
  const options = readOptions('saveCheckpoint', given, namesOf.SaveOptions);
  requireUnmerged('saveCheckpoint', module);
  return { options, contentSettings: contentOptions(options) };
}

function readLoad(dir: string, given: LoadOptions): LoadOptions {
  requirePath('loadCheckpoint', dir);
  return readOptions('loadCheckpoint', given, namesOf.LoadOptions);
}

function contentOptions(given: SaveOptions): ContentOptions {
  const { clientState = {}, excludeFrozenParameters = false } = given;
  return { clientState, excludeFrozenParameters };
}

function withoutFrozen(given: ExportWeightsOptions): boolean {
  const { excludeFrozenParameters: without = false } = readOptions(
    'save16bitModel',
    given,
    namesOf.ExportWeightsOptions,
  );
  return without;
}

function stepChangedError(from: number, to: number): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: 'saveCheckpoint',
    expected: `the state of step ${from}, the step of the call`,
    got: `step ${to}: training continued while the previous save was running`,
    hint: 'Await saveCheckpoint().',
  });
}

function warn(error: Error): void {
  process.emitWarning(`An asynchronous checkpoint was not saved. ${error.message}`, {
    type: 'DsWarning',
    code: 'DS_CHECKPOINT',
  });
}
