// Options of a Trainer. The Trainer checks all of them before it builds anything.
import type { DsConfig } from '../../types/config.js';
import type { Distributed } from '../comm/index.js';
import type { Batched, Dataset, IterableDataset } from '../data/index.js';
import type { Stateful } from '../engine/saving/stateful.js';
import type { WatchOptions } from '../engine/watch/run-watch.js';
import type { Monitor } from '../monitor/index.js';
import type { Module } from '../nn/index.js';
import type { Optimizer, ParamGroup, ParamsOf } from '../optim/index.js';
import type { LrSchedule } from '../optim/schedule.js';
import type { Device } from '../runtime/device.js';
import type { Tensor } from '../tensor/index.js';
import type { Tokenizer } from '../text/index.js';
import type { TrainerEvent, TrainerEventOf, TrainerEventType } from './events.js';
import type { OwnOptimizerName } from './own-optimizer.js';
import type { Schedule } from './own-schedule.js';

/** Micro-batches in an order of their own: a TextStream, a DataLoader, or anything like them. */
export interface BatchSource<Batch> extends AsyncIterable<Batch>, Partial<Stateful> {
  /** Micro-batches of an epoch on this rank. Without it, `maxSteps` must be given. */
  readonly length?: number;
  /** Ends threads and other resources of the data. */
  close?(): Promise<void>;
}

/** The rank and batch size of opened data. */
export interface DataPlace {
  /** This rank among the data ranks. */
  rank: number;
  /** Number of data ranks. */
  worldSize: number;
  /** Samples of a micro-batch. */
  batchSize: number;
  /** Device for the batches: the Trainer counts their targets there, then moves them. */
  device: Device;
  /** Decides their order. */
  seed: number;
  /**
   * Ranks that share each sample (sequence_parallel_size); each has the same number of tokens.
   */
  tokenRanks: number;
}

/**
 * A dataset or a stream of samples, which the Trainer distributes to ranks; or a source of this
 * rank's batches; or a function that opens one of them.
 */
export type TrainerData<Sample, Batch> =
  | Served<Sample, Batch>
  | ((place: DataPlace) => Served<Sample, Batch> | Promise<Served<Sample, Batch>>);

/** Samples by index, a stream of samples, or batches. */
export type Served<Sample, Batch> = Dataset<Sample> | IterableDataset<Sample> | BatchSource<Batch>;

/** How samples of `train` become micro-batches. Batches of a source stay unchanged. */
export interface TrainerDataOptions<Sample, Batch> {
  /**
   * "random": a new order in every epoch. "sequential": the order of the data. "group_by_length": a
   * random order with samples of similar length in one batch, the longest first; it reduces
   * padding. Default: "random".
   */
  sampling?: Sampling;
  /** Leaves out a last micro-batch that is not full. Default false. */
  dropLast?: boolean;
  /** Decides the order. Default: the Trainer's seed. */
  seed?: number;
  /** Threads that get samples. Default 0: the calling thread does. */
  workers?: number;
  /** Makes a batch of samples. Default: pads rows of text, stacks others. */
  collate?: (samples: Sample[], device: Device) => Batch;
  /** Tokens of each sample, for "group_by_length". Default: the length of `ids`. */
  lengths?: ArrayLike<number>;
  /**
   * Maximum tokens of a sample, for the plan if stage or offload is "auto". Default: 1024, or the
   * model's limit.
   */
  sequenceLength?: number;
}

/** Order of samples. */
export type Sampling = 'random' | 'sequential' | 'group_by_length';

/** An interval: a number of updates, a share of all updates (below 1), or "epoch". */
export type Every = number | 'epoch';

/** Options of logs. */
export interface LogOptions {
  /** Default 10. */
  every?: Every;
  /** Logs the first update as well. Default false. */
  first?: boolean;
  /** Leaves losses that are not finite out of means. Default: false, so a mean can be NaN. */
  nanFilter?: boolean;
}

/** Sums over one batch; the Trainer adds them up over batches and ranks and divides. */
export type MetricSums = Readonly<Record<string, { sum: number; count: number }>>;

/** Arguments of a loss or a metric. */
export interface LossInput<Batch> {
  /** Runs the model, through the engine. */
  forward: (...inputs: unknown[]) => Tensor;
  /** The micro-batch, on the engine's device. */
  batch: Batch;
}

/** Options of evaluations. */
export interface EvalOptions<Sample, Batch> {
  /** Served in order, each sample once. */
  data: TrainerData<Sample, Batch>;
  /** Default: after each epoch. */
  every?: Every;
  /** Samples of a batch on one rank. Default: `batchSize`. */
  batchSize?: number;
  /** Batches at most. Default: all. */
  maxBatches?: number;
  /** Evaluates before the first update as well. Default false. */
  atStart?: boolean;
  /** Updates, or epochs with "epoch", before the first evaluation. Default 0. */
  delay?: number;
  /**
   * Adds `accuracy` without another pass: the share of counted targets that are the model's first
   * choice. Only for language models without a custom `loss`. Default: false.
   */
  accuracy?: boolean;
  /** More metrics by name, as sums over a batch. */
  metrics?: (input: LossInput<Batch>) => MetricSums;
}

/** Choice of the best evaluation. */
export interface BestOptions {
  /** "loss", "accuracy" (with `eval.accuracy`), or a name of `eval.metrics`. */
  metric: string;
  /** Default: false if the name ends in "loss", else true. */
  greaterIsBetter?: boolean;
  /** Ends train() with the best checkpoint's weights. Default true. */
  load?: boolean;
}

