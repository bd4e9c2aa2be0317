// TaskModel: the base class of models for other tasks than next-token prediction.

import { DsError } from '../../errors.js';
import { Module } from '../../nn/module.js';
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import { sourceFolderOf } from '../../nn/source-folder.js';
import type { TensorPlan } from '../../parallel/plan.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import { required } from '../../runtime/required.js';
import { noGrad, scope, type Tensor } from '../../tensor/index.js';
import { requireTensor } from '../../tensor/ops/shapes.js';
import type { EncodedPair } from '../../text/encode-pair.js';
import { Tokenizer } from '../../text/index.js';
import { padRows } from '../../text/padding.js';
import { type ModelOrigin, mergeOrigin } from '../origin.js';
import { type SaveWeightsOptions, saveWeights } from '../save-weights.js';
import { type Classification, type ClassifyOptions, scoreLogits } from './classification.js';
import { type TaskLabels, type TaskLossOptions, taskLoss } from './losses.js';
import { normalizeRows, type Pooling, pool, requireModes } from './pooling.js';
import { writeSentenceFolder } from './sentence-folder.js';
import type { HeadTask, ProblemType } from './task.js';

/** Inputs of a forward in addition to tokens. */
export interface TaskInputs extends TaskLabels {
  /** 1 for tokens and 0 for padding, [B, T]. Default: no padding. */
  mask?: Tensor | null;
  /**
   * Index of each token's text in a pair, 0 or 1, [B, T], in models with token types. Default: 0.
   */
  types?: Tensor | null;
  /** Reduction of the loss. Default: the mean. */
  loss?: TaskLossOptions;
}

/** Options of embed(). */
export interface EmbedOptions {
  /** Encodes the texts. Default: the tokenizer of the model's folder. */
  tokenizer?: Tokenizer;
  /** Number of texts in a batch. Default: 32. */
  batchSize?: number;
  /** Maximum tokens of a text. Default: the folder's or the model's limit. */
  maxLength?: number;
  /** A prefix of each text, such as "query: ". Default: none. */
  prompt?: string;
}

function requireTexts(op: string, texts: unknown): void {
  if (!Array.isArray(texts)) throw valueError(op, 'a list of texts', texts);
}

/** Sizes that every TaskModel has. */
export interface TaskSizes {
  /** Number of tokens in the vocabulary. */
  readonly vocabSize: number;
  /** Maximum length of a sequence. */
  readonly maxSeq: number;
  /** Number of layers. */
  readonly layers: number;
  /** Number of attention heads. */
  readonly heads: number;
  /** Width of the hidden states. */
  readonly channels: number;
}

