// initialize(): a model and a ds_config.json become an engine, as deepspeed.initialize does.
import type { DsConfig } from '../types/config.js';
import {
  aloneOn,
  type Distributed,
  distributed as joinedBefore,
  joinLaunched,
  type MeshOptions,
} from './comm/index.js';
import {
  type AutoSources,
  plannedConfigs,
  type ResolvedConfig,
  resolveConfig,
} from './config/index.js';
import { type ConfigArguments, configSource, readParallelSizes } from './config/source.js';
import { requireServable } from './data/dataset.js';
import {
  type Batched,
  DataLoader,
  type Dataset,
  DistributedSampler,
  type IterableDataset,
  IterableLoader,
} from './data/index.js';
import { isIterableDataset } from './data/iterable-dataset.js';
import {
  createSampler,
  isSampled,
  noRandomAccessError,
  requireSameDraws,
  warnUnserved,
} from './engine/data-sampling.js';
import type { Engine } from './engine/engine.js';
import { requireUnowned } from './engine/parameters/owned-parameters.js';
import { PipelineEngine } from './engine/pipeline-engine.js';
import { DATA } from './engine/ranks.js';
import { buildEngine } from './engine/setup/build-engine.js';
import { type Clients, type Planned, requireJob, requireMonitors } from './engine/setup/clients.js';
import { runOrReport } from './engine/setup/setup-world.js';
import { DsError } from './errors.js';
import { CausalLM } from './models/causal-lm.js';
import { Module } from './nn/index.js';
import { describeValue, modelHint } from './nn/require-module.js';
import type { Optimizer } from './optim/optimizer.js';
import type { ScheduleSet } from './optim/schedule-set.js';
import { type Pipelined, PipelineModule } from './pipe/index.js';
import { type Device, device as findDevice } from './runtime/device.js';
import { formatValue } from './runtime/format-value.js';
import { configError } from './runtime/input-errors.js';
import { namesOf, readOptions } from './runtime/options.js';
import { requireNoSurplus, requireType } from './runtime/require-type.js';
import { seed } from './tensor/index.js';
import { HybridEngine } from './trainer/rollouts/hybrid-engine.js';

/** The source of the configuration: exactly one of `config` and `args`. */
interface ConfigurationOptions {
  /** A path to a ds_config.json, base64, or the object itself. */
  config?: string | DsConfig;
  /** The program's arguments, when they name the configuration: see addConfigArguments(). */
  args?: ConfigArguments;
  /** Old name of `config`. */
  configParams?: string | DsConfig;
  /** Values for "auto" in the configuration; the model provides `hiddenSize`. */
  auto?: AutoSources;
  /** Unknown keys of the configuration are errors. Default false: they are notices. */
  strict?: boolean;
}

/** Options of initialize(): a model, a configuration, and the caller's objects. */
export interface InitializeOptions<Sample, Batch> extends Clients, ConfigurationOptions {
  /**
   * The model to train. Its `hiddenSize`, if present, fills the "auto" sizes of the configuration.
   */
  model: Module & { readonly hiddenSize?: number };
  /**
   * Training samples. `trainLoader` returns this rank's part of them in micro-batches, on the
   * engine's device; the engine's checkpoints keep its position.
   */
  trainingData?: Dataset<Sample>;
  /** Makes a batch of samples. Default: stacks tensors, typed arrays and numbers. */
  collate?: (samples: Sample[], device: Device) => Batch;
  /** Threads that read the samples of `trainLoader`. Default: 0, the calling thread reads them. */
  numWorkers?: number;
  /**
   * "cpu", "cuda", "cuda:N" or "auto": the first GPU if there is one. Default: the device of
   * initDistributed(), else "auto". Ranks of a job with several ranks ignore this option and keep
   * their devices.
   */
  device?: string | Device;
}

