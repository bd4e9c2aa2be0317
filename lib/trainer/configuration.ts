// Combines the DeepSpeed configuration of a Trainer with its options, which fill "auto" values.
import type { DsConfig, ResolvedConfig } from '../../types/config.js';
import { type AutoSources, readTyped, resolveConfig } from '../config/index.js';
import { readParallelSizes } from '../config/source.js';
import { DsError } from '../errors.js';
import { resolveSteps } from './own-schedule.js';
import type { RunSettings } from './read-options.js';

type Settings = RunSettings;
type Training = NonNullable<AutoSources['training']>;

/** Length of a run, in updates. */
export interface RunLength {
  /** Number of updates per epoch; null if the data have no length. */
  updatesPerEpoch: number | null;
  /** Number of updates of all epochs; null if the option `maxSteps` was given. */
  epochUpdates: number | null;
  /**
   * The update after which the run ends, counted from the start of training, also after a resume.
   */
  maxSteps: number;
  /** Number of warm-up updates. */
  warmupSteps: number;
}

/**
 * Throws DS_CONFIG if the configuration has pipeline stages, which a Trainer does not support, or
 * if its file is invalid.
 */
export function requireOneStage(deepspeed: Settings['deepspeed']): void {
  const { stages } = readParallelSizes(deepspeed);
  if ((stages ?? 1) <= 1) return;
  throw new DsError({
    code: 'DS_CONFIG',
    op: 'Trainer deepspeed, pipeline.stages',
    expected: '1, because a Trainer does not support pipeline stages',
    got: String(stages),
    hint: 'Use tensor_parallel, or call initialize() and engine.trainBatch() in a loop of your own.',
  });
}

/**
 * Resolves the configuration before the length of the run is known. Throws one DS_CONFIG that names
 * all values that differ from given options.
 */
export function resolveBeforeLength(settings: Settings, worldSize: number): ResolvedConfig {
  const { deepspeed, strict } = settings;
  const auto = createAutoSources(settings, null);
  const config = resolveConfig(deepspeed, { worldSize, strict, auto, autoLater: true });
  requireSameOptimizer(settings, config);
  return config;
}

/** Throws DS_CONFIG if the option and the configuration name different optimizers. */
function requireSameOptimizer({ optimizer: name }: Settings, { optimizer }: ResolvedConfig): void {
  if (typeof name !== 'string' || !optimizer || optimizer.type === name) return;
  throw new DsError({
    code: 'DS_CONFIG',
    op: 'Trainer optimizer',
    expected: `"${optimizer.type}", the optimizer.type of the configuration`,
    got: `"${name}"`,
    hint: 'Remove one of the two.',
  });
}

/**
 * Returns the values for resolveConfig(), which fills "auto" and checks the configuration. An
 * option that the caller gave must equal the value in the file. For other options the value in the
 * file counts, then the default, so defaults never conflict.
 */
export function createAutoSources(settings: Settings, length: RunLength | null): AutoSources {
  const file = readTyped(settings.deepspeed);
  const chooseValue = <Value>(
    option: keyof Training | keyof Settings,
    value: Value,
    ...keys: string[]
  ) =>
    settings.given.has(option)
      ? value
      : ((keys.map((key) => getValue(file, key)).find(isSet) as Value | undefined) ?? value);
  const { betas, eps, weightDecay, maxGradNorm } = settings;
  const { sequenceLength } = settings.data;
  const training: Training = {
    lr: chooseValue('lr', settings.lr, 'optimizer.params.lr', 'scheduler.params.warmup_max_lr'),
    betas: chooseValue('betas', betas, 'optimizer.params.betas'),
    eps: chooseValue('eps', eps, 'optimizer.params.eps'),
    weightDecay: chooseValue('weightDecay', weightDecay, 'optimizer.params.weight_decay'),
    maxGradNorm: chooseValue('maxGradNorm', maxGradNorm, 'gradient_clipping'),
    ...optionalEntry('sequenceLength', sequenceLength),
    ...chooseBatchSizes(settings, file),
    ...readPrecision(settings),
    ...(length ? chooseSteps(settings, file, length) : {}),
  };
  return { training, mustMatch: true };
}

