// Direct preference optimization: the model learns to prefer chosen answers over rejected ones. A
// reference limits how far it moves. Source: Rafailov et al. 2023, TRL's DPOTrainer.
import { CausalLM } from '../../models/causal-lm.js';
import type { Module } from '../../nn/index.js';
import { lorasOf, withoutAdapters } from '../../peft/index.js';
import { formatValue } from '../../runtime/format-value.js';
import {
  checked,
  number,
  type Options,
  oneOf,
  readDeclared,
  type Settings,
} from '../../runtime/option.js';
import { refused, refusedValue } from '../../runtime/refused.js';
import { noGrad, scope, stack, Tensor } from '../../tensor/index.js';
import type { PairBatch } from '../../text/index.js';
import type { MetricSums } from '../evaluation-options.js';
import type { Divisor, Forward, MicroBatch, Objective } from '../micro-batch.js';
import { type DeviceSums, meanOf, readSums, type StepMetrics } from '../step-metrics.js';
import { TrainingMethod } from './method.js';
import {
  DIVERGENCES,
  type Divergence,
  halves,
  PAIR_LOSSES,
  type PairLossName,
  type PairSums,
  SMOOTHED,
} from './pair-losses.js';

/** The declared options of dpo(). */
export const DPO = {
  /** Strength of the reference. With a small value, the model moves far from it. Default: 0.1. */
  beta: number('strength of the reference', { above: 0, default: 0.1, flag: 'beta' }),
  /** Name of a loss in TRL, or a list of names; the losses are added. Default: "sigmoid". */
  loss: checked(readLosses, '[loss](#losses), or a list of them', {
    default: ['sigmoid'],
    elsewhere: '`loss_type`',
  }),
  /** Factor of each loss in the list. Default: 1 each. */
  weights: checked(readWeights, 'weights of several losses', { default: null, shown: '1 each' }),
  /** Probability that chosen and rejected are swapped, below 0.5. Default: 0. */
  labelSmoothing: number('chance that a label is wrong', {
    ...{ min: 0, below: 0.5, default: 0, flag: 'label_smoothing' },
  }),
  /** The f-divergence between model and reference. Default: "reverse_kl". */
  divergence: oneOf<Divergence>(Object.keys(DIVERGENCES) as Divergence[])('f-divergence', {
    default: 'reverse_kl',
    flag: 'f_divergence_type',
  }),
  /**
   * The reference model. Default: the model without its adapters. Rows with ref_chosen_logps and
   * ref_rejected_logps need no reference.
   */
  reference: checked(readReference, 'model to stay near', {
    default: null,
    shown: 'the model without its [adapters](lora.md)',
  }),
};

/** Options of dpo(). */
export interface DpoOptions extends Options<typeof DPO> {}

/**
 * Returns the `method` of a Trainer that learns from pairs of a text.PairDataset. Throws
 * DS_ARGUMENT for wrong options.
 */
export function dpo(given: DpoOptions = {}): TrainingMethod {
  const settings = readDeclared('dpo', given, DPO);
  const { loss, weights, labelSmoothing } = settings;
  if (weights && weights.length !== loss.length) {
    throw refusedValue('dpo weights', `${loss.length} numbers, one for each loss`, weights);
  }
  for (const name of loss) {
    const [low, high] = SMOOTHED[name] ?? [0, 0];
    if (labelSmoothing === 0 ? low === 0 : labelSmoothing < high) continue;
    const expected = low > 0 ? 'a number above 0, such as 0.001' : '0';
    throw refusedValue(`dpo labelSmoothing of ${name}`, expected, labelSmoothing);
  }
  return new Dpo(settings);
}

function readLosses(
  op: string,
  given: PairLossName | readonly PairLossName[],
): readonly PairLossName[] {
  const list = Array.isArray(given) ? given : [given];
  const isKnown = (name: unknown): boolean => Object.hasOwn(PAIR_LOSSES, name as string);
  if (list.length > 0 && list.every(isKnown)) return list as readonly PairLossName[];
  throw refusedValue(op, Object.keys(PAIR_LOSSES).join(', '), given);
}

function readWeights(op: string, given: readonly number[]): readonly number[] {
  if (Array.isArray(given) && given.every(Number.isFinite)) return given;
  throw refusedValue(op, 'a list of numbers', given);
}

function readReference(op: string, given: CausalLM): CausalLM {
  if (given instanceof CausalLM) return given;
  throw refusedValue(op, 'a language model of nn.models', given);
}

/** Metrics of logs and evaluations, by TRL's names. */
export const PAIR_METRICS = [
  ...['rewards/chosen', 'rewards/rejected', 'rewards/margins', 'rewards/accuracies'],
  ...['logps/chosen', 'logps/rejected'],
];

class Dpo extends TrainingMethod {
  readonly name = 'dpo';
  readonly metrics = PAIR_METRICS;

  constructor(private readonly settings: Settings<typeof DPO>) {
    super();
  }

  override objectiveOf<Batch>(model: Module): Objective<Batch> {
    if (model instanceof CausalLM) return new PairObjective(model, this.settings);
    throw refused('Trainer model', 'a CausalLM for dpo()', `a ${model.constructor.name}`);
  }
}

/** Losses and rewards of micro-batches of pairs. */
class PairObjective<Batch> implements Objective<Batch> {
  readonly hasStepMetrics = true;
  private isPlaced = false;

