// EncoderModel: the body of an encoder with the head of a task. encoderFamily() makes a family from
// its traits.

import { normal, zeros } from '../../nn/initializers.js';
import { Linear } from '../../nn/linear.js';
import { Parameter } from '../../nn/parameter.js';
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import type { TensorPlan } from '../../parallel/plan.js';
import { required } from '../../runtime/required.js';
import { dropout, linear, type Tensor } from '../../tensor/index.js';
import type { Family } from '../model-folder.js';
import type { Norm } from '../rotary/norms.js';
import { findFirst, meanTokens } from '../tasks/pooling.js';
import { type HeadTask, hasLabels, type ProblemType } from '../tasks/task.js';
import { type TaskInputs, TaskModel } from '../tasks/task-model.js';
import { EncoderBody } from './body.js';
import {
  type EncoderBodySizes,
  type EncoderConfig,
  type EncoderOptions,
  type EncoderSizes,
  readEncoderConfig,
  toBody,
} from './config.js';
import { applyActivation, createEncoderNorm } from './layer.js';
import { findAt, placeChild } from './paths.js';
import { describeEncoder, encoderLayout, parseEncoderConfig } from './pretrained.js';
import type { EncoderHeads, EncoderTraits, HeadTraits } from './traits.js';

/** The declared head of each task; null for a task without head. */
const HEAD: Readonly<Record<HeadTask, keyof EncoderHeads | null>> = {
  'sequence-classification': 'sequence',
  'token-classification': 'token',
  'question-answering': 'question',
  'masked-lm': 'masked',
  embedding: null,
};

/**
 * An encoder with the head of a task; see TaskModel. As in transformers, initial weights are N(0,
 * initializerRange^2), and biases and the padding row are 0.
 */
export abstract class EncoderModel extends TaskModel {
  /** The configuration, with defaults. */
  readonly config: EncoderSizes;
  readonly #body: EncoderBodySizes;
  readonly #head: HeadTraits | null;

  /** @internal Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  protected constructor(traits: EncoderTraits, given: EncoderConfig) {
    super();
    this.config = readEncoderConfig(traits, given);
    this.#body = toBody(traits, this.config);
    const kind = HEAD[this.config.task];
    this.#head = kind && traits.heads[kind];
    placeChild(this, traits.body, new EncoderBody(this.#body));
    if (this.#head) this.addHead(this.#head);
    const init = normal(this.config.initializerRange);
    for (const module of this.modules()) {
      if (!(module instanceof Linear)) continue;
      module.weight.initialize(init);
      module.bias?.initialize(zeros);
    }
  }

  private addHead({ dense, norm, narrows, out }: HeadTraits): void {
    const { channels, embeddingSize, vocabSize, task, labels } = this.config;
    const { biases: bias } = this.#body;
    const width = narrows ? embeddingSize : channels;
    if (dense) placeChild(this, dense, new Linear(channels, width, { bias }));
    if (norm) placeChild(this, norm, createEncoderNorm(this.#body, width));
    if (task === 'masked-lm') placeChild(this, out, new Parameter([vocabSize], zeros));
    else placeChild(this, out, new Linear(channels, hasLabels(task) ? labels.names.length : 2));
  }

  override get task(): HeadTask {
    return this.config.task;
  }

  override get labels(): readonly string[] {
    return hasLabels(this.task) ? this.config.labels.names : [];
  }

  override get problemType(): ProblemType | null {
    return this.config.labels.problemType;
  }

  override get padTokenId(): number {
    return this.config.padTokenId;
  }

  override get hasTypes(): boolean {
    return this.config.types > 1;
  }

  /** @internal Frees cached tables of positions. The next forward builds them again. */
  releaseTables(): void {
    this.body.releaseTables();
  }

  /** @internal */
  override headModules(): string[] {
    const { body } = this.#body.traits;
    return [...this.namedChildren()].map(([name]) => name).filter((name) => name !== body);
  }

  /** The embedding and the layers. */
  get body(): EncoderBody {
    return findAt<EncoderBody>(this, this.#body.traits.body);
  }

  override tensorPlan(): TensorPlan {
    const { traits, names, heads } = this.#body;
    const { list, attention, projections, out, first, second } = names.layer;
    const block = `${traits.body}.${list}.*`;
    const packed = projections.length === 1;
    const ofHeads = { style: 'column', heads: 'queries' } as const;
    return {
      heads: { queries: heads, keys: heads },
      layers: {
        ...(this.task !== 'masked-lm' && {
          [`${traits.body}.${names.embedding.words}`]: 'vocabulary' as const,
        }),
        [`${block}.${attention}`]: 'attention',
        ...Object.fromEntries(
          projections.map((name) => [
            `${block}.${attention}.${name}`,
            packed ? { ...ofHeads, parts: 3 } : ofHeads,
          ]),
        ),
        [`${block}.${out}`]: { style: 'row', heads: 'queries' },
        [`${block}.${first}`]: traits.gated ? { style: 'column', parts: 2 } : 'column',
        [`${block}.${second}`]: 'row',
      },
    };
  }

  protected override hiddenOf(ids: Tensor, { mask, types }: TaskInputs): Tensor {
    return this.body.call(ids, { mask: mask ?? null, types: types ?? null });
  }

  protected override outputsOf(hidden: Tensor, _: Tensor, { mask }: TaskInputs): Tensor {
    const { task } = this;
    const head = required(this.#head);
    const x =
      task === 'sequence-classification' ? this.selectSequence(hidden, mask ?? null) : hidden;
    const y = this.applyHead(x, head);
    if (task !== 'masked-lm') return findAt<Linear>(this, head.out).call(y);
    return linear(y, this.body.words.weight, findAt<Parameter>(this, head.out));
  }

  /** Returns the vector of each sequence, [B, C]. */
  private selectSequence(hidden: Tensor, mask: Tensor | null): Tensor {
    if (!this.#body.traits.pools) return findFirst(hidden);
    return this.config.pooling === 'mean' ? meanTokens(hidden, mask) : findFirst(hidden);
  }

  /** Runs the head up to its last layer. */
  private applyHead(x: Tensor, { dropsInput, dense, activation, norm }: HeadTraits): Tensor {
    const input = dropsInput ? this.drop(x) : x;
    const linearly = dense ? findAt<Linear>(this, dense).call(input) : input;
    const kind = activation === 'config' ? this.config.activation : activation;
    const y = kind ? applyActivation(kind, linearly) : linearly;
    const normed = norm ? findAt<Norm>(this, norm).call(y) : y;
    return hasLabels(this.task) ? this.drop(normed) : normed;
  }

  private drop(x: Tensor): Tensor {
    return this.training ? dropout(x, this.config.headDropout) : x;
  }

  protected override described(): PretrainedDescription {
    return describeEncoder(this.#body);
  }
}

/** Returns the family of Hugging Face folders for encoders of `traits`. */
export function encoderFamily<Model extends EncoderModel>(
  traits: EncoderTraits,
  build: (config: EncoderConfig) => Model,
): Family<Model, EncoderOptions & { task: HeadTask }> {
  const { name, modelType, classes } = traits;
  return {
    modelType,
    anyHead: true,
    architecture: `${name} supports the published settings of transformers' ${classes}Model and its heads.`,
    layout: (model) => encoderLayout(traits, model),
    build: (folder, options) =>
      build({ ...parseEncoderConfig(traits, folder, options.task), ...options }),
  };
}
