// Micro-batches with their counts, and the interface of objectives.
import type { Distributed, ProcessGroup } from '../comm/index.js';
import type { Engine } from '../engine/engine.js';
import type { LossReport, Tensor } from '../tensor/index.js';
import type { MetricSums } from './evaluation-options.js';
import type { StepMetrics } from './step-metrics.js';

/** Runs the model, through the engine. */
export type Forward = (...inputs: unknown[]) => Tensor;

/** A micro-batch with its counts; the Trainer owns its tensors. */
export interface MicroBatch<Batch> {
  /** The batch from the data. */
  batch: Batch;
  /** Targets of a language model, [B, T]; null for other models. */
  targets: Tensor | null;
  /** Number of targets (or samples) that the mean loss is taken over. */
  counted: number;
  /** Tokens without padding; samples for models that are not language models. */
  tokens: number;
  /** Tokens of a second loss, beside a loss of pairs. Default: 0. */
  further?: number;
}

/** Divisor of loss sums: a number, or a scalar f32 on the device. */
export type Divisor = number | Tensor;

/** Parts of a session that an objective may use. */
export interface SessionParts {
  readonly engine: Engine;
  readonly job: Distributed;
  /** The ranks that share a batch. */
  readonly dataGroup: ProcessGroup;
}

/** Loss and counts of the batches of one kind of model. */
export interface Objective<Batch> {
  /**
   * Returns a batch with the first `seqlen` tokens of each sample, and frees the tensors that it
   * replaces. Throws DS_ARGUMENT if no tensor of the batch has tokens.
   */
  shortened(batch: Batch, seqlen: number): Batch;
  /** Counts a batch. If the batch is on the host, this does not wait for the device. */
  counted(batch: Batch): MicroBatch<Batch>;
  /** Mean loss per counted target, f32. The model's own loss fills `report`. */
  mean(forward: Forward, micro: MicroBatch<Batch>, report?: LossReport | null): Tensor;
  /**
   * Sum of the losses of counted targets, divided by `divisor`, f32; 0 without counted targets. An
   * objective with metrics adds their sums to `metrics`. `further` divides a second loss by tokens.
   */
  shared(
    forward: Forward,
    micro: MicroBatch<Batch>,
    divisor: Divisor,
    metrics?: StepMetrics | null,
    further?: Divisor,
  ): Tensor;
  /** Whether shared() fills its metrics. Default: false. */
  readonly hasStepMetrics?: boolean;
  /** Called once, before the first batch. All ranks call. */
  opened?(surroundings: SessionParts): Promise<void>;
  /** Called before each update with its micro-batches on the host. All ranks call. */
  begun?(forward: Forward, group: readonly MicroBatch<Batch>[]): void;
  /** Called after each update with the number of updates so far. */
  updated?(step: number): void;
  /** Frees the objective's own engines and models. All ranks call. */
  closed?(): Promise<void>;
  /** Default output of predict() for a batch. */
  outputs(forward: Forward, micro: MicroBatch<Batch>): Tensor;
  /** The mean loss of a batch and the sums of its metrics, for models that have metrics. */
  judged?(forward: Forward, micro: MicroBatch<Batch>): { loss: number; sums: MetricSums };
  /** Adds metrics that follow from the means of others. */
  derived?(means: Readonly<Record<string, number>>): Record<string, number>;
  /** The metrics that follow from all sums. Default: sums over counts. */
  finished?(sums: MetricSums): Record<string, number>;
}
