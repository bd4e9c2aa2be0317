// Creates the objective of a Trainer, which computes the loss of a batch and counts its targets.
import { takeFirstTokens } from '../data/first-tokens.js';
import { CausalLM, type CausalLossOptions } from '../models/causal-lm.js';
import { TaskModel } from '../models/tasks/task-model.js';
import type { Module } from '../nn/index.js';
import { PipelineModule } from '../pipe/pipeline-module.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { requireFinite } from '../runtime/require-number.js';
import { type LossReport, scope, Tensor, tensorsIn } from '../tensor/index.js';
import { targetsOf } from '../text/index.js';
import type { LossInput } from './evaluation-options.js';
import type { Divisor, Forward, MicroBatch, Objective } from './micro-batch.js';
import type { TrainerSettings } from './read-options.js';
import { TaskObjective } from './task-objective.js';

/** Options of the Trainer that determine its objective. */
type ObjectiveOptions<Batch> = Pick<
  TrainerSettings<never, Batch>,
  'loss' | 'count' | 'labelSmoothing' | 'classWeights' | 'method'
>;

/**
 * Returns the objective: that of `method`, that of the caller's `loss`, or that of the model.
 * Throws DS_ARGUMENT if there is no loss, or if options contradict each other.
 */
export function createObjective<Batch>(
  model: Module,
  { loss, count, labelSmoothing, classWeights, method }: ObjectiveOptions<Batch>,
): Objective<Batch> {
  if (model instanceof PipelineModule) {
    const hint = 'Call engine.trainBatch() in your own loop.';
    throw argumentError(
      'Trainer model',
      'a model without pipeline stages',
      'a PipelineModule',
      hint,
    );
  }
  if (method) {
    const given = Object.entries({ loss, count, classWeights }).find(([, value]) => value);
    if (!given && labelSmoothing === 0) return method.objectiveOf(model);
    const [name] = given ?? ['labelSmoothing'];
    throw argumentError(`Trainer ${name}`, `no ${name} with ${method.name}()`, 'a value');
  }
  if (loss) {
    if (labelSmoothing === 0) return new CustomObjective(loss, count ?? countTargets);
    const got = `${labelSmoothing} with a custom \`loss\``;
    throw argumentError('Trainer labelSmoothing', 'the loss of the model itself', got);
  }
  if (model instanceof TaskModel) {
    return new TaskObjective(model, { count, labelSmoothing, classWeights });
  }
  if (classWeights) {
    const expected = 'a model with labels, for class weights';
    throw argumentError('Trainer classWeights', expected, `a ${model.constructor.name}`);
  }
  if (model instanceof CausalLM) {
    return new CausalObjective(model.config.ignoreIndex ?? IGNORED, { count, labelSmoothing });
  }
  const hint = 'Pass `loss: ({ forward, batch }) => ...`, the mean loss of a batch.';
  const got = `${model.constructor.name} without a \`loss\``;
  throw argumentError('Trainer model', 'a CausalLM, or another model with a `loss`', got, hint);
}

/** Label of targets that do not count. */
const IGNORED = -100;

/** A batch of a text dataset or of token windows. Each tensor is [B, T]. */
interface CausalBatch {
  tokens: Tensor;
  targets: Tensor;
  documents: Tensor | null;
  positions: Tensor | null;
}

class CausalObjective<Batch> implements Objective<Batch> {
  constructor(
    private readonly ignored: number,
    private readonly options: { count?: (batch: Batch) => number; labelSmoothing: number },
  ) {}

  /**
   * Shortens a batch to `seqlen` tokens. Converts labels to targets first, because the last target
   * is the token after the last one that is kept.
   */
  shorten(batch: Batch, seqlen: number): Batch {
    const { labels, ...rest } = batch as { labels?: Tensor };
    const targets = this.targetsOf(batch);
    const cut = shortenFields({ ...rest, targets } as Batch, seqlen);
    if (labels && targets !== labels) labels.dispose();
    return cut;
  }

  countBatch(batch: Batch): MicroBatch<Batch> {
    const targets = this.targetsOf(batch);
    const counted = this.options.count?.(batch) ?? countOthers(targets, this.ignored);
    requireFinite('Trainer count', counted, 0);
    return { batch, targets, counted, tokens: countTokens(batch, targets) };
  }

  private targetsOf(batch: Batch): Tensor {
    const { labels, targets } = batch as { labels?: Tensor; targets?: Tensor };
    return targets ? requireTensor(batch, targets) : targetsOf(requireTensor(batch, labels));
  }

  computeMeanLoss(
    forward: Forward,
    micro: MicroBatch<Batch>,
    report: LossReport | null = null,
  ): Tensor {
    return this.loss(forward, micro, report ? { report } : {});
  }

  computeSharedLoss(forward: Forward, micro: MicroBatch<Batch>, divisor: Divisor): Tensor {
    return this.loss(forward, micro, { divisor });
  }

  /** Returns the most probable next token at each position, [B, T]. */
  computeOutputs(forward: Forward, micro: MicroBatch<Batch>): Tensor {
    const { tokens, documents, positions } = readCausalBatch(micro);
    return forward(tokens, null, { documents, positions }).argmax(-1);
  }

  private loss(forward: Forward, micro: MicroBatch<Batch>, how: CausalLossOptions): Tensor {
    const { tokens, targets, documents, positions } = readCausalBatch(micro);
    const { labelSmoothing } = this.options;
    const loss = labelSmoothing > 0 ? { ...how, labelSmoothing } : how;
    return forward(tokens, targets, { documents, positions, loss });
  }
}

