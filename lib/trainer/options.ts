// The options of a Trainer: one object, each value of which is checked before anything is built.
import type { DsConfig } from '../../types/config.js';
import type { Distributed } from '../comm/index.js';
import type { Batched, Dataset, IterableDataset } from '../data/index.js';
import type { Stateful } from '../engine/saving/stateful.js';
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
  /** Ends what serves them, such as threads. */
  close?(): Promise<void>;
}

/** What a rank's data are made for. */
export interface DataPlace {
  /** This rank among those that share a batch. */
  rank: number;
  /** How many they are. */
  worldSize: number;
  /** Samples of a micro-batch. */
  batchSize: number;
  /** Where batches should be: the Trainer counts their targets there and moves them on. */
  device: Device;
  /** Decides their order. */
  seed: number;
  /**
   * The ranks that share each sample (sequence_parallel_size), of whose tokens each has as many.
   */
  tokenRanks: number;
}

/**
 * Samples by number or in turn, which the Trainer deals out to the ranks; or batches, which this
 * rank's source has dealt out already; or a function that opens either.
 */
export type TrainerData<Sample, Batch> =
  | Served<Sample, Batch>
  | ((place: DataPlace) => Served<Sample, Batch> | Promise<Served<Sample, Batch>>);

/** Samples by number, samples that come in turn, or batches. */
export type Served<Sample, Batch> = Dataset<Sample> | IterableDataset<Sample> | BatchSource<Batch>;

/** How samples of `train` become micro-batches; batches of a source are left as they are. */
export interface TrainerDataOptions<Sample, Batch> {
  /**
   * "random": a new order in every epoch. "sequential": as they are. "group_by_length": a random
   * order in which samples of about one length meet, the longest first, so that little is padding.
   * Default "random".
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
  /** Tokens of each sample, for "group_by_length". Default: those of its `ids`. */
  lengths?: ArrayLike<number>;
  /**
   * Tokens of a sample, at most: what the plan weighs by where stage or offload is "auto". Default:
   * 1024, or what the model takes.
   */
  sequenceLength?: number;
}

/** In which order samples are visited. */
export type Sampling = 'random' | 'sequential' | 'group_by_length';

/** When something recurs: after so many updates, after a share of all (below 1), or of epochs. */
export type Every = number | 'epoch';

/** What is written to the log, and when. */
export interface LogOptions {
  /** Default 10. */
  every?: Every;
  /** Logs the first update as well. Default false. */
  first?: boolean;
  /** Leaves losses that are not finite out of means. Default false: what is NaN is said. */
  nanFilter?: boolean;
}

/** Sums over one batch; the Trainer adds them up over batches and ranks and divides. */
export type MetricSums = Readonly<Record<string, { sum: number; count: number }>>;

/** What a loss or a metric is made of. */
export interface LossInput<Batch> {
  /** Runs the model, through the engine. */
  forward: (...inputs: unknown[]) => Tensor;
  /** The micro-batch, on the engine's device. */
  batch: Batch;
}

/** On what, when and by what the model is judged. */
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
   * Gives `accuracy` beside the loss, without another pass: the share of counted targets that are
   * the model's first choice. Language models without a `loss` of your own. Default false.
   */
  accuracy?: boolean;
  /** Further metrics beside the loss, by name, as sums over a batch. */
  metrics?: (input: LossInput<Batch>) => MetricSums;
}

/** Which evaluation is the best. */
export interface BestOptions {
  /** "loss", "accuracy" where `eval.accuracy` asks for it, or one of `eval.metrics`. */
  metric: string;
  /** Default: false where the name ends in "loss", else true. */
  greaterIsBetter?: boolean;
  /** Ends train() with the best checkpoint's weights. Default true. */
  load?: boolean;
}

/** Where and when checkpoints are written. */
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
   * Whole weights, with the tokenizer, in each checkpoint, as transformers reads them; of a model
   * with adapters these alone, as PEFT reads them. Default true.
   */
  weights?: boolean;
  /** Whole weights or adapters alone: such checkpoints cannot be resumed from. Default false. */
  weightsOnly?: boolean;
}

