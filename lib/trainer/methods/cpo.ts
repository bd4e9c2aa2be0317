// cpo(): contrastive preference optimization, and SimPO. They learn preferences without a
// reference. Sources: Xu et al. 2024, Meng et al. 2024, Gupta et al. 2025 (AlphaPO), TRL's
// CPOTrainer.
import type { Module } from '../../nn/index.js';
import { valueError } from '../../runtime/input-errors.js';
import { number, type Options, oneOf, readDeclared, type Settings } from '../../runtime/option.js';
import { exp, softplus, type Tensor } from '../../tensor/index.js';
import type { PairBatch } from '../../text/index.js';
import type { Forward, Objective } from '../micro-batch.js';
import type { DeviceSums } from '../step-metrics.js';
import {
  type AnswerCounts,
  AnswerObjective,
  requirePairBatch,
  sumOnHost,
} from './answer-objective.js';
import { requireCausal, TrainingMethod } from './method.js';
import { DROPOUT } from './no-dropout.js';
import { splitHalves } from './pair-losses.js';
import { computePairMetrics, PAIR_METRICS, stackPairOutputs } from './pair-metrics.js';

const LOSSES = ['sigmoid', 'hinge', 'ipo', 'simpo'] as const;

/** Name of a loss of cpo(), as in TRL. */
export type CpoLossName = (typeof LOSSES)[number];

/** The declared options of cpo(). */
export const CPO = {
  /** Factor of the difference between both answers. Default: 0.1. */
  beta: number('factor of the difference between both answers', {
    above: 0,
    default: 0.1,
    flag: 'beta',
  }),
  /** Name of the loss in TRL. "simpo" and "ipo" compare means per token. Default: "sigmoid". */
  loss: oneOf(LOSSES)('[loss](#losses-of-cpo)', {
    default: 'sigmoid',
    elsewhere: '`loss_type`',
  }),
  /** Probability that the answers of a pair are swapped, less than 0.5. Default: 0. */
  labelSmoothing: number('chance that a pair has the wrong order; above 0 for noisy data', {
    min: 0,
    below: 0.5,
    default: 0,
    flag: 'label_smoothing',
  }),
  /** Weight of the next-token loss of chosen answers. Default: 1. SimPO's paper uses 0. */
  cpoAlpha: number('weight of the next-token loss of chosen answers', {
    min: 0,
    default: 1,
    flag: 'cpo_alpha',
  }),
  /** By how much the chosen answer must be better, in the loss "simpo". Default: 0.5. */
  simpoGamma: number('for the loss `simpo`: how much better the chosen answer must be', {
    min: 0,
    default: 0.5,
    flag: 'simpo_gamma',
  }),
  /** Alpha of AlphaPO. Its rewards are (1 - p^-alpha) / alpha. 0 means log p. Default: 0. */
  alpha: number('shape of the rewards (AlphaPO); 0: log-probabilities', {
    default: 0,
    flag: 'alpha',
  }),
  /** Whether training runs without dropout. Default: true. */
  disableDropout: DROPOUT,
};

/** Options of cpo(). */
export interface CpoOptions extends Options<typeof CPO> {}

/**
 * Returns the `method` of a Trainer that learns from the pairs of a text.PairDataset, without a
 * reference. Throws DS_ARGUMENT for invalid options.
 */
export function cpo(given: CpoOptions = {}): TrainingMethod {
  const settings = readDeclared('cpo', given, CPO);
  const { loss, labelSmoothing } = settings;
  const isSmoothed = loss === 'sigmoid' || loss === 'simpo';
  if (labelSmoothing !== 0 && !isSmoothed) {
    throw valueError(`cpo labelSmoothing of ${loss}`, '0', labelSmoothing);
  }
  return new Cpo(settings);
}

class Cpo extends TrainingMethod {
  readonly name = 'cpo';
  override readonly lr = 1e-6;
  readonly metrics = [...PAIR_METRICS, 'nll_loss'];

  constructor(private readonly settings: Settings<typeof CPO>) {
    super();
  }

