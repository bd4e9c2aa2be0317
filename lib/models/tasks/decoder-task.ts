// DecoderTask: the body of a causal language model with the head of another task.

import { DsError } from '../../errors.js';
import { normal, zeros } from '../../nn/initializers.js';
import { Linear } from '../../nn/linear.js';
import type { Module } from '../../nn/module.js';
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import type { TensorPlan } from '../../parallel/plan.js';
import { argumentError } from '../../runtime/input-errors.js';
import { leading, required } from '../../runtime/required.js';
import { noGrad, type Tensor } from '../../tensor/index.js';
import type { CausalLM } from '../causal-lm.js';
import { findAt, placeChild } from '../encoder/paths.js';
import type { Layout } from '../load-weights.js';
import type { Family } from '../model-folder.js';
import type { ModelOrigin } from '../origin.js';
import { inRows } from '../places.js';
import { lastPositions, selectTokens } from './pooling.js';
import {
  CLASS_ENDS,
  describeLabels,
  type HeadTask,
  hasLabels,
  type LabelOptions,
  type Labels,
  type ProblemType,
  parseLabels,
  readLabels,
} from './task.js';
import { type TaskInputs, TaskModel, type TaskSizes } from './task-model.js';

/** The head's field in transformers' classes, by model_type. Other models have generic names. */
const TOKEN_HEADS: Readonly<Record<string, string>> = {
  gpt2: 'classifier',
  gpt_neox: 'classifier',
};

/** Options of a head. */
interface HeadOptions extends LabelOptions {
  task: HeadTask;
  padTokenId: number | null;
}

/**
 * The body of a causal language model with another head. A sequence is classified by its last token
 * that is not padding. Source: transformers' GenericForSequenceClassification.
 */
export class DecoderTask extends TaskModel {
  readonly config: TaskSizes;
  readonly task: HeadTask;
  /**
   * Id of the padding token; null without one. Batches of several rows need it to find last tokens.
   */
  padTokenId: number | null;
  readonly hasTypes = false;
  readonly #labels: Labels;
  readonly #lm: CausalLM;
  /** The field of the body. */
  readonly #body: string;
  readonly #head: string | null;

