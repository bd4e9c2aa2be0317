// reward(): trains a classifier with one label that gives chosen answers higher scores. Sources:
// Bradley and Terry 1952, Touvron et al. 2023 (margin), Eisenstein et al. 2023 (centring), TRL's
// RewardTrainer.
import { TaskModel } from '../../models/tasks/task-model.js';
import type { Module } from '../../nn/index.js';
import { argumentError } from '../../runtime/input-errors.js';
import { number, type Options, readDeclared, type Settings } from '../../runtime/option.js';
import { maximum, minimum, softplus, Tensor } from '../../tensor/index.js';
import type { PairBatch } from '../../text/index.js';
import type { Forward, Objective } from '../micro-batch.js';
import { type DeviceSums, extremeOf, meanOf } from '../step-metrics.js';
import {
  type AnswerCounts,
  AnswerObjective,
  requirePairBatch,
  sumOnHost,
} from './answer-objective.js';
import { TrainingMethod } from './method.js';
import { DROPOUT } from './no-dropout.js';
import { splitHalves } from './pair-losses.js';
import { stackPairOutputs } from './pair-metrics.js';

/** The declared options of reward(). */
export const REWARD = {
  /** Weight of the squared sum of both scores, which keeps the mean score near 0. Default: none. */
  centerRewardsCoefficient: number('weight of the squared sum of both scores', {
    min: 0,
    default: null,
    shown: 'none',
    flag: 'center_rewards_coefficient',
  }),
  /** Whether training runs without dropout. Default: true. */
  disableDropout: DROPOUT,
};

/** Options of reward(). */
export interface RewardOptions extends Options<typeof REWARD> {}

/**
 * Returns the `method` of a Trainer that trains a reward model: a model of the task
 * "sequence-classification" with one label. The data are pairs of a text.PairDataset, with margins
 * if the rows have them. Throws DS_ARGUMENT for invalid options.
 */
export function reward(given: RewardOptions = {}): TrainingMethod {
  return new Reward(readDeclared('reward', given, REWARD));
}

class Reward extends TrainingMethod {
  readonly name = 'reward';
  override readonly lr = 1e-4;
  readonly metrics = ['accuracy', 'margin', 'mean_reward'];

  constructor(private readonly settings: Settings<typeof REWARD>) {
    super();
  }

  override objectiveOf<Batch>(model: Module): Objective<Batch> {
    const isScorer =
      model instanceof TaskModel &&
      model.task === 'sequence-classification' &&
      model.labels.length === 1;
    if (isScorer) return new RewardObjective(this.settings);
    const hint =
      'Read it by nn.models.fromPretrained(dir, { task: "sequence-classification", labels: ["reward"] }).';
    const expected = 'a classifier with one label for reward()';
    throw argumentError('Trainer model', expected, `a ${model.constructor.name}`, hint);
  }
}

/** Scores of P pairs, [P] f32 each. */
interface Scores {
  /** Scores of chosen answers. */
  readonly chosen: Tensor;
  /** Scores of rejected answers. */
  readonly rejected: Tensor;
  /** By how much chosen answers should be better; null: 0. */
  readonly margins: Tensor | null;
}

/** Returns the loss of each pair, [P]. */
export function computeRewardLoss(
  { chosen, rejected, margins }: Scores,
  { centerRewardsCoefficient: center }: Omit<Settings<typeof REWARD>, 'disableDropout'>,
): Tensor {
  const difference = chosen.sub(rejected);
  const loss = softplus((margins ? difference.sub(margins) : difference).neg());
  return center === null ? loss : loss.add(chosen.add(rejected).square().mul(center));
}

/** A batch of pairs, with a mask of its padding. */
interface MaskedPairs extends PairBatch {
  /** 1 for tokens, 0 for padding, [2P, T] i32. */
  readonly mask: Tensor;
}

class RewardObjective<Batch> extends AnswerObjective<Batch, MaskedPairs, Scores> {
  constructor(private readonly settings: Settings<typeof REWARD>) {
    super('reward', settings.disableDropout);
  }

  protected requireBatch(batch: unknown): MaskedPairs {
    return requirePairBatch('reward', batch) as MaskedPairs;
  }

  protected override prepare(pairs: MaskedPairs): MaskedPairs {
    const { ids, lengths } = pairs;
    const [R, T] = ids.shape as [number, number];
    const mask = new Int32Array(R * T);
    for (const [row, length] of lengths.toArray().entries()) {
      mask.fill(1, row * T, row * T + Number(length));
    }
    return { ...pairs, mask: Tensor.from(mask, { shape: [R, T], device: ids.device }) };
  }

  protected count({ ids, lengths }: PairBatch): AnswerCounts {
    return { counted: ids.size(0) / 2, tokens: sumOnHost(lengths) };
  }

  protected computeSums(forward: Forward, { ids, mask, margins }: MaskedPairs): Scores {
    const scores = forward(ids, { mask }).to('f32').reshape([-1]);
    const [chosen, rejected] = splitHalves(scores);
    return { chosen, rejected, margins: margins ?? null };
  }

  protected computeLoss(scores: Scores): Tensor {
    return computeRewardLoss(scores, this.settings);
  }

  protected computeDeviceSums({ chosen, rejected }: Scores): DeviceSums {
    const margins = chosen.sub(rejected);
    return {
      accuracy: meanOf(margins.gt(0).to('f32')),
      margin: meanOf(margins),
      min_reward: extremeOf(minimum(chosen, rejected).min(), 'min'),
      mean_reward: meanOf(chosen.add(rejected).mul(0.5)),
      max_reward: extremeOf(maximum(chosen, rejected).max(), 'max'),
    };
  }

  protected computeOutputRows({ chosen, rejected }: Scores): Tensor {
    return stackPairOutputs([chosen, rejected]);
  }
}