  override objectiveOf<Batch>(model: Module): Objective<Batch> {
    requireCausal(this.name, model);
    return new CpoObjective(this.settings);
  }
}

/** Log-probabilities of P pairs, [P] f32 each. */
interface CpoSums {
  /** Values that the loss compares: sums, or means per token. */
  readonly chosen: Tensor;
  readonly rejected: Tensor;
  /** Sums of the chosen answers, and their numbers of tokens. */
  readonly chosenSum: Tensor;
  readonly chosenTokens: Tensor;
}

const logSigmoid = (x: Tensor): Tensor => softplus(x.neg()).neg();

/** Returns the rewards for log-probabilities, without the factor beta. */
function computeReward(logps: Tensor, alpha: number): Tensor {
  if (alpha === 0) return logps;
  return exp(logps.mul(-alpha)).neg().add(1).div(alpha);
}

/** Returns the loss of each pair, [P]. */
export function cpoLoss(
  { chosen, rejected }: Pick<CpoSums, 'chosen' | 'rejected'>,
  {
    loss,
    beta,
    labelSmoothing: e,
    simpoGamma,
    alpha,
  }: Omit<Settings<typeof CPO>, 'disableDropout'>,
): Tensor {
  const d = computeReward(chosen, alpha).sub(computeReward(rejected, alpha));
  if (loss === 'hinge') return d.mul(-beta).add(1).relu();
  if (loss === 'ipo') return d.sub(1 / (2 * beta)).square();
  const x = d.mul(beta).sub(loss === 'simpo' ? simpoGamma : 0);
  if (e === 0) return logSigmoid(x).neg();
  return logSigmoid(x)
    .mul(e - 1)
    .sub(logSigmoid(x.neg()).mul(e));
}

class CpoObjective<Batch> extends AnswerObjective<Batch, PairBatch, CpoSums> {
  constructor(private readonly settings: Settings<typeof CPO>) {
    super('cpo', settings.disableDropout);
  }

  protected requireBatch(batch: unknown): PairBatch {
    return requirePairBatch('cpo', batch);
  }

  protected count({ ids, answered }: PairBatch): AnswerCounts {
    const pairs = ids.size(0) / 2;
    const further = sumOnHost(answered.narrow(0, 0, pairs));
    return { counted: pairs, tokens: sumOnHost(answered), further };
  }

  protected computeSums(forward: Forward, { ids, targets, answered }: PairBatch): CpoSums {
    const sums = forward(ids, targets, { loss: { rows: true } });
    const { loss } = this.settings;
    const isMean = loss === 'simpo' || loss === 'ipo';
    const [chosen, rejected] = splitHalves(isMean ? sums.div(answered.clamp(1)) : sums);
    const [chosenSum] = splitHalves(sums);
    const [chosenTokens] = splitHalves(answered);
    return { chosen, rejected, chosenSum, chosenTokens };
  }

  protected computeLoss(sums: CpoSums): Tensor {
    return cpoLoss(sums, this.settings);
  }

  protected override computeTokenLoss({ chosenSum }: CpoSums): Tensor | null {
    const { cpoAlpha } = this.settings;
    return cpoAlpha === 0 ? null : chosenSum.sum().mul(-cpoAlpha);
  }

  protected computeDeviceSums(sums: CpoSums): DeviceSums {
    const { chosen, rejected, chosenSum, chosenTokens } = sums;
    return {
      ...computePairMetrics({ rewards: this.rewards(sums), logps: [chosen, rejected] }),
      nll_loss: { sum: chosenSum.sum().neg(), count: chosenTokens.sum() },
    };
  }

  protected computeOutputRows(sums: CpoSums): Tensor {
    return stackPairOutputs(this.rewards(sums));
  }

  private rewards({ chosen, rejected }: CpoSums): [Tensor, Tensor] {
    const { beta, alpha } = this.settings;
    return [computeReward(chosen, alpha).mul(beta), computeReward(rejected, alpha).mul(beta)];
  }
}
