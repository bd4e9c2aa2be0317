// Types of micro-batches with their counts, and the interface of objectives.
import type { Distributed, ProcessGroup } from '../comm/index.js';
import type { Engine } from '../engine/engine.js';
import type { LossReport, Tensor } from '../tensor/index.js';
import type { MetricSums } from './evaluation-options.js';
import type { StepMetrics } from './step-metrics.js';

/** Runs the model through the engine. */
export type Forward = (...inputs: unknown[]) => Tensor;

/** A micro-batch with its counts; the Trainer owns its tensors. */
export interface MicroBatch<Batch> {
  /** The batch from the data. */
  batch: Batch;
  /** Targets of a language model, [B, T]; null for other models. */
  targets: Tensor | null;
  /** Number of targets (or samples) for the mean loss. */
  counted: number;
  /** Number of tokens without padding; of samples for models that are not language models. */
  tokens: number;
  /** Number of tokens of a second loss, in addition to a loss of pairs. Default: 0. */
  further?: number;
}

/** Divisor of loss sums: a number, or a scalar f32 on the device. */
export type Divisor = number | Tensor;

/** Parts of a session that an objective may use. */
export interface SessionParts {
  readonly engine: Engine;
  readonly job: Distributed;
  /** Ranks that share a batch. */
  readonly dataGroup: ProcessGroup;
}

/** Computes loss and counts of batches for one kind of model. */
export interface Objective<Batch> {
  /**
   * Returns a batch with the first `seqlen` tokens of each sample, and frees the tensors that it
   * replaces. Throws DS_ARGUMENT if no tensor of the batch has tokens.
   */
  shorten(batch: Batch, seqlen: number): Batch;
  /** Counts a batch. If the batch is on the host, this does not wait for the device. */
  countBatch(batch: Batch): MicroBatch<Batch>;
  /** Returns the mean loss per counted target, f32. The model's own loss fills `report`. */
  computeMeanLoss(forward: Forward, micro: MicroBatch<Batch>, report?: LossReport | null): Tensor;
  /**
   * Returns the sum of the losses of counted targets, divided by `divisor`, f32; 0 without counted
   * targets. An objective with metrics adds their sums to `metrics`. `further` divides a second
   * loss by tokens.
   */
  computeSharedLoss(
    forward: Forward,
    micro: MicroBatch<Batch>,
    divisor: Divisor,
    metrics?: StepMetrics | null,
    further?: Divisor,
  ): Tensor;
  /** Whether computeSharedLoss() fills its metrics. Default: false. */
  readonly hasStepMetrics?: boolean;
  /** Opens the objective before the first batch. All ranks must call it. */
  open?(surroundings: SessionParts): Promise<void>;
  /** Called before each update with its micro-batches on the host. All ranks must call it. */
  beginUpdate?(forward: Forward, group: readonly MicroBatch<Batch>[]): void;
  /** Called after each update with the number of updates so far. */
  endUpdate?(step: number): void;
  /** Frees the objective's engines and models. All ranks must call it. */
  close?(): Promise<void>;
  /** Returns the default output of predict() for a batch. */
  computeOutputs(forward: Forward, micro: MicroBatch<Batch>): Tensor;
  /** Returns the mean loss of a batch and the sums of its metrics, for models with metrics. */
  evaluateBatch?(forward: Forward, micro: MicroBatch<Batch>): { loss: number; sums: MetricSums };
  /** Adds metrics that are computed from the means of others. */
  deriveMetrics?(means: Readonly<Record<string, number>>): Record<string, number>;
  /** Returns the metrics from all sums. Default: sums over counts. */
  computeMetrics?(sums: MetricSums): Record<string, number>;
}