/** Folder and times of checkpoints. */
export interface CheckpointOptions {
  /** The folder of the checkpoint-<step> folders. */
  dir: string;
  /** "best": where an evaluation is the best so far. Default 500. The last update saves too. */
  every?: Every | 'best';
  /** Checkpoints that stay: the newest ones, and the best. Default: all. */
  keep?: number;
  /** Keeps track of the best one: a metric of the evaluation, or more about it. */
  best?: string | BestOptions;
  /**
   * Writes whole weights and the tokenizer into each checkpoint, for transformers; for a model with
   * adapters only the adapters, for PEFT. Default: true.
   */
  weights?: boolean;
  /** Writes only weights or adapters; such checkpoints cannot be resumed. Default: false. */
  weightsOnly?: boolean;
}

/** Options of early stopping; `save.best` sets the metric. */
export interface EarlyStopOptions {
  /** Number of consecutive evaluations without improvement. */
  patience: number;
  /** Minimum improvement. Default: 0. */
  threshold?: number;
}

/** Callbacks by type of event; returned promises are awaited. */
export type TrainerCallbacks = {
  readonly [Type in TrainerEventType]?: (event: TrainerEventOf<Type>) => unknown;
} & { readonly any?: (event: TrainerEvent) => unknown };

/** Destination of logs: folders of a monitor in `save.dir`/runs, or your own monitor. */
export type Report = 'tensorboard' | 'csv' | Monitor;

/** Options of a Trainer. Names of PyTorch and DeepSpeed (`weight_decay`) are accepted too. */
export interface TrainerOptions<Sample = unknown, Batch = Batched<Sample>> {
  /** The model to train. */
  model: Module & { readonly hiddenSize?: number };
  /** A tokenizer or its folder. It is saved with the weights; its padding token fills text rows. */
  tokenizer?: Tokenizer | string;
  /** Training data; not needed for evaluate() and predict(). */
  train?: TrainerData<Sample, Batch>;
  /** Evaluation data. With data only, evaluations follow each epoch. */
  eval?: TrainerData<Sample, Batch> | EvalOptions<Sample, Batch>;

  /** A ds_config.json or its object; "auto" and missing sizes are filled from these options. */
  deepspeed?: string | DsConfig;
  /** Unknown keys of that configuration are errors. Default false. */
  strict?: boolean;
  /** "fp16", "bf16" or "fp32", for a configuration without a precision. Default: "fp32". */
  precision?: Precision;

  /** Passes over the data; parts count. Default 3. */
  epochs?: number;
  /** Updates; in place of epochs, repeating the data as need be. */
  maxSteps?: number;
  /** Samples of a micro-batch on one rank. Default 8. */
  batchSize?: number;
  /** Micro-batches of an update. Default 1. */
  accumulation?: number;

  /** Default 5e-5. */
  lr?: number;
  /** How the rate falls, where the configuration has no scheduler. Default "linear". */
  schedule?: Schedule;
  /** Updates over which the rate rises from 0, or a share of all (below 1). Default 0. */
  warmup?: number;
  /** Of matrices and DoRA's magnitudes: biases and norms do not decay. Default 0. */
  weightDecay?: number;
  /** Of AdamW. Default [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** Of AdamW. Default 1e-8. */
  eps?: number;
  /** Maximum gradient norm for clipping; 0 disables clipping. Default: 1. */
  maxGradNorm?: number;
  /**
   * A name for a configuration without an optimizer, or a function that returns an optimizer, which
   * replaces the configuration's. Default: "AdamW".
   */
  optimizer?: OwnOptimizerName | ((params: ParamsOf<ParamGroup>) => Optimizer);
  /** A schedule in place of the configuration's and of `schedule`. */
  lrScheduler?: (optimizer: Optimizer) => LrSchedule | readonly LrSchedule[];

  /**
   * The mean loss of a micro-batch per `count`, f32. Required for models other than CausalLM.
   */
  loss?: (input: LossInput<Batch>) => Tensor;
  /**
   * Weight of a micro-batch in an update. Default: its labels or targets other than -100; without
   * labels, its samples.
   */
  count?: (batch: Batch) => number;
  /** Label smoothing: probability spread evenly over all tokens. Default: 0. */
  labelSmoothing?: number;
  /**
   * Alpha of NEFTune's noise on token embeddings (Jain et al. 2023): the bound of the noise times
   * the root of a sample's elements. Default: no noise.
   */
  neftuneNoiseAlpha?: number;

  /** How samples become micro-batches. */
  data?: TrainerDataOptions<Sample, Batch>;
  /** Logs. */
  log?: LogOptions;
  /** Checkpoints. Default: none. */
  save?: CheckpointOptions | string;
  /** Ends training if evaluations no longer improve. Default: disabled. */
  earlyStop?: EarlyStopOptions;
  /** Destinations of logs in addition to events. Default: none. */
  report?: readonly Report[];
  /**
   * Records the run and serves a local web page of it: see engine.watch(). The default folder is
   * `save.dir`. Default: false.
   */
  watch?: boolean | WatchOptions;
  /** Draws a progress bar on rank 0. Default: true. */
  progress?: boolean;
  /** Name of the run in reports. Default: "trainer". */
  runName?: string;
  /** Called for each event, before the iteration of train() receives it. */
  callbacks?: readonly TrainerCallbacks[];

  /** Decides dropout and, unless `data.seed` does, the order of the data. Default 42. */
  seed?: number;
  /** See initialize(). */
  device?: string | Device;
  /** See initialize(). */
  distributed?: Distributed | null;
  /** Signals that end training with a checkpoint. Default: SIGINT, SIGTERM and SIGHUP. */
  stopSignals?: readonly NodeJS.Signals[];
}

/** Dtypes of training, as configurations call them. */
export type Precision = 'fp32' | 'fp16' | 'bf16';