  /** @internal Throws DS_ARGUMENT for a task or a family without this head. */
  constructor(lm: CausalLM, { task, padTokenId, ...options }: HeadOptions) {
    super();
    const name = lm.constructor.name;
    if (task === 'masked-lm' || task === 'question-answering') {
      throw argumentError(`${name} task`, 'a task of a decoder', `"${task}", which is of encoders`);
    }
    requireUnscaled(lm);
    this.#lm = lm;
    this.task = task;
    this.padTokenId = padTokenId;
    this.#labels = readLabels(name, options);
    const { vocabSize, maxSeq, layers, heads } = lm.config;
    const channels = lm.hiddenSize;
    this.config = { vocabSize, maxSeq, layers, heads, channels };
    const [ofModel, body] = findBody(lm);
    const type = String(lm.describe().config.model_type);
    this.#body = ofModel;
    placeChild(this, ofModel, body);
    this.#head = headName(task, type);
    if (this.#head === null) {
      this.pooling = { modes: ['lasttoken'], normalize: false };
      return;
    }
    const bias = task !== 'sequence-classification';
    const outputs = hasLabels(task) ? this.#labels.names.length : 2;
    const head = new Linear(channels, outputs, { bias, biasInit: zeros });
    const { initializerRange = 0.02 } = lm.config as { initializerRange?: number };
    head.weight.initialize(normal(initializerRange));
    placeChild(this, this.#head, head);
  }

  override get labels(): readonly string[] {
    return hasLabels(this.task) ? this.#labels.names : [];
  }

  override get problemType(): ProblemType | null {
    return this.#labels.problemType;
  }

  /** @internal The language model that owns the body. */
  get decoder(): CausalLM {
    return this.#lm;
  }

  /** @internal Frees cached tables of positions. The next forward builds them again. */
  releaseTables(): void {
    this.#lm.releaseTables();
  }

  /** @internal */
  override cameFrom(origin: ModelOrigin): void {
    super.cameFrom(origin);
    this.#lm.cameFrom(origin);
  }

  /** @internal */
  override headModules(): string[] {
    return this.#head === null ? [] : [this.#head];
  }

  override tensorPlan(): TensorPlan {
    const { sequence: _, ...plan } = this.#lm.tensorPlan();
    const belongsToBody = ([path]: [string, unknown]): boolean => path.startsWith(`${this.#body}.`);
    return {
      ...plan,
      layers: Object.fromEntries(Object.entries(plan.layers).filter(belongsToBody)),
    };
  }

  protected override hiddenOf(ids: Tensor, { mask, types }: TaskInputs): Tensor {
    if (types)
      throw argumentError(`${this.constructor.name} types`, 'none, as in all decoders', 'types');
    const documents = mask ? noGrad(() => mask.to('i32').sub(1)) : null;
    return this.#lm.hidden(ids, { ...inRows, documents });
  }

  protected override outputsOf(hidden: Tensor, ids: Tensor): Tensor {
    const head = findAt<Linear>(this, required(this.#head));
    if (this.task !== 'sequence-classification') return head.call(hidden);
    return head.call(this.selectLast(hidden, ids));
  }

  /** Returns the hidden state of the last token of each row that is not padding, [B, C]. */
  private selectLast(hidden: Tensor, ids: Tensor): Tensor {
    const { padTokenId } = this;
    const [B, T] = leading(ids.shape, 2);
    if (padTokenId !== null)
      return selectTokens(hidden, lastPositions(noGrad(() => ids.ne(padTokenId))));
    if (B === 1)
      return hidden
        .narrow(1, T - 1, 1)
        .squeeze(1)
        .contiguous();
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: `${this.#lm.constructor.name} padTokenId`,
      expected: `a padding token, to find the last token in each of ${B} rows`,
      got: 'none',
      hint: 'Set model.padTokenId to the id that fills rows, such as tokenizer.padId.',
    });
  }

  /** @internal Returns the layout of the files: `base` for the body, and the head. */
  createLayout(base: Layout): Layout {
    const stateNames = new Set(Object.keys(this.stateDict()));
    const isHead = (called: string): boolean => !called.startsWith(`${this.#body}.`);
    return {
      ...base,
      head: { has: isHead, replaces: false },
      nameOf: (given) => {
        if (stateNames.has(given)) return given;
        const called = base.nameOf(given);
        if (called === null) return null;
        // Files with only the body have no prefix.
        if (stateNames.has(`${this.#body}.${called}`)) return `${this.#body}.${called}`;
        return isHead(called) ? null : called;
      },
    };
  }

  protected override described(): PretrainedDescription {
    const { config, ...layout } = this.#lm.describe();
    const [architecture = ''] = config.architectures as string[];
    const classes = architecture.replace(/(For[A-Z]\w*|LMHeadModel|Model)$/, '');
    return {
      ...layout,
      config: {
        ...config,
        architectures: [`${classes}${CLASS_ENDS[this.task]}`],
        ...(this.padTokenId !== null && { pad_token_id: this.padTokenId }),
        ...(hasLabels(this.task) && describeLabels(this.#labels)),
      },
    };
  }
}

function headName(task: HeadTask, type: string): string | null {
  if (task === 'embedding') return null;
  return task === 'token-classification' ? (TOKEN_HEADS[type] ?? 'score') : 'score';
}

/** Returns the field of the body: the child that is not the head. */
function findBody(lm: CausalLM): [name: string, body: Module] {
  const body = [...lm.namedChildren()].find(([, child]) => child !== lm.lm_head);
  return required(body);
}

/** Throws DS_ARGUMENT if the family scales logits: its hidden states contain the scale. */
function requireUnscaled(lm: CausalLM): void {
  const { scales } = lm.config as { scales?: { logits?: number } };
  if (scales?.logits === undefined || scales.logits === 1) return;
  const expected = 'a family whose transformers class has this head';
  throw argumentError(`${lm.constructor.name} task`, expected, `a ${lm.constructor.name}`);
}

/** Returns the family that loads a decoder with the head of a task. */
export function decoderFamily(
  family: Family<CausalLM, object>,
): Family<DecoderTask, LabelOptions & { task: HeadTask }> {
  return {
    ...family,
    anyHead: true,
    build: ({ config, tensors }, { task, labels, problemType, ...options }) => {
      const pad = config.get('pad_token_id');
      const labelOptions = hasLabels(task) ? parseLabels(config) : {};
      const headOptions = {
        ...(labels !== undefined && { labels }),
        ...(problemType !== undefined && { problemType }),
      };
      const prefixed = {
        has: (name: string) => tensors.has(name) || tensors.has(bare(name)),
      };
      const lm = family.build({ config, tensors: prefixed }, options);
      return new DecoderTask(lm, {
        task,
        ...labelOptions,
        ...headOptions,
        padTokenId: Number.isInteger(pad) && (pad as number) >= 0 ? (pad as number) : null,
      });
    },
    layout: (model) => model.createLayout(family.layout(model.decoder)),
  };
}

/** Returns a tensor's name in files with only the body. */
const bare = (name: string): string => name.replace(/^model\./, '');
