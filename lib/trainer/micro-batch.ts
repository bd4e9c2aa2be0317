// Types of the training loop: micro-batches with their counts, and Objective, which computes
// losses.
import type { Distributed, ProcessGroup } from '../comm/index.js';
import type { Engine } from '../engine/engine.js';
import type { LossReport, Tensor } from '../tensor/index.js';
import type { MetricSums } from './evaluation-options.js';
import type { StepMetrics } from './step-metrics.js';

/** Runs the model through the engine. */
export type Forward = (...inputs: unknown[]) => Tensor;

/** A micro-batch with its counts. The Trainer owns its tensors. */
export interface MicroBatch<Batch> {
  /** The batch as the data source returned it. */
  batch: Batch;
  /** Targets of a language model, [B, T]; null for other models. */
  targets: Tensor | null;
  /** Number of targets or samples over which the loss is averaged. */
  counted: number;
  /** Number of tokens without padding; of samples for models without tokens. */
  tokens: number;
  /** Number of tokens over which a second loss is averaged. Default: 0. */
  further?: number;
}

/** The divisor of a sum of losses: a number, or a scalar f32 on the device. */
export type Divisor = number | Tensor;

/** The parts of a session that an objective may use. */
export interface SessionParts {
  readonly engine: Engine;
  readonly job: Distributed;
  /** The ranks that have different samples of an update. */
  readonly dataGroup: ProcessGroup;
}

/** Computes losses and counts of batches, for one kind of model or one method. */
export interface Objective<Batch> {
  /**
   * Returns the batch with the first `seqlen` tokens of each sample. Frees the tensors that it
   * replaces. Throws DS_ARGUMENT if the batch has no tensor of tokens.
   */
  shorten(batch: Batch, seqlen: number): Batch;
  /** Counts targets and tokens. If the batch is on the host, it does not wait for the device. */
  countBatch(batch: Batch): MicroBatch<Batch>;
  /**
   * Returns the mean loss per counted target, f32. A loss of the model itself also fills `report`.
   */
  computeMeanLoss(forward: Forward, micro: MicroBatch<Batch>, report?: LossReport | null): Tensor;
  /**
   * Returns the sum of the losses of counted targets, divided by `divisor`, f32; 0 if no target
   * counts. A second loss is divided by `further`. If hasStepMetrics is true, adds sums to
   * `metrics`.
   */
  computeSharedLoss(
    forward: Forward,
    micro: MicroBatch<Batch>,
    divisor: Divisor,
    metrics?: StepMetrics | null,
    further?: Divisor,
  ): Tensor;
  /** Whether computeSharedLoss() adds to `metrics`. Default: false. */
  readonly hasStepMetrics?: boolean;
  /** Opens models and engines of the objective, before the first batch. All ranks call it. */
  open?(surroundings: SessionParts): Promise<void>;
  /**
   * Is called before each update with its micro-batches, which are on the host. All ranks call it.
   */
  beginUpdate?(forward: Forward, group: readonly MicroBatch<Batch>[]): void;
  /** Is called after each update with the number of updates so far. */
  endUpdate?(step: number): void;
  /** Frees the models and engines of open(). All ranks call it. */
  close?(): Promise<void>;
  /** Returns the default output of predict() for a batch. */
  computeOutputs(forward: Forward, micro: MicroBatch<Batch>): Tensor;
  /** Returns the mean loss of a batch and sums of its metrics, if the objective has metrics. */
  evaluateBatch?(forward: Forward, micro: MicroBatch<Batch>): { loss: number; sums: MetricSums };
  /** Returns `means` with additional metrics that are computed from them. */
  deriveMetrics?(means: Readonly<Record<string, number>>): Record<string, number>;
  /** Returns the metrics for the sums of all batches. Default: each sum divided by its count. */
  computeMetrics?(sums: MetricSums): Record<string, number>;
}