/** Result of initialize(): the engine, and the objects that it created. */
export interface Initialized<Sample, Batch> {
  /** The engine of the model; it trains. */
  engine: Engine;
  /** The optimizer of the caller or the configuration; the engine calls it. */
  optimizer: Optimizer;
  /** The loader of trainingData; null without it. */
  trainLoader: DataLoader<Sample, Batch> | null;
  /** The schedules of the optimizer's parameter groups; the engine advances them. */
  lrScheduler: ScheduleSet;
}

/** A pipeline model, or a configuration that makes the model a pipeline. */
export type InStages =
  | { model: PipelineModule }
  | { model: Module & Pipelined; config: { pipeline: { stages: number } } };

/** Result of initialize() for a model in stages. */
export interface InitializedPipeline<Sample, Batch> extends Initialized<Sample, Batch> {
  /** Trains whole batches. */
  engine: PipelineEngine;
}

/** A configuration with the section `hybrid_engine`. */
export type Hybrid = { config: { hybrid_engine: { enabled: true } } };

/** Result of initialize() with `hybrid_engine.enabled`. */
export interface InitializedHybrid<Sample, Batch> extends Initialized<Sample, Batch> {
  /** Trains, and generates with the weights in training. */
  engine: HybridEngine;
}

/** Result of initialize() with trainingData. */
export interface InitializedWithLoader<Sample, Batch> extends Initialized<Sample, Batch> {
  /** Serves this rank's part of trainingData in micro-batches. */
  trainLoader: DataLoader<Sample, Batch>;
}

/** Options of initialize() for an iterable dataset. */
export interface StreamingOptions<Sample, Batch>
  extends Omit<InitializeOptions<Sample, Batch>, 'trainingData'> {
  /** The iterable dataset; `trainLoader` distributes its rounds over the ranks. */
  trainingData: IterableDataset<Sample>;
}

/** Result of initialize() with an iterable dataset. */
export interface InitializedWithStream<Sample, Batch>
  extends Omit<Initialized<Sample, Batch>, 'trainLoader'> {
  /** Serves this rank's part of trainingData in micro-batches. */
  trainLoader: IterableLoader<Sample, Batch>;
}

/**
 * Builds the engine around a model: its parameters move into flat buffers on the device, and their
 * master weights and optimizer state to the place that the configuration selects. Joins the
 * launcher's job if there is one. On rank 0 it warns (code DS_NOTICE) of each key without effect.
 *
 * Several ranks first compare configurations, models and optimizers; every rank throws the
 * difference (DS_CONFIG, DS_ARGUMENT). Throws DsError (DS_CONFIG, DS_ARGUMENT, DS_DATA, DS_DEVICE,
 * DS_OUT_OF_MEMORY, DS_IO, DS_COMM). A failed attempt removes its files, memory and hooks, and the
 * model can be passed to another engine (at stage 3 on several ranks: unless a part of it was
 * sharded by then). A job stays joined until its destroy(), also after engine.destroy().
 */
export function initialize<Sample, Batch = Batched<Sample>>(
  options: InitializeOptions<Sample, Batch> & InStages,
): Promise<InitializedPipeline<Sample, Batch>>;
export function initialize<Sample, Batch = Batched<Sample>>(
  options: InitializeOptions<Sample, Batch> & Hybrid,
): Promise<InitializedHybrid<Sample, Batch>>;
export function initialize<Sample, Batch = Batched<Sample>>(
  options: InitializeOptions<Sample, Batch> & { trainingData: Dataset<Sample> },
): Promise<InitializedWithLoader<Sample, Batch>>;
export function initialize<Sample, Batch = Batched<Sample>>(
  options: StreamingOptions<Sample, Batch>,
): Promise<InitializedWithStream<Sample, Batch>>;
export function initialize<Sample = unknown, Batch = Batched<Sample>>(
  options: InitializeOptions<Sample, Batch>,
): Promise<Initialized<Sample, Batch>>;
export async function initialize<Sample, Batch>(
  given: AnyOptions<Sample, Batch>,
  ...surplus: readonly unknown[]
): Promise<
  Omit<Initialized<Sample, Batch>, 'trainLoader'> & { trainLoader: AnyLoader<Sample, Batch> }