class CustomObjective<Batch> implements Objective<Batch> {
  constructor(
    private readonly loss: (input: LossInput<Batch>) => Tensor,
    private readonly count: (batch: Batch) => number,
  ) {}

  shorten(batch: Batch, seqlen: number): Batch {
    return shortenFields(batch, seqlen);
  }

  countBatch(batch: Batch): MicroBatch<Batch> {
    const counted = requireFinite('Trainer count', this.count(batch), 0);
    return { batch, targets: null, counted, tokens: countSamples(batch) };
  }

  computeMeanLoss(forward: Forward, { batch }: MicroBatch<Batch>): Tensor {
    return this.loss({ forward, batch });
  }

  computeSharedLoss(forward: Forward, micro: MicroBatch<Batch>, divisor: Divisor): Tensor {
    return weighLoss(this.computeMeanLoss(forward, micro), micro.counted, divisor);
  }

  computeOutputs(): Tensor {
    const expected = 'an output function for a model other than CausalLM';
    const hint = 'Pass `output: ({ forward, batch }) => ...`, a tensor with a row for each sample.';
    throw argumentError('Trainer predict output', expected, 'nothing', hint);
  }
}

/** Returns mean * counted / divisor. */
function weighLoss(mean: Tensor, counted: number, divisor: Divisor): Tensor {
  if (typeof divisor !== 'number') return scope(() => mean.mul(counted).div(divisor));
  return divisor === counted ? mean : mean.mul(counted / divisor);
}

function readCausalBatch<Batch>({ batch, targets }: MicroBatch<Batch>): CausalBatch {
  const { ids, tokens = ids, documents, positions } = batch as Record<string, Tensor | undefined>;
  return {
    tokens: requireTensor(batch, tokens),
    targets: targets as Tensor,
    documents: documents ?? null,
    positions: positions ?? null,
  };
}

function requireTensor(batch: unknown, tensor: unknown): Tensor {
  if (tensor instanceof Tensor) return tensor;
  const expected = 'batches { ids, labels, ... } or { tokens, targets } of tensors';
  const hint = Array.isArray(tensor)
    ? 'Use Int32Array in samples. A plain array becomes one tensor for each element.'
    : 'Pass `data.collate`, or a `loss` for these batches.';
  throw argumentError('Trainer batch', expected, formatValue(batch), hint);
}

/** Keys of tensors with one element per token in a batch. */
const BY_TOKEN = [
  'tokens',
  'targets',
  'ids',
  'input_ids',
  'labels',
  'documents',
  'positions',
  'position_ids',
  'attention_mask',
  'loss_mask',
];

function shortenFields<Batch>(batch: Batch, seqlen: number): Batch {
  const fields = Object.entries((batch ?? {}) as Record<string, unknown>);
  const isByToken = ([name, value]: [string, unknown]): boolean =>
    BY_TOKEN.includes(name) && value instanceof Tensor && value.ndim >= 2;
  if (!fields.some(isByToken)) {
    const expected = `batches with a tensor [B, T] under one of ${BY_TOKEN.join(', ')}, which curriculum_learning shortens`;
    const hint = 'Pass `data.collate`, or disable curriculum_learning.';
    throw argumentError('Trainer batch', expected, formatValue(batch), hint);
  }
  const cut = fields.map((field) => {
    if (!isByToken(field)) return field;
    const [name, tensor] = field as [string, Tensor];
    const shortened = takeFirstTokens(tensor, seqlen);
    if (shortened !== tensor) tensor.dispose();
    return [name, shortened];
  });
  return Object.fromEntries(cut) as Batch;
}

/**
 * Counts the labels or targets that are not -100. Without labels and targets, counts the samples.
 */
function countTargets(batch: unknown): number {
  const { labels, targets = labels } = (batch ?? {}) as Record<string, unknown>;
  const isIndices =
    targets instanceof Tensor && (targets.dtype === 'i32' || targets.dtype === 'i64');
  return isIndices ? countOthers(targets, IGNORED) : countSamples(batch);
}

/**
 * Counts tokens without padding, by `documents` or by a mask. transformers counts the same with
 * `include_num_input_tokens_seen: "non_padding"`.
 */
function countTokens(batch: unknown, targets: Tensor): number {
  const { documents, attention_mask, mask = attention_mask } = batch as Record<string, unknown>;
  const isByToken = (value: unknown): value is Tensor =>
    value instanceof Tensor && value.numel === targets.numel;
  if (isByToken(documents)) return countWhere(documents, (document) => document >= 0);
  if (isByToken(mask)) return countWhere(mask, (seen) => Number(seen) !== 0);
  return targets.numel;
}

/**
 * Returns the size of dim 0 of the batch's first tensor. Throws DS_ARGUMENT if the batch has no
 * tensor.
 */
function countSamples(batch: unknown): number {
  const [first] = tensorsIn([batch]);
  if (first) return first.shape[0] ?? 1;
  throw argumentError('Trainer batch', 'batches with a tensor in them', formatValue(batch));
}

/** Counts the elements that differ from `ignored`. */
function countOthers(targets: Tensor, ignored: number): number {
  const none = targets.dtype === 'i64' ? BigInt(ignored) : ignored;
  return countWhere(targets, (target) => target !== none);
}

/** Counts the elements that `counts` accepts. Waits for the tensor's device. */
function countWhere(tensor: Tensor, counts: (value: number | bigint) => boolean): number {
  const values = tensor.toRaw();
  let count = 0;
  for (let i = 0; i < values.length; ++i) if (counts(values[i] as number | bigint)) count++;
  return count;
}