  constructor(
    private readonly model: CausalLM,
    private readonly settings: Settings<typeof DPO>,
  ) {
    const { reference } = settings;
    if (reference === model) {
      const hint = 'Read the model a second time, or train adapters: peft.addLora(model).';
      throw refused('dpo reference', 'another model', 'the trained one', hint);
    }
  }

  shortened(): Batch {
    throw refused('Trainer method', 'no curriculum_learning beside dpo()', 'a section');
  }

  /** Counts pairs: the mean loss is over pairs. */
  counted(batch: Batch): MicroBatch<Batch> {
    const { ids, answered } = pairBatch(batch);
    const tokens = answered.toArray().reduce((sum, one) => sum + Number(one), 0);
    return { batch, targets: null, counted: ids.size(0) / 2, tokens };
  }

  mean(forward: Forward, micro: MicroBatch<Batch>): Tensor {
    return this.shared(forward, micro, micro.counted);
  }

  shared(
    forward: Forward,
    { batch }: MicroBatch<Batch>,
    divisor: Divisor,
    metrics: StepMetrics | null = null,
  ): Tensor {
    const sums = this.sumsOf(forward, pairBatch(batch));
    if (metrics) noGrad(() => metrics.add(this.metricsOf(sums)));
    return this.lossOf(sums).sum().div(divisor);
  }

  /** Returns the rewards of chosen and rejected answers, [P, 2]. */
  outputs(forward: Forward, { batch }: MicroBatch<Batch>): Tensor {
    return scope(() => stack(this.rewards(this.sumsOf(forward, pairBatch(batch))), 1));
  }

  judged(forward: Forward, { batch }: MicroBatch<Batch>): { loss: number; sums: MetricSums } {
    return scope(() => {
      const sums = this.sumsOf(forward, pairBatch(batch));
      return { loss: this.lossOf(sums).mean().item(), sums: readSums(this.metricsOf(sums)) };
    });
  }

  private metricsOf(sums: PairSums): DeviceSums {
    const [w, l] = this.rewards(sums);
    const margins = w.sub(l);
    return {
      'rewards/chosen': meanOf(w),
      'rewards/rejected': meanOf(l),
      'rewards/margins': meanOf(margins),
      'rewards/accuracies': meanOf(margins.gt(0).to('f32')),
      'logps/chosen': meanOf(sums.chosen),
      'logps/rejected': meanOf(sums.rejected),
    };
  }

  /** Returns beta times (log-probability minus that by the reference) of each answer, [P]. */
  private rewards({ chosen, rejected, ...sums }: PairSums): [w: Tensor, l: Tensor] {
    const { beta } = this.settings;
    return [
      chosen.sub(sums.chosenReference).mul(beta),
      rejected.sub(sums.rejectedReference).mul(beta),
    ];
  }

  /** Returns the weighted sum of the losses of each pair, [P]. */
  private lossOf(sums: PairSums): Tensor {
    const { loss, weights } = this.settings;
    const parts = loss.map((name, i) =>
      PAIR_LOSSES[name](sums, this.settings).mul(weights?.[i] ?? 1),
    );
    return parts.reduce((sum, part) => sum.add(part));
  }

  /**
   * The reference runs first, and its result is copied: forwards of the engine without gradients
   * free earlier results.
   */
  private sumsOf(forward: Forward, batch: PairBatch): PairSums {
    const { ids, targets, answered } = batch;
    if (batch.reference && this.settings.reference) {
      const expected = 'no numbers of the reference in the rows beside a model';
      const hint = 'Leave out `reference`, or ref_chosen_logps and ref_rejected_logps.';
      throw refused('dpo reference', expected, 'both', hint);
    }
    const reference = batch.reference ?? noGrad(() => this.referenceOf(forward, batch).clone());
    const own = forward(ids, targets, { loss: { rows: true } });
    const [chosen, rejected] = halves(own);
    const [chosenReference, rejectedReference] = halves(reference);
    const [chosenTokens, rejectedTokens] = halves(answered);
    return {
      ...{ chosen, rejected, chosenReference, rejectedReference, chosenTokens, rejectedTokens },
    };
  }

  private referenceOf(forward: Forward, { ids, targets }: PairBatch): Tensor {
    const { reference } = this.settings;
    const inputs = { loss: { rows: true } };
    if (reference) {
      if (!this.isPlaced) reference.to(ids.device).eval();
      this.isPlaced = true;
      return reference.call(ids, targets, inputs);
    }
    if (lorasOf(this.model).size > 0) {
      const { training } = this.model;
      this.model.eval();
      try {
        return withoutAdapters(this.model, () => forward(ids, targets, inputs));
      } finally {
        this.model.train(training);
      }
    }
    const hint =
      'Give `reference: await nn.models.fromPretrained(dir)`, or train adapters: peft.addLora(model).';
    const expected = 'a reference, a model with adapters, or rows with numbers of the reference';
    throw refused('dpo', expected, `a ${this.model.constructor.name}`, hint);
  }
}

function pairBatch(batch: unknown): PairBatch {
  const { ids, targets, answered } = (batch ?? {}) as Partial<PairBatch>;
  const isPairs = [ids, targets, answered].every((one) => one instanceof Tensor);
  if (isPairs) return batch as PairBatch;
  throw refused('Trainer train', 'a text.PairDataset for dpo()', formatValue(batch));
}