> {
  requireNoSurplus('initialize', surplus, 'Put all options into one object: { model, config }.');
  return initializeEngine(given, true);
}

/** @internal initialize() for callers that serve the data and apply its settings. */
export function initializeServed(
  given: InitializeOptions<unknown, unknown>,
): Promise<Omit<Initialized<unknown, unknown>, 'trainLoader'>> {
  return initializeEngine(given, false);
}

async function initializeEngine<Sample, Batch>(
  given: AnyOptions<Sample, Batch>,
  isServing: boolean,
) {
  const options = readOptions('initialize', given, namesOf.InitializeOptions);
  const { model } = options;
  requireModel(model);
  requireUnowned(model);
  const { collate, monitors } = options;
  if (collate !== undefined) requireType('initialize collate', collate, 'function');
  requireServed(options);
  requireMonitors(monitors);
  requireJob(options.distributed);
  const job = await jobOf(options);
  return runOrReport(job, () => initializedOn(job, options, isServing));
}

async function initializedOn<Sample, Batch>(
  job: Distributed,
  options: AnyOptions<Sample, Batch>,
  isServing: boolean,
) {
  const { model } = options;
  const { config, planned } = readConfiguration(options, model.hiddenSize, job);
  if (config.seed !== null) seed(config.seed);
  const trainLoader = buildLoader(options, config, job);
  if (isServing && !trainLoader) warnUnserved(config, job.rank);
  const given = { module: model, config, clients: options, job, planned };
  const engine = await buildEngine(given, kindOf(model, config));
  await requireSameDraws(job, engine, trainLoader);
  if (trainLoader) engine.companions.set('trainLoader', trainLoader);
  if (trainLoader && engine instanceof PipelineEngine) engine.serveFrom(trainLoader);
  return { engine, optimizer: engine.optimizer, trainLoader, lrScheduler: engine.lrScheduler };
}

type AnyOptions<Sample, Batch> = InitializeOptions<Sample, Batch> | StreamingOptions<Sample, Batch>;

type AnyLoader<Sample, Batch> = DataLoader<Sample, Batch> | IterableLoader<Sample, Batch> | null;

/** Options that select a job: its device, and the ranks that share a model. */
interface JobOptions extends ConfigurationOptions, Pick<Clients, 'distributed'> {
  /** The model to train; undefined if it is not loaded yet. */
  model?: Module;
  device?: string | Device;
}

/**
 * @internal Returns the job to train in. A single process may change its device; ranks of a job
 * keep theirs.
 */
export async function jobOf(options: JobOptions): Promise<Distributed> {
  const { distributed, device, model } = options;
  const isOurs = !distributed && !joinedBefore();
  const mesh = isOurs ? meshWanted(model, options) : undefined;
  const job = distributed ?? (await joinLaunched({ device, ...(mesh ? { mesh } : {}) }));
  if (mesh && job.worldSize > 1 && job.rank === 0) {
    process.stdout.write(`mesh: ${job.worldSize} ranks as ${job.mesh.shape}\n`);
  }
  if (job.worldSize > 1 || device === undefined) return job;
  return aloneOn(findDevice(device), { localRank: job.localRank });
}

/** The class of the engine. Throws DS_CONFIG for a model that cannot generate. */
function kindOf(model: Module, { hybrid_engine: { enabled } }: ResolvedConfig) {
  if (!enabled) return undefined;
  if (model instanceof CausalLM) return HybridEngine;
  const got = `a ${model.constructor.name}`;
  throw configError('hybrid_engine.enabled', 'a CausalLM, which generates text', got);
}

