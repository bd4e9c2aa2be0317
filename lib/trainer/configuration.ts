// Combines the ds_config of a Trainer with its options, which fill "auto" values.
import type { DsConfig, ResolvedConfig } from '../../types/config.js';
import { type AutoSources, readTyped, resolveConfig } from '../config/index.js';
import { cutsIn } from '../config/source.js';
import { DsError } from '../errors.js';
import { stepsOf } from './own-schedule.js';
import type { RunSettings } from './read-options.js';

type Settings = RunSettings;
type Training = NonNullable<AutoSources['training']>;

/** How long a run is, in updates. */
export interface RunLength {
  /** Updates per epoch; null if the data have no length. */
  updatesPerEpoch: number | null;
  /** Updates of all epochs; null if `maxSteps` was given. */
  ofEpochs: number | null;
  /** Update at which the run ends; a resumed run begins after update 0. */
  maxSteps: number;
  /** Updates of the warm-up. */
  warmupSteps: number;
}

/** Throws DS_CONFIG for a pipeline, which trains whole batches, and for an invalid file. */
export function requireOneStage(deepspeed: Settings['deepspeed']): void {
  const { stages } = cutsIn(deepspeed);
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
 * Resolves the file before the length of the run is known. Throws one DS_CONFIG with all values
 * that differ from given options.
 */
export function firstReading(settings: Settings, worldSize: number): ResolvedConfig {
  const { deepspeed, strict } = settings;
  const auto = autoSources(settings, null);
  const config = resolveConfig(deepspeed, { worldSize, strict, auto, autoLater: true });
  requireSameOptimizer(settings, config);
  return config;
}

/** Throws DS_CONFIG if options and configuration name different optimizers. */
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
 * Values that fill and check the configuration. If an option is given, the file's value must equal
 * it; otherwise the file's value is used. Defaults never conflict.
 */
export function autoSources(settings: Settings, length: RunLength | null): AutoSources {
  const file = readTyped(settings.deepspeed);
  const of = <Value>(option: keyof Training | keyof Settings, value: Value, ...keys: string[]) =>
    settings.given.has(option)
      ? value
      : ((keys.map((key) => configure(file, key)).find(isSet) as Value | undefined) ?? value);
  const { betas, eps, weightDecay, maxGradNorm } = settings;
  const { sequenceLength } = settings.data;
  const training: Training = {
    lr: of('lr', settings.lr, 'optimizer.params.lr', 'scheduler.params.warmup_max_lr'),
    betas: of('betas', betas, 'optimizer.params.betas'),
    eps: of('eps', eps, 'optimizer.params.eps'),
    weightDecay: of('weightDecay', weightDecay, 'optimizer.params.weight_decay'),
    maxGradNorm: of('maxGradNorm', maxGradNorm, 'gradient_clipping'),
    ...ifGiven('sequenceLength', sequenceLength),
    ...batchSizes(settings, file),
    ...precisionOf(settings),
    ...(length ? stepsFor(settings, file, length) : {}),
  };
  return { training, mustMatch: true };
}

/** Returns the number of updates, from `maxSteps`, or from the epochs and their micro-batches. */
export function runLength(
  settings: Settings,
  batches: number | null,
  accumulation: number,
): RunLength {
  const updatesPerEpoch = batches === null ? null : Math.ceil(batches / accumulation);
  const wanted = Math.max(1, Math.ceil(settings.epochs * (updatesPerEpoch ?? 0)));
  const ofEpochs = settings.maxSteps === null ? wanted : null;
  const maxSteps = settings.maxSteps ?? wanted;
  return { updatesPerEpoch, ofEpochs, maxSteps, warmupSteps: stepsOf(settings.warmup, maxSteps) };
}

/** Returns whether the learning rate follows the run's length instead of its own numbers. */
export function followsLength({ lrScheduler, deepspeed }: Settings): boolean {
  const file = readTyped(deepspeed);
  const type = configure(file, 'scheduler.type');
  if (lrScheduler || !isSet(type)) return !lrScheduler;
  return FALLING.has(type) && !isSet(configure(file, 'scheduler.params.total_num_steps'));
}

/** Schedules with the run's length as default. */
const FALLING: ReadonlySet<unknown> = new Set(['WarmupDecayLR', 'WarmupCosineLR']);

/** If the file has the global batch size, the engine derives sizes that are not given. */
function batchSizes(settings: Settings, file: DsConfig): Training {
  const isTotalSet = isSet(configure(file, 'train_batch_size'));
  const one = (option: 'batchSize' | 'accumulation', key: string): number | undefined => {
    const own = configure(file, key);
    if (settings.given.has(option)) return settings[option];
    if (isSet(own)) return own as number;
    return isTotalSet ? undefined : settings[option];
  };
  return {
    ...ifGiven('perDeviceBatchSize', one('batchSize', 'train_micro_batch_size_per_gpu')),
    ...ifGiven('accumulationSteps', one('accumulation', 'gradient_accumulation_steps')),
  };
}

function precisionOf({ precision, fp8 }: Settings): Training {
  return {
    ...(precision !== null && { fp16: precision === 'fp16', bf16: precision === 'bf16' }),
    ...(fp8 !== null && { fp8: true, fp8Recipe: fp8 }),
  };
}

function stepsFor(settings: Settings, file: DsConfig, length: RunLength): Training {
  const { given } = settings;
  const total = configure(file, 'scheduler.params.total_num_steps');
  const warmup = configure(file, 'scheduler.params.warmup_num_steps');
  const isTotalFromFile = isSet(total) && !given.has('maxSteps') && !given.has('epochs');
  const isWarmupFromFile = isSet(warmup) && !given.has('warmup');
  return {
    totalSteps: isTotalFromFile ? (total as number) : length.maxSteps,
    warmupSteps: isWarmupFromFile ? (warmup as number) : length.warmupSteps,
  };
}

/** Whether a configuration value is set and is not "auto". */
const isSet = (value: unknown): boolean =>
  value !== undefined && value !== null && value !== 'auto';

/** The value at a dotted path. */
function configure(file: DsConfig, path: string): unknown {
  const step = (at: unknown, key: string): unknown =>
    typeof at === 'object' && at !== null ? (at as Record<string, unknown>)[key] : undefined;
  return path.split('.').reduce(step, file as unknown);
}

function ifGiven<Name extends keyof Training>(
  name: Name,
  value: number | undefined,
): Partial<Training> {
  return value === undefined ? {} : { [name]: value };
}
