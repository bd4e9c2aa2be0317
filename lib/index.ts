// The public surface of @ds/native.
export type { DsConfig, ResolvedConfig } from '../types/config.js';
export {
  type Consolidated,
  type ConsolidateOptions,
  consolidate,
  findLatest,
  listTags,
} from './checkpoint/index.js';
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
export type { SaveOptions } from './engine/checkpoint/checkpointer.js';
export type { LoadedCheckpoint, LoadOptions } from './engine/checkpoint/restore.js';
export type { Engine } from './engine/engine.js';
export { scaleJointLoss } from './engine/joint-loss.js';
export type { Clients } from './engine/setup/clients.js';
export type { Progress } from './engine/step/progress.js';
export * as zero from './engine/zero-api.js';
export { DsError, type DsErrorCode } from './errors.js';
export {
  type Initialized,
  type InitializedWithLoader,
  type InitializeOptions,
  initialize,
} from './initialize.js';
export * as monitor from './monitor/index.js';
export * as nn from './nn/index.js';
export * as optim from './optim/index.js';
export * as profiler from './profiler/index.js';
export { FlopsProfiler, getModelProfile } from './profiler/index.js';
export { cpu, type Device, device, probeGpus, setThreads, threads } from './runtime/device.js';
export * from './tensor/index.js';
export { version } from './version.js';