/** Returns the mesh that the model or the configuration requests, or undefined. */
function meshWanted(
  model: Module | undefined,
  options: ConfigurationOptions,
): MeshOptions | undefined {
  const named = model instanceof PipelineModule ? model.numStages : null;
  const { stages, layers: tp, tokens: sp } = readParallelSizes(configSource(options).config);
  const pp = named ?? stages;
  if (pp === null && tp === 1 && sp === 1) return undefined;
  return {
    ...(pp === null ? {} : { pp }),
    ...(sp === 1 ? {} : { sp }),
    ...(tp === 1 ? {} : { tp }),
  };
}

/** Reads the configuration. If keys need a plan, `config` is the first of its candidates. */
function readConfiguration(
  options: ConfigurationOptions,
  hiddenSize: number | undefined,
  { mesh, rank }: Distributed,
): { config: ResolvedConfig; planned: Planned | null } {
  const worldSize = mesh.size(...DATA);
  const { config: source, notices } = configSource(options);
  const { auto, strict } = options;
  const filled = { ...auto, model: { hiddenSize, ...auto?.model } };
  const environment = { worldSize, strict, auto: filled };
  const ways = plannedConfigs(source, environment);
  const config = ways?.configs[0] ?? resolveConfig(source, environment);
  // The plan's choice brings its own.
  const printed = [...notices, ...(ways ? [] : config.notices)];
  for (const notice of rank === 0 ? printed : []) {
    process.emitWarning(notice, { type: 'DsNotice', code: 'DS_NOTICE' });
  }
  const sequenceLength = auto?.training?.sequenceLength;
  return { config, planned: ways && { ...ways, sequenceLength } };
}

/** Opens nothing before it is iterated. */
function buildLoader<Sample, Batch>(
  { trainingData, collate, numWorkers: given }: AnyOptions<Sample, Batch>,
  config: ResolvedConfig,
  { mesh, world: { device } }: Distributed,
): AnyLoader<Sample, Batch> {
  if (trainingData === undefined || trainingData === null) return null;
  const place = { rank: mesh.place(...DATA), worldSize: mesh.size(...DATA) };
  const { num_workers: workers } = config.data_efficiency.data_sampling;
  const numWorkers = given ?? (isSampled(config) ? workers : undefined);
  const options = {
    batchSize: config.train_micro_batch_size_per_gpu,
    device,
    collate,
    dropLast: config.dataloader_drop_last,
    numWorkers,
  };
  if (isIterableDataset(trainingData)) {
    if (isSampled(config)) throw noRandomAccessError('trainingData', 'an iterable dataset');
    return new IterableLoader<Sample, Batch>(trainingData, { ...options, ...place });
  }
  requireServable(trainingData, 'initialize trainingData');
  const { length } = trainingData;
  const sampler =
    createSampler(config, length, place) ??
    new DistributedSampler(length, { ...place, seed: config.seed ?? 0 });
  return new DataLoader<Sample, Batch>(trainingData, { ...options, sampler });
}

/** Throws DS_ARGUMENT for loader options without trainingData. */
function requireServed<Sample, Batch>(options: AnyOptions<Sample, Batch>): void {
  const { trainingData, collate, numWorkers } = options;
  if (trainingData !== undefined && trainingData !== null) return;
  const [first] = Object.entries({ collate, numWorkers }).filter(
    ([, value]) => value !== undefined,
  );
  if (!first) return;
  const [name, value] = first;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: `initialize ${name}`,
    expected: 'trainingData',
    got: `${name}: ${formatValue(value)} without trainingData`,
    hint: `Pass trainingData to initialize(), or pass ${name} to your own loader: new data.DataLoader(dataset, { ${name}, .. }).`,
  });
}

function requireModel(model: unknown): void {
  if (model instanceof Module && typeof model.forward === 'function') return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'initialize',
    expected: 'a model: an object of a class that extends nn.Module and has a forward()',
    got: describeValue(model),
    hint: modelHint(model),
  });
}