/**
 * Computes the number of updates of the run. `batches`: micro-batches of an epoch on this rank;
 * null if unknown.
 */
export function computeRunLength(
  settings: Settings,
  batches: number | null,
  accumulation: number,
): RunLength {
  const updatesPerEpoch = batches === null ? null : Math.ceil(batches / accumulation);
  const epochUpdates = Math.max(1, Math.ceil(settings.epochs * (updatesPerEpoch ?? 0)));
  const ofEpochs = settings.maxSteps === null ? epochUpdates : null;
  const maxSteps = settings.maxSteps ?? epochUpdates;
  return {
    updatesPerEpoch,
    epochUpdates: ofEpochs,
    maxSteps,
    warmupSteps: resolveSteps(settings.warmup, maxSteps),
  };
}

/** Returns whether the learning rate depends on the length of the run. */
export function followsLength({ lrScheduler, deepspeed }: Settings): boolean {
  const file = readTyped(deepspeed);
  const type = getValue(file, 'scheduler.type');
  if (lrScheduler || !isSet(type)) return !lrScheduler;
  return FALLING.has(type) && !isSet(getValue(file, 'scheduler.params.total_num_steps'));
}

/** Schedules of DeepSpeed that need the length of the run, unless they set total_num_steps. */
const FALLING: ReadonlySet<unknown> = new Set(['WarmupDecayLR', 'WarmupCosineLR']);

/**
 * Returns the batch sizes. If the file sets the global batch size, sizes that are not given are
 * left out, and the engine derives them.
 */
function chooseBatchSizes(settings: Settings, file: DsConfig): Training {
  const isTotalSet = isSet(getValue(file, 'train_batch_size'));
  const chooseSize = (option: 'batchSize' | 'accumulation', key: string): number | undefined => {
    const configured = getValue(file, key);
    if (settings.given.has(option)) return settings[option];
    if (isSet(configured)) return configured as number;
    return isTotalSet ? undefined : settings[option];
  };
  return {
    ...optionalEntry(
      'perDeviceBatchSize',
      chooseSize('batchSize', 'train_micro_batch_size_per_gpu'),
    ),
    ...optionalEntry(
      'accumulationSteps',
      chooseSize('accumulation', 'gradient_accumulation_steps'),
    ),
  };
}

function readPrecision({ precision, fp8 }: Settings): Training {
  return {
    ...(precision !== null && { fp16: precision === 'fp16', bf16: precision === 'bf16' }),
    ...(fp8 !== null && { fp8: true, fp8Recipe: fp8 }),
  };
}

function chooseSteps(settings: Settings, file: DsConfig, length: RunLength): Training {
  const { given } = settings;
  const total = getValue(file, 'scheduler.params.total_num_steps');
  const warmup = getValue(file, 'scheduler.params.warmup_num_steps');
  const isTotalFromFile = isSet(total) && !given.has('maxSteps') && !given.has('epochs');
  const isWarmupFromFile = isSet(warmup) && !given.has('warmup');
  return {
    totalSteps: isTotalFromFile ? (total as number) : length.maxSteps,
    warmupSteps: isWarmupFromFile ? (warmup as number) : length.warmupSteps,
  };
}

/** Returns whether a value of the configuration is set and is not "auto". */
const isSet = (value: unknown): boolean =>
  value !== undefined && value !== null && value !== 'auto';

/** Returns the value at a path with dots. */
function getValue(file: DsConfig, path: string): unknown {
  const step = (at: unknown, key: string): unknown =>
    typeof at === 'object' && at !== null ? (at as Record<string, unknown>)[key] : undefined;
  return path.split('.').reduce(step, file as unknown);
}

function optionalEntry<Name extends keyof Training>(
  name: Name,
  value: number | undefined,
): Partial<Training> {
  return value === undefined ? {} : { [name]: value };
}