/**
 * A model with the head of a task. forward(ids [B, T]) returns the outputs; with labels, it returns
 * the loss, f32. Outputs by task:
 *
 * - sequence-classification: logits [B, labels]
 * - token-classification: logits [B, T, labels]
 * - question-answering: logits of the first and last token of the answer, [B, T, 2]
 * - masked-lm: logits [B, T, vocabSize]
 * - embedding: embeddings [B, channels]
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
  /** Id of the padding token; null without one. */
  abstract readonly padTokenId: number | null;
  /** Whether forward() takes `types`. */
  abstract readonly hasTypes: boolean;
  /** How hidden states become embeddings, for the task "embedding". */
  pooling: Pooling = { modes: ['mean_tokens'], normalize: false };
  /** Maximum tokens of a text in embed(); null: the model's limit. */
  maxLength: number | null = null;

  #origin: ModelOrigin | null = null;
  #tokenizer: Tokenizer | null = null;
  /** Modules that started with random values. */
  #random: readonly string[] = [];

  /** Hidden states [B, T, channels]. */
  protected abstract hiddenOf(ids: Tensor, inputs: TaskInputs): Tensor;

  /** The head's outputs. */
  protected abstract outputsOf(hidden: Tensor, ids: Tensor, inputs: TaskInputs): Tensor;

  /** The entries of config.json that follow from the sizes. */
  protected abstract described(): PretrainedDescription;

  /** Returns the plan that splits the layers over ranks, for parallel.parallelize(). */
  abstract tensorPlan(): TensorPlan;

  /** @internal Returns the names of the head's modules. */
  abstract headModules(): string[];

  /** @internal Called with the names of parameters that the folder lacks. */
  startedRandom(names: readonly string[]): void {
    this.#random = names.map((name) => name.slice(0, name.lastIndexOf('.')));
  }

  /**
   * @internal Returns the modules that an adapter must save whole: the head, and modules that the
   * base model lacks, such as BERT's pooler in a folder for masked tokens.
   */
  unsavedModules(): string[] {
    const head = this.headModules();
    const isInHead = (name: string): boolean =>
      head.some((module) => name === module || name.startsWith(`${module}.`));
    return [...new Set([...head, ...this.#random.filter((name) => !isInHead(name))])];
  }

  /** @internal Called once after the model was built from a folder. */
  cameFrom(origin: ModelOrigin): void {
    this.#origin = origin;
  }

  /**
   * Returns the description for transformers: the sizes, and other entries of the original folder.
   */
  override describe(): PretrainedDescription {
    return mergeOrigin(this.described(), this.#origin);
  }

  /** Writes a folder that fromPretrained() and transformers read. See CausalLM.save(). */
  async save(dir: string, options: Omit<SaveWeightsOptions, 'format'> = {}): Promise<string[]> {
    const files = await saveWeights(this, dir, { ...options, format: 'hf' });
    if (this.task === 'embedding') await writeSentenceFolder(dir, this.pooling, this.hiddenSize);
    return files;
  }

  /**
   * Returns an embedding for each text, in the order of `texts`. Texts of similar length share a
   * batch. Throws DS_ARGUMENT if the task is not "embedding", or without a tokenizer.
   */
  embed(texts: readonly string[], given: EmbedOptions = {}): Float32Array[] {
    const op = `${this.constructor.name} embed`;
    const { prompt = '', ...options } = readOptions(op, given, namesOf.EmbedOptions);
    if (this.task !== 'embedding')
      throw argumentError(op, 'a model of the task "embedding"', this.task);
    requireTexts(op, texts);
    requireType(`${op} prompt`, prompt, 'string');
    const prompted = texts.map((text) => `${prompt}${text}`);
    return this.outputsOfTexts(op, prompted, {
      maxLength: this.maxLength ?? this.maxSeq,
      ...options,
    });
  }

  /**
   * Returns the label of each text, with its scores, in the order of `texts`. A pair is one row of
   * two texts. Texts of similar length share a batch. Throws DS_ARGUMENT if the task is not
   * "sequence-classification", or without a tokenizer.
   */
  classify(
    texts: readonly (string | readonly [string, string])[],
    given: ClassifyOptions = {},
  ): Classification[] {
    const op = `${this.constructor.name} classify`;
    const options = readOptions(op, given, namesOf.ClassifyOptions);
    if (this.task !== 'sequence-classification')
      throw argumentError(op, 'a model of the task "sequence-classification"', this.task);
    requireTexts(op, texts);
    const rows = this.outputsOfTexts(op, texts, { maxLength: this.maxSeq, ...options });
    return rows.map((logits) => scoreLogits(logits, this.labels, this.problemType));
  }

  /** Returns the outputs of each text, in f32. Needs a head with one vector for each text. */
  private outputsOfTexts(
    op: string,
    texts: readonly (string | readonly [string, string])[],
    options: ClassifyOptions & { maxLength: number },
  ): Float32Array[] {
    const { batchSize = 32, maxLength, tokenizer = this.folderTokenizer(op) } = options;
    requireInteger(`${op} batchSize`, batchSize, 1);
    if (!(tokenizer instanceof Tokenizer)) {
      throw valueError(`${op} tokenizer`, 'a text.Tokenizer', tokenizer);
    }
    const rows = texts.map((text) => {
      if (typeof text !== 'string') return tokenizer.encodePair(...text, { maxLength });
      const ids = tokenizer.encode(text, { maxLength });
      return { ids, types: new Int32Array(ids.length) };
    });
    const order = rows
      .map((_, i) => i)
      .sort((a, b) => required(rows[b]).ids.length - required(rows[a]).ids.length);
    const vectors: Float32Array[] = [];
    // Without a padding token, a decoder cannot find the last tokens of a batch.
    const size = this.padTokenId === null && this.task !== 'embedding' ? 1 : batchSize;
    const { training } = this;
    this.eval();
    try {
      for (let at = 0; at < order.length; at += size) {
        const some = order.slice(at, at + size);
        const batch = some.map((i) => required(rows[i]));
        const values = this.outputsOfRows(batch, tokenizer);
        some.forEach((i, b) => {
          vectors[i] = required(values[b]);
        });
      }
    } finally {
      this.train(training);
    }
    return vectors;
  }

  private outputsOfRows(rows: readonly EncodedPair[], tokenizer: Tokenizer): Float32Array[] {
    const pad = this.padTokenId ?? tokenizer.padId ?? tokenizer.eosId ?? 0;
    const { device } = required(this.parameters()[0]);
    const padded = (values: readonly Int32Array[], filling: number) =>
      padRows(this.constructor.name, values, filling, { device });
    return noGrad(() =>
      scope(() => {
        const { ids, mask } = padded(
          rows.map((row) => row.ids),
          pad,
        );
        const types = this.hasTypes
          ? padded(
              rows.map((row) => row.types),
              0,
            ).ids
          : null;
        const out = (this as TaskModel).call(ids, { mask, types }).to('f32');
        const values = out.toRaw() as Float32Array;
        const width = out.size(1);
        return rows.map((_, b) => values.slice(b * width, (b + 1) * width));
      }),
    );
  }

  /** The tokenizer of the folder that the model was read from. */
  private folderTokenizer(op: string): Tokenizer {
    const folder = sourceFolderOf(this);
    if (folder === null) throw argumentError(op, '`tokenizer`, for a model from no folder', 'none');
    this.#tokenizer ??= Tokenizer.fromPretrained(folder);
    return this.#tokenizer;
  }

  /** Number of tokens in the vocabulary. */
  get vocabSize(): number {
    return this.config.vocabSize;
  }

  /** Width of the hidden states. */
  get hiddenSize(): number {
    return this.config.channels;
  }

  /** Maximum length of a sequence, with special tokens. */
  get maxSeq(): number {
    return this.config.maxSeq;
  }

  /**
   * Returns the outputs of tokens [B, T], or with labels the loss, a scalar f32. Throws DS_SHAPE if
   * the sizes do not fit, DS_ARGUMENT for an unknown option.
   */
  override forward(ids: Tensor, given: TaskInputs = {}): Tensor {
    const op = this.constructor.name;
    this.requireLength(ids);
    const inputs = readOptions(`${op} inputs`, given, namesOf.TaskInputs);
    const how = readOptions(`${op} inputs.loss`, inputs.loss, namesOf.TaskLossOptions);
    return scope(() => {
      const hidden = this.hiddenOf(ids, inputs);
      if (this.task === 'embedding') return this.embedding(hidden, inputs.mask ?? null);
      const outputs = this.outputsOf(hidden, ids, inputs);
      if (!inputs.labels && !inputs.starts && !inputs.ends) return outputs;
      const { task, problemType } = this;
      return taskLoss(outputs, inputs, { task, problemType, op }, how);
    });
  }

  /**
   * Returns the hidden states [B, T, channels] of tokens [B, T]. Throws DS_SHAPE if the sizes do
   * not fit.
   */
  hidden(ids: Tensor, inputs: Pick<TaskInputs, 'mask' | 'types'> = {}): Tensor {
    this.requireLength(ids);
    return scope(() => this.hiddenOf(ids, inputs));
  }

  private embedding(hidden: Tensor, mask: Tensor | null): Tensor {
    const { modes, normalize } = this.pooling;
    requireModes(`${this.constructor.name} pooling.modes`, modes);
    const vectors = pool(modes, hidden, mask);
    return normalize ? normalizeRows(vectors) : vectors;
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
