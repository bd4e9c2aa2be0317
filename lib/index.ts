// The public surface of @ds/native.

/**
 * The types of the configuration's sections: as written (ZeroConfig, ...) and as read
 * (ResolvedZero, ...).
 */
export type * as configuration from '../types/config.generated.js';
export type { DsConfig, ResolvedConfig } from '../types/config.js';
export type { JsonObject, JsonValue } from '../types/json.js';
export {
  type Consolidated,
  type ConsolidateOptions,
  consolidate,
  type ExportDType,
  type ExportFormat,
  findLatest,
  listTags,
} from './checkpoint/index.js';
/** Activation checkpointing. Source: deepspeed.checkpointing. */
export * as checkpointing from './checkpointing.js';
/**
 * Process groups, collectives over tensors, and their log. Source: torch.distributed as DeepSpeed
 * uses it.
 */
export * as comm from './comm/index.js';
export { initDistributed } from './comm/index.js';
export { initCompression, redundancyClean } from './compression.js';
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
/** Datasets, samplers, loaders and token files. */
export * as data from './data/index.js';
export type { OffloadState } from './engine/calls.js';
export type { Engine } from './engine/engine.js';
export type { Stateful } from './engine/engine-parts.js';
export type { EngineOptimizer } from './engine/engine-reports.js';
export { scaleJointLoss } from './engine/joint-loss.js';
export type {
  OffloadedBytes,
  OffloadStatesOptions,
  ReloadStatesOptions,
} from './engine/parameters/offloaded-states.js';
export type { MicroBatches, PipelineEngine } from './engine/pipeline-engine.js';
export type { ExportWeightsOptions, SaveOptions } from './engine/saving/checkpointer.js';
export type { LoadedCheckpoint, LoadOptions } from './engine/saving/restore.js';
export type { Clients } from './engine/setup/clients.js';
export type { ShortensInputs } from './engine/step/curriculum.js';
export type { DropsLayers, LayerDrop } from './engine/step/layer-drop.js';
export type { EngineStepOptions, Progress } from './engine/step/step-decisions.js';
export type { DropsTokens, TokenDrop } from './engine/step/token-drop.js';
export type { Phase, PhaseTimes } from './engine/watch/phase-timer.js';
export type { RunWatch, WatchOptions } from './engine/watch/run-watch.js';
export type { TraceStepsOptions } from './engine/watch/traced-steps.js';
/** Functions for models with parameters that are sharded over ranks. Source: deepspeed.zero. */
export * as zero from './engine/zero-api.js';
export { DsError, type DsErrorCode, type DsErrorFields } from './errors.js';
/** Loss, perplexity and log-likelihoods of language models on files of rows. */
export * as evaluation from './evaluation/index.js';
/** Models of the Hugging Face hub: download, cache. Source: huggingface_hub. */
export * as hub from './hub/index.js';
/** Text generation: the engine, its requests and their results. */
export type * as inference from './inference/index.js';
export {
  DeepSpeedInferenceConfig,
  DeepSpeedMoEConfig,
  DeepSpeedTPConfig,
  defaultInferenceConfig,
  InferenceCheckpointConfig,
  InferenceEngine,
  initInference,
  QuantizationConfig,
} from './inference/index.js';
export {
  type Hybrid,
  type Initialized,
  type InitializedHybrid,
  type InitializedPipeline,
  type InitializedWithLoader,
  type InitializedWithStream,
  type InitializeOptions,
  type InStages,
  initialize,
  type StreamingOptions,
} from './initialize.js';
/** Monitors: destinations of the metrics of a run. */
export * as monitor from './monitor/index.js';
/** Modules, parameters, layers, losses, initial values and models. Source: torch.nn. */
export * as nn from './nn.js';
/** Optimizers, learning-rate schedules and loss scalers. Source: torch.optim and DeepSpeed. */
export * as optim from './optim/index.js';
/**
 * Layers, losses and whole models that are split over the ranks of a group. Source: Megatron-LM and
 * torch.distributed.tensor.parallel.
 */
export * as parallel from './parallel/index.js';
/**
 * Adapters (LoRA), their files, and weights in 4 bits. Source: Hugging Face's PEFT and
 * bitsandbytes.
 */
export * as peft from './peft/index.js';
/** Models in stages, and their training schedules. Source: deepspeed.pipe. */
export * as pipe from './pipe/api.js';
export { LayerSpec, PipelineModule, TiedLayerSpec } from './pipe/index.js';
/** FLOPs, MACs and latency by module. Source: DeepSpeed's flops profiler. */
export * as profiler from './profiler/index.js';
export { FlopsProfiler, getModelProfile } from './profiler/index.js';
export {
  cpu,
  type Device,
  type DeviceInfo,
  type DeviceKind,
  device,
  type GpuProbe,
  type MemoryStats,
  probeGpus,
  setThreads,
  threads,
} from './runtime/device.js';
export type { DType, NumericArray, TypedArray } from './runtime/dtype.js';
export type { Event, Stream } from './runtime/stream.js';
export type { View } from './runtime/view.js';
/** An inference engine with an OpenAI-compatible HTTP API, and in the terminal. */
export {
  type ChatOptions,
  type ContinuationOptions,
  type ContinuationRequest,
  chat,
  type EngineStats,
  InferenceServer,
  type ResolvedLimits,
  type ServedEncoder,
  type ServedEngine,
  type ServedPiece,
  type ServeLimits,
  type ServeOptions,
  serve,
} from './serve/index.js';
export * from './tensor/index.js';
/**
 * Tokenizers, chat templates and datasets of text. Source: Hugging Face's tokenizers and datasets.
 */
export * as text from './text/index.js';
/**
 * Trains a model as Hugging Face's Trainer does: data, options and a configuration in, events out.
 */
export * from './trainer/index.js';
export { version } from './version.js';
export type { NoticeLevel } from './watch/index.js';
