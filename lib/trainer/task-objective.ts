// TaskObjective: the training loss of a TaskModel, and the metrics of its evaluations.
import type { TaskLossOptions } from '../models/tasks/losses.js';
import { taskMetrics, taskSums } from '../models/tasks/metrics.js';
import { countTargets } from '../models/tasks/targets.js';
import type { TaskInputs, TaskModel } from '../models/tasks/task-model.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { requireFinite } from '../runtime/require-number.js';
import { scope, Tensor } from '../tensor/index.js';
import { type ClassWeights, resolveWeights } from './class-weights.js';
import type { MetricSums } from './evaluation-options.js';
import type { Divisor, Forward, MicroBatch, Objective } from './micro-batch.js';

/** A batch of a LabelledDataset. ids, mask and types: [B, T]; starts and ends: [B]. */
interface TaskBatch {
  ids: Tensor;
  mask: Tensor | undefined;
  types: Tensor | undefined;
  labels: Tensor | undefined;
  starts: Tensor | undefined;
  ends: Tensor | undefined;
}

/** Computes losses, outputs and metrics of a TaskModel. */
export class TaskObjective<Batch> implements Objective<Batch> {
  private readonly weights: Float32Array | null;

  constructor(
    private readonly model: TaskModel,
    private readonly options: {
      count?: ((batch: Batch) => number) | undefined;
      labelSmoothing: number;
      classWeights: ClassWeights | null;
    },
  ) {
    if (model.task === 'embedding') {
      const hint = 'Give `loss`, for example a contrastive loss of nn.models.';
      throw argumentError('Trainer model', 'a model with a loss', 'a model for embeddings', hint);
    }
    this.weights = options.classWeights && resolveWeights(options.classWeights, model.labels);
  }

  shorten(): Batch {
    const expected = 'no curriculum_learning for this model';
    throw argumentError('Trainer model', expected, `a model for ${this.model.task}`);
  }

  countBatch(batch: Batch): MicroBatch<Batch> {
    const { ids, mask, ...targets } = this.batchOf(batch);
    const counted =
      this.options.count?.(batch) ??
      countTargets(this.model.task, { ids, ...targets }, this.weights);
    if (counted === null) throw noLabels(batch);
    requireFinite('Trainer count', counted, 0);
    const tokens = mask ? mask.toArray().filter((seen) => seen !== 0).length : ids.numel;
    return { batch, targets: null, counted, tokens };
  }

  computeMeanLoss(forward: Forward, micro: MicroBatch<Batch>): Tensor {
    return this.loss(forward, micro, {});
  }

  computeSharedLoss(forward: Forward, micro: MicroBatch<Batch>, divisor: Divisor): Tensor {
    return this.loss(forward, micro, { divisor });
  }

  /** Returns the model's outputs for the samples of a batch. */
  computeOutputs(forward: Forward, { batch }: MicroBatch<Batch>): Tensor {
    const { ids, mask, types } = this.batchOf(batch);
    return forward(ids, this.inputsOf({ mask, types }));
  }

  /** Returns the mean loss of a batch, and the sums of its metrics. */
  evaluateBatch(forward: Forward, micro: MicroBatch<Batch>): { loss: number; sums: MetricSums } {
    return scope(() => {
      const { labels, starts, ends, mask } = this.batchOf(micro.batch);
      const loss = this.computeMeanLoss(forward, micro).item();
      const targets = {
        ...(labels && { labels }),
        ...(starts && { starts }),
        ...(ends && { ends }),
        ...(mask && { mask }),
      };
      return { loss, sums: taskSums(this.model, this.computeOutputs(forward, micro), targets) };
    });
  }

  /** Returns the metrics for the sums over all batches and ranks. */
  computeMetrics(sums: MetricSums): Record<string, number> {
    return taskMetrics(sums, this.model.labels.length);
  }

  private loss(forward: Forward, { batch }: MicroBatch<Batch>, how: TaskLossOptions): Tensor {
    const { labelSmoothing } = this.options;
    const { ids, ...given } = this.batchOf(batch);
    const { weights } = this;
    const classWeights = weights && Tensor.from(weights, { device: ids.device });
    const loss = {
      ...how,
      ...(labelSmoothing > 0 && { labelSmoothing }),
      ...(classWeights && { classWeights }),
    };
    return forward(ids, { ...this.inputsOf(given), loss });
  }

  private inputsOf(given: Partial<Omit<TaskBatch, 'ids'>>): TaskInputs {
    const { types, ...others } = given;
    const known = Object.entries(others).filter(([, value]) => value !== undefined);
    const inputs = Object.fromEntries(known) as TaskInputs;
    return this.model.hasTypes && types ? { ...inputs, types } : inputs;
  }

  private batchOf(batch: Batch): TaskBatch {
    const all = batch as Record<string, Tensor | undefined>;
    const { input_ids: named, attention_mask: seen, token_type_ids: typed } = all;
    const { ids = named, mask = seen, types = typed, labels, label = labels } = all;
    const { starts = all.start_positions, ends = all.end_positions } = all;
    if (!(ids instanceof Tensor)) throw noLabels(batch);
    return { ids, mask, types, labels: label, starts, ends };
  }
}

function noLabels(batch: unknown): Error {
  const expected = 'batches { ids, mask, labels } of tensors';
  const hint = 'Use text.LabelledDataset, or pass `data.collate`.';
  return argumentError('Trainer batch', expected, formatValue(batch), hint);
}
