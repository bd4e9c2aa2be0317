// Direct preference optimization: the model learns to prefer chosen answers over rejected ones. A
// reference limits how far it moves. Source: Rafailov et al. 2023, TRL's DPOTrainer.
import type { CausalLM } from '../../models/causal-lm.js';
import type { Module } from '../../nn/index.js';
import {
  checked,
  number,
  type Options,
  oneOf,
  readDeclared,
  type Settings,
} from '../../runtime/option.js';
import { refusedValue } from '../../runtime/refused.js';
import type { Tensor } from '../../tensor/index.js';
import type { PairBatch } from '../../text/index.js';
import type { Forward, Objective } from '../micro-batch.js';
import type { DeviceSums } from '../step-metrics.js';
import { type AnswerCounts, AnswerObjective, pairBatch, totalOf } from './answer-objective.js';
import { requireCausal, TrainingMethod } from './method.js';
import {
  DIVERGENCES,
  type Divergence,
  halves,
  PAIR_LOSSES,
  type PairLossName,
  type PairSums,
  SMOOTHED,
} from './pair-losses.js';
import { PAIR_METRICS, pairMetrics, pairOutputs } from './pair-metrics.js';
import { REFERENCE, Reference } from './reference.js';

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
  reference: REFERENCE,
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

class Dpo extends TrainingMethod {
  readonly name = 'dpo';
  readonly metrics = PAIR_METRICS;

  constructor(private readonly settings: Settings<typeof DPO>) {
    super();
  }

  override objectiveOf<Batch>(model: Module): Objective<Batch> {
    return new DpoObjective(requireCausal(this.name, model), this.settings);
  }
}

/** Losses and rewards of micro-batches of pairs. */
class DpoObjective<Batch> extends AnswerObjective<Batch, PairBatch, PairSums> {
  private readonly reference: Reference;
  /** Names and weights of the losses of pairs. */
  private readonly losses: readonly (readonly [PairLossName, number])[];
  /** Weight of the loss "sft", which is a mean over tokens. */
  private readonly sft: number;

  constructor(
    model: CausalLM,
    private readonly settings: Settings<typeof DPO>,
  ) {
    super('dpo');
    this.reference = new Reference('dpo', model, settings.reference);
    const { loss, weights } = settings;
    const all = loss.map((name, i) => [name, weights?.[i] ?? 1] as const);
    this.losses = all.filter(([name]) => name !== 'sft');
    this.sft = all.reduce((sum, [name, weight]) => sum + (name === 'sft' ? weight : 0), 0);
  }

  protected read(batch: unknown): PairBatch {
    return pairBatch('dpo', batch);
  }

  protected count({ ids, answered }: PairBatch): AnswerCounts {
    const pairs = ids.size(0) / 2;
    const chosen = this.sft > 0 ? totalOf(answered.narrow(0, 0, pairs)) : 0;
    return { counted: pairs, tokens: totalOf(answered), further: chosen };
  }

  protected sumsOf(forward: Forward, batch: PairBatch): PairSums {
    const { ids, targets, answered } = batch;
    this.reference.requireOne(batch.reference !== undefined);
    const reference = batch.reference ?? this.reference.logProbs(forward, ids, targets);
    const own = forward(ids, targets, { loss: { rows: true } });
    const [chosen, rejected] = halves(own);
    const [chosenReference, rejectedReference] = halves(reference);
    const [chosenTokens, rejectedTokens] = halves(answered);
    return {
      ...{ chosen, rejected, chosenReference, rejectedReference, chosenTokens, rejectedTokens },
    };
  }

  /** Returns the weighted sum of the losses of each pair, [P]. */
  protected lossOf(sums: PairSums): Tensor {
    const parts = this.losses.map(([name, weight]) =>
      PAIR_LOSSES[name](sums, this.settings).mul(weight),
    );
    const [first = sums.chosen.mul(0), ...others] = parts;
    return others.reduce((sum, part) => sum.add(part), first);
  }

  protected override tokenLossOf({ chosen }: PairSums): Tensor | null {
    return this.sft === 0 ? null : chosen.sum().mul(-this.sft);
  }

  protected metricsOf(sums: PairSums): DeviceSums {
    const { chosen, rejected } = sums;
    return pairMetrics({ rewards: this.rewards(sums), logps: [chosen, rejected] });
  }

  protected outputsOf(sums: PairSums): Tensor {
    return pairOutputs(this.rewards(sums));
  }

  /** Returns beta times (log-probability minus that by the reference) of each answer, [P]. */
  private rewards({ chosen, rejected, ...sums }: PairSums): [w: Tensor, l: Tensor] {
    const { beta } = this.settings;
    return [
      chosen.sub(sums.chosenReference).mul(beta),
      rejected.sub(sums.rejectedReference).mul(beta),
    ];
  }
}