/** When evaluations have said enough; `save.best` says by which metric. */
export interface EarlyStopOptions {
  /** Evaluations in a row that are not better. */
  patience: number;
  /** By how much one must be better to count. Default 0. */
  threshold?: number;
}

/** Functions by the type of event that they are called for; what they return is awaited. */
export type TrainerCallbacks = {
  readonly [Type in TrainerEventType]?: (event: TrainerEventOf<Type>) => unknown;
} & { readonly any?: (event: TrainerEvent) => unknown };

/** Where logs go: folders of a monitor in `save.dir`/runs, or a monitor of your own. */
export type Report = 'tensorboard' | 'csv' | Monitor;

/** What a Trainer is made of. Names of PyTorch and DeepSpeed (`weight_decay`) are taken too. */
export interface TrainerOptions<Sample = unknown, Batch = Batched<Sample>> {
  /** What is trained. */
  model: Module & { readonly hiddenSize?: number };
  /** Or its folder. Saved beside the weights; its padding token fills rows of text. */
  tokenizer?: Tokenizer | string;
  /** What it is trained on; evaluate() and predict() go without. */
  train?: TrainerData<Sample, Batch>;
  /** What it is evaluated on, after each epoch where only data are given. */
  eval?: TrainerData<Sample, Batch> | EvalOptions<Sample, Batch>;

  /** A ds_config.json or its object; "auto" and missing sizes are filled from these options. */
  deepspeed?: string | DsConfig;
  /** Unknown keys of that configuration are errors. Default false. */
  strict?: boolean;
  /** "fp16", "bf16" or "fp32", for a configuration that does not say. Default: "fp32". */
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
  /** Gradients of a larger norm are scaled down to it; 0 for none. Default 1. */
  maxGradNorm?: number;
  /**
   * A name for a configuration without an optimizer, or a function whose optimizer replaces the
   * configuration's. Default "AdamW".
   */
  optimizer?: OwnOptimizerName | ((params: ParamsOf<ParamGroup>) => Optimizer);
  /** A schedule in place of the configuration's and of `schedule`. */
  lrScheduler?: (optimizer: Optimizer) => LrSchedule | readonly LrSchedule[];

  /**
   * The mean loss over what `count` counts in a micro-batch, f32, for models that are no CausalLM.
   */
  loss?: (input: LossInput<Batch>) => Tensor;
  /**
   * By what a micro-batch weighs in an update. Default: its labels or targets other than -100, or
   * where it has none its samples.
   */
  count?: (batch: Batch) => number;
  /** Share of each target that goes to all tokens alike. Default 0. */
  labelSmoothing?: number;
  /**
   * Noise on the token embeddings of what is trained on, below this over the root of a sample's
   * elements (NEFTune: Jain et al. 2023). Default: none.
   */
  neftuneNoiseAlpha?: number;

  /** How samples become micro-batches. */
  data?: TrainerDataOptions<Sample, Batch>;
  /** What is logged when. */
  log?: LogOptions;
  /** Checkpoints. Default: none. */
  save?: CheckpointOptions | string;
  /** Ends training where evaluations no longer improve. Default: it goes on. */
  earlyStop?: EarlyStopOptions;
  /** Where logs go beside the events. Default: nowhere. */
  report?: readonly Report[];
  /** Draws a bar, with the time left, on the first rank. Default true. */
  progress?: boolean;
  /** What reports call the run. Default "trainer". */
  runName?: string;
  /** Called for each event, in order, before the iteration of train() is given it. */
  callbacks?: readonly TrainerCallbacks[];

  /** Decides dropout and, unless `data.seed` does, the order of the data. Default 42. */
  seed?: number;
  /** See initialize(). */
  device?: string | Device;
  /** See initialize(). */
  distributed?: Distributed | null;
  /** What ends training with a checkpoint. Default: SIGINT, SIGTERM and SIGHUP. */
  stopSignals?: readonly NodeJS.Signals[];
}

/** Dtypes of training, as configurations call them. */
export type Precision = 'fp32' | 'fp16' | 'bf16';
