// orpo(): odds-ratio preference optimization. The loss combines the next-token loss of chosen rows
// with the odds ratio of both answers. Sources: Hong et al. 2024, TRL's ORPOTrainer.

import type { Module } from '../../nn/index.js';
import { number, type Options, readDeclared, type Settings } from '../../runtime/option.js';
import { required } from '../../runtime/required.js';
import { expm1, log, softplus, Tensor } from '../../tensor/index.js';
import type { PairBatch } from '../../text/index.js';
import type { Forward, Objective } from '../micro-batch.js';
import { type DeviceSums, meanOf } from '../step-metrics.js';
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

const IGNORED = -100;

/** The declared options of orpo(). */
export const ORPO = {
  /** Weight of the odds ratio, lambda in the paper. Default: 0.1. */
  beta: number('weight of the odds ratio beside the next-token loss', {
    above: 0,
    default: 0.1,
    flag: 'beta',
  }),
  /** Whether training runs without dropout. Default: true. */
  disableDropout: DROPOUT,
};

/** Options of orpo(). */
export interface OrpoOptions extends Options<typeof ORPO> {}

/**
 * Returns the `method` of a Trainer that learns from the pairs of a text.PairDataset, without a
 * reference. Throws DS_ARGUMENT for invalid options.
 */
export function orpo(given: OrpoOptions = {}): TrainingMethod {
  return new Orpo(readDeclared('orpo', given, ORPO));
}

class Orpo extends TrainingMethod {
  readonly name = 'orpo';
  override readonly lr = 1e-6;
  readonly metrics = [...PAIR_METRICS, 'nll_loss', 'log_odds_ratio', 'log_odds_chosen'];

  constructor(private readonly settings: Settings<typeof ORPO>) {
    super();
  }

  override objectiveOf<Batch>(model: Module): Objective<Batch> {
    requireCausal(this.name, model);
    return new OrpoObjective(this.settings);
  }
}

/** A batch of pairs, with targets for the prompts of chosen rows. */
interface WholePairs extends PairBatch {
  /** Targets [3P, T] i32: chosen answers, rejected answers, then prompts of chosen rows. */
  readonly scored: Tensor;
  /** Number of predicted tokens of each chosen row, prompt and answer, [P] f32. */
  readonly whole: Tensor;
}

/** Log-probabilities of P pairs, [P] f32 each. */
interface OrpoSums {
  /** Means per token of chosen and rejected answers. */
  readonly chosen: Tensor;
  readonly rejected: Tensor;
  /** Sums of chosen rows with their prompts, and their numbers of tokens. */
  readonly wholeSum: Tensor;
  readonly whole: Tensor;
}

/** Upper limit of means. The mean of an empty answer is 0, where log(1 - exp(x)) is undefined. */
const MAX_MEAN = -1e-6;

/** Returns log(p / (1 - p)) for log p. */
const logOdds = (x: Tensor): Tensor => x.sub(log(expm1(x).neg()));

/** Returns the logarithm of the odds ratio of each pair, [P], for means per token. */
export function logOddsRatio(chosen: Tensor, rejected: Tensor): Tensor {
  const [w, l] = [chosen, rejected].map((x) => x.clamp(Number.NEGATIVE_INFINITY, MAX_MEAN));
  return logOdds(required(w)).sub(logOdds(required(l)));
}

const logSigmoid = (x: Tensor): Tensor => softplus(x.neg()).neg();

class OrpoObjective<Batch> extends AnswerObjective<Batch, WholePairs, OrpoSums> {
  constructor(private readonly settings: Settings<typeof ORPO>) {
    super('orpo', settings.disableDropout);
  }

  protected requireBatch(batch: unknown): WholePairs {
    return requirePairBatch('orpo', batch) as WholePairs;
  }

  protected override prepare(pairs: WholePairs): WholePairs {
    const { ids, targets, answered } = pairs;
    const [R, T] = ids.shape as [number, number];
    const P = R / 2;
    const [tokens, targetIds] = [ids, targets].map((tensor) =>
      Int32Array.from(tensor.toRaw(), Number),
    );
    const scored = new Int32Array((R + P) * T).fill(IGNORED);
    scored.set(targetIds as Int32Array);
    const counts = Float32Array.from(answered.narrow(0, 0, P).toArray(), Number);
    for (let row = 0; row < P; ++row) {
      const first = (targetIds as Int32Array)
        .subarray(row * T, (row + 1) * T)
        .findIndex((target) => target !== IGNORED);
      if (first <= 0) continue;
      const prompt = (tokens as Int32Array).subarray(row * T + 1, row * T + 1 + first);
      scored.set(prompt, (R + row) * T);
      counts[row] = required(counts[row]) + first;
    }
    const { device } = ids;
    return {
      ...pairs,
      scored: Tensor.from(scored, { shape: [R + P, T], device }),
      whole: Tensor.from(counts, { device }),
    };
  }

  protected count({ ids, answered, whole }: WholePairs): AnswerCounts {
    return { counted: ids.size(0) / 2, tokens: sumOnHost(answered), further: sumOnHost(whole) };
  }

  protected computeSums(forward: Forward, batch: WholePairs): OrpoSums {
    const { ids, scored, answered, whole } = batch;
    const R = ids.size(0);
    const rows = Array.from({ length: scored.size(0) }, (_, i) => i % R);
    const sums = forward(ids, scored, { loss: { rows } });
    const answers = sums.narrow(0, 0, R);
    const [chosen, rejected] = splitHalves(answers.div(answered.clamp(1)));
    const wholeSum = sums.narrow(0, 0, R / 2).add(sums.narrow(0, R, R / 2));
    return { chosen, rejected, wholeSum, whole };
  }

  protected computeLoss({ chosen, rejected }: OrpoSums): Tensor {
    return logSigmoid(logOddsRatio(chosen, rejected)).mul(-this.settings.beta);
  }

  protected override computeTokenLoss({ wholeSum }: OrpoSums): Tensor {
    return wholeSum.sum().neg();
  }

  protected computeDeviceSums(sums: OrpoSums): DeviceSums {
    const { chosen, rejected, wholeSum, whole } = sums;
    const odds = logOddsRatio(chosen, rejected);
    return {
      ...computePairMetrics({ rewards: this.rewards(sums), logps: [chosen, rejected] }),
      nll_loss: { sum: wholeSum.sum().neg(), count: whole.sum() },
      log_odds_ratio: meanOf(logSigmoid(odds)),
      log_odds_chosen: meanOf(odds),
    };
  }

  protected computeOutputRows(sums: OrpoSums): Tensor {
    return stackPairOutputs(this.rewards(sums));
  }

  private rewards({ chosen, rejected }: OrpoSums): [Tensor, Tensor] {
    const { beta } = this.settings;
    return [chosen.mul(beta), rejected.mul(beta)];
  }
}
