// TaskModel, the base of models with another head than that of a causal language model.
import { DsError } from '../../errors.js';
import { Module } from '../../nn/module.js';
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import type { TensorPlan } from '../../parallel/plan.js';
import { type OptionNames, readOptions } from '../../runtime/options.js';
import { scope, type Tensor } from '../../tensor/index.js';
import { requireTensor } from '../../tensor/ops/shapes.js';
import { type Origin, withOrigin } from '../origin.js';
import { type SaveWeightsOptions, saveWeights } from '../save-weights.js';
import { type TaskLabels, type TaskLossOptions, taskLoss } from './losses.js';
import { type PoolingMode, pooled, requireModes, unitRows } from './pooling.js';
import type { HeadTask, ProblemType } from './task.js';

/** Inputs of a forward in addition to tokens. */
export interface TaskInputs extends TaskLabels {
  /** 1 for tokens and 0 for padding, [B, T]. Default: no padding. */
  mask?: Tensor | null;
  /** The sentence of each token in a pair, 0 or 1, [B, T], in models that have them. Default: 0. */
  types?: Tensor | null;
  /** Reduction of the loss. Default: the mean. */
  loss?: TaskLossOptions;
}

const INPUTS: OptionNames<TaskInputs> = {
  ...{ mask: true, types: true, labels: true, starts: true, ends: true, loss: true },
};
const LOSS: OptionNames<TaskLossOptions> = {
  ...{ divisor: true, classWeights: true, labelSmoothing: true },
};

/** How an embedding follows from hidden states. */
export interface Pooling {
  /** Vectors of these modes are side by side. */
  modes: readonly PoolingMode[];
  /** Whether the vector is divided by its length. */
  normalize: boolean;
}

/** Sizes that all models of tasks share. */
export interface TaskSizes {
  readonly vocabSize: number;
  readonly maxSeq: number;
  readonly layers: number;
  readonly heads: number;
  readonly channels: number;
}

/**
 * A model with the head of a task. forward(ids [B, T]) returns its outputs: logits [B, labels] of
 * sequences, [B, T, labels] of tokens, [B, T, 2] of the ends of an answer, [B, T, vocabSize] of
 * masked tokens, or embeddings [B, channels]. With labels, it returns the loss, f32.
 */
export abstract class TaskModel extends Module {
  /** The sizes. */
  abstract readonly config: TaskSizes;
  /** The task of its head. */
  abstract readonly task: HeadTask;
  /** Names of the labels, in the order of the outputs. */
  abstract readonly labels: readonly string[];
  /** How the loss of sequences is computed; null: by the labels. */
  abstract readonly problemType: ProblemType | null;
  /** The token of padding; null without one. */
  abstract readonly padTokenId: number | null;
  /** Whether forward() takes `types`. */
  abstract readonly hasTypes: boolean;
  /** How embeddings are made, if the task is "embedding". */
  pooling: Pooling = { modes: ['mean_tokens'], normalize: false };

  #origin: Origin | null = null;

  /** Hidden states [B, T, channels]. */
  protected abstract hiddenOf(ids: Tensor, inputs: TaskInputs): Tensor;

  /** The head's outputs. */
  protected abstract outputsOf(hidden: Tensor, ids: Tensor, inputs: TaskInputs): Tensor;

  /** The entries of config.json that follow from the sizes. */
  protected abstract described(): PretrainedDescription;

  /** The plan that splits its layers over ranks, for parallel.parallelize(). */
  abstract tensorPlan(): TensorPlan;

  /** @internal Names of the modules that belong to the head alone. */
  abstract headModules(): string[];

  /** @internal Called once after the model was built from a folder. */
  cameFrom(origin: Origin): void {
    this.#origin = origin;
  }

  /** Description for transformers: the sizes, and other entries of the original folder. */
  override describe(): PretrainedDescription {
    return withOrigin(this.described(), this.#origin);
  }

  /** Writes a folder that fromPretrained() and transformers read. See CausalLM.save(). */
  save(dir: string, options: Omit<SaveWeightsOptions, 'format'> = {}): Promise<string[]> {
    return saveWeights(this, dir, { ...options, format: 'hf' });
  }

  /** Number of tokens in the vocabulary. */
  get vocabSize(): number {
    return this.config.vocabSize;
  }

  /** Width of the hidden states. */
  get hiddenSize(): number {
    return this.config.channels;
  }

  /** The longest sequence, with special tokens. */
  get maxSeq(): number {
    return this.config.maxSeq;
  }

  /**
   * Returns the outputs of tokens [B, T], or with labels the loss, a scalar f32. Throws DS_SHAPE,
   * DS_ARGUMENT.
   */
  override forward(ids: Tensor, given: TaskInputs = {}): Tensor {
    const op = this.constructor.name;
    this.requireLength(ids);
    const inputs = readOptions(`${op} inputs`, given, INPUTS);
    const how = readOptions(`${op} inputs.loss`, inputs.loss, LOSS);
    return scope(() => {
      const hidden = this.hiddenOf(ids, inputs);
      if (this.task === 'embedding') return this.embedding(hidden, inputs.mask ?? null);
      const outputs = this.outputsOf(hidden, ids, inputs);
      if (!inputs.labels && !inputs.starts && !inputs.ends) return outputs;
      const { task, problemType } = this;
      return taskLoss(outputs, inputs, { task, problemType, op }, how);
    });
  }

  /** Hidden states [B, T, channels] of tokens [B, T]. Throws DS_SHAPE. */
  hidden(ids: Tensor, inputs: Pick<TaskInputs, 'mask' | 'types'> = {}): Tensor {
    this.requireLength(ids);
    return scope(() => this.hiddenOf(ids, inputs));
  }

  private embedding(hidden: Tensor, mask: Tensor | null): Tensor {
    const { modes, normalize } = this.pooling;
    requireModes(`${this.constructor.name} pooling.modes`, modes);
    const vectors = pooled(modes, hidden, mask);
    return normalize ? unitRows(vectors) : vectors;
  }

  private requireLength(ids: Tensor): void {
    requireTensor(this.constructor.name, ids);
    if (ids.ndim === 2 && ids.size(1) <= this.maxSeq) return;
    throw new DsError({
      code: 'DS_SHAPE',
      op: this.constructor.name,
      expected: `tokens [B, T] with T <= ${this.maxSeq}`,
      got: `[${ids.shape.join(', ')}]`,
      hint: `The model has ${this.maxSeq} positions: cut texts to at most that length (maxLength).`,
    });
  }
}
