// The public surface of @ds/native.
import type { DsConfig } from '../types/config.js';
import { resolveConfig } from './config/index.js';
import { type Batched, DataLoader, type Dataset, DistributedSampler } from './data/index.js';
import { buildEngine, type Clients } from './engine/build.js';
import type { Engine } from './engine/engine.js';
import { DsError } from './errors.js';
import type { Module } from './nn/index.js';
import type { Optimizer } from './optim/optimizer.js';
import type { ScheduleSet } from './optim/schedule-set.js';
import { type Device, device as findDevice } from './runtime/device.js';
import { seed } from './tensor/index.js';

export type { DsConfig, ResolvedConfig } from '../types/config.js';
export { findLatest, listTags } from './checkpoint/index.js';
export * as comm from './comm/index.js';
export { initDistributed } from './comm/index.js';
export {
  addConfigArguments,
  type ConfigArguments,
  type OptionRegistry,
  type ParsedArguments,
  parseConfigArguments,
} from './config/arguments.js';
export {
  type AutoSources,
  type ConfigEnvironment,
  readConfig,
  resolveAuto,
  resolveConfig,
} from './config/index.js';
export * as data from './data/index.js';
export type { Clients } from './engine/build.js';
export type { SaveOptions } from './engine/checkpointer.js';
export { type Engine, type Progress, scaleJointLoss } from './engine/engine.js';
export type { LoadedCheckpoint, LoadOptions } from './engine/restore.js';
export { DsError, type DsErrorCode } from './errors.js';
export * as monitor from './monitor/index.js';
export * as nn from './nn/index.js';
export * as optim from './optim/index.js';
export * as profiler from './profiler/index.js';
export { FlopsProfiler, getModelProfile } from './profiler/index.js';
export { cpu, type Device, device, probeGpus, setThreads, threads } from './runtime/device.js';
export * from './tensor/index.js';
export { version } from './version.js';

export interface InitializeOptions<Sample, Batch> extends Clients {
  model: Module;
  /** A path to a ds_config.json, base64, or the object itself. */
  config: string | DsConfig;
  /**
   * When given, `trainLoader` serves this rank's part of it in micro-batches, on the engine's device;
   * the engine's checkpoints keep its position.
   */
  trainingData?: Dataset<Sample>;
  /** Makes a batch of samples. Default: stacks tensors, typed arrays and numbers. */
  collate?: (samples: Sample[], device: Device) => Batch;
  /** Threads that get the samples of `trainLoader`. Default 0: the calling thread does. */
  numWorkers?: number;
  /** "cpu", "cuda", "cuda:N" or "auto" (default): the first GPU when there is one. */
  device?: string | Device;
}

export interface Initialized<Sample, Batch> {
  engine: Engine;
  optimizer: Optimizer;
  trainLoader: DataLoader<Sample, Batch> | null;
  lrScheduler: ScheduleSet;
}

/**
 * Builds the engine around a model, as deepspeed.initialize does: the model's parameters move into flat
 * buffers on the device, their master weights and optimizer state to where the configuration says.
 * Warns (code DS_NOTICE) of each key that has no effect. Throws DsError (DS_CONFIG, DS_DEVICE,
 * DS_OUT_OF_MEMORY, DS_IO).
 */
export async function initialize<Sample = unknown, Batch = Batched<Sample>>(
  options: InitializeOptions<Sample, Batch>,
): Promise<Initialized<Sample, Batch>> {
  const { model, config, trainingData } = options;
  if (!model) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'initialize',
      expected: 'a model',
      got: String(model),
    });
  }
  const resolved = resolveConfig(config, { worldSize: 1 });
  for (const notice of resolved.notices) {
    process.emitWarning(notice, { type: 'DsNotice', code: 'DS_NOTICE' });
  }
  if (resolved.seed !== null) seed(resolved.seed);
  const device = findDevice(options.device ?? 'auto');
  const engine = buildEngine(model, resolved, device, options);
  const { optimizer, schedules: lrScheduler } = engine.parts;
  const trainLoader = trainingData
    ? new DataLoader<Sample, Batch>(trainingData, {
        batchSize: engine.trainMicroBatchSizePerGpu(),
        device,
        sampler: new DistributedSampler(trainingData.length, {
          rank: engine.globalRank,
          worldSize: engine.worldSize,
          seed: resolved.seed ?? 0,
        }),
        collate: options.collate,
        dropLast: resolved.dataloader_drop_last,
        numWorkers: options.numWorkers,
      })
    : null;
  if (trainLoader) engine.companions.set('trainLoader', trainLoader);
  return { engine, optimizer, trainLoader, lrScheduler };
}
