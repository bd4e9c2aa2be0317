// Kahneman-Tversky optimization: learns from single answers that are desirable or not. Sources:
// Ethayarajh et al. 2024, D'Oosterlinck et al. 2024 (apo_zero_unpaired), TRL's KTOTrainer.
import type { ProcessGroup } from '../../comm/index.js';
import type { CausalLM } from '../../models/causal-lm.js';
import type { Module } from '../../nn/index.js';
import { number, type Options, oneOf, readDeclared, type Settings } from '../../runtime/option.js';
import { refused } from '../../runtime/refused.js';
import { noGrad, scope, sigmoid, Tensor } from '../../tensor/index.js';
import type { UnpairedBatch } from '../../text/index.js';
import type { Forward, Objective, Surroundings } from '../micro-batch.js';
import { type DeviceSums, meanOf } from '../step-metrics.js';
import { type AnswerCounts, AnswerObjective, totalOf } from './answer-objective.js';
import { requireCausal, TrainingMethod } from './method.js';
import { DROPOUT } from './no-dropout.js';
import { REFERENCE, Reference } from './reference.js';

/** Name of a loss of kto(), as in TRL. */
export type KtoLossName = 'kto' | 'apo_zero_unpaired';

/** The declared options of kto(). */
export const KTO = {
  /** Strength of the reference. With a small value, the model moves far from it. Default: 0.1. */
  beta: number('strength of the reference', { above: 0, default: 0.1, flag: 'beta' }),
  /** Name of the loss in TRL. Default: "kto". */
  loss: oneOf<KtoLossName>(['kto', 'apo_zero_unpaired'])('[loss](#losses-of-kto)', {
    default: 'kto',
    elsewhere: '`loss_type`',
  }),
  /** Weight of desirable answers. Default: 1. */
  desirableWeight: number('weight of desirable answers', {
    ...{ min: 0, default: 1, flag: 'desirable_weight' },
  }),
  /** Weight of undesirable answers. Default: 1. */
  undesirableWeight: number('weight of undesirable answers', {
    ...{ min: 0, default: 1, flag: 'undesirable_weight' },
  }),
  /** Train without dropout. Default: true. */
  disableDropout: DROPOUT,
  /** The reference model. Default: the model without its adapters. */
  reference: REFERENCE,
};

/** Options of kto(). */
export interface KtoOptions extends Options<typeof KTO> {}

/**
 * Returns the `method` of a Trainer that learns from answers of a text.UnpairedDataset. Throws
 * DS_ARGUMENT for wrong options.
 */
export function kto(given: KtoOptions = {}): TrainingMethod {
  return new Kto(readDeclared('kto', given, KTO));
}

class Kto extends TrainingMethod {
  readonly name = 'kto';
  override readonly lr = 1e-6;
  readonly metrics = [
    ...['rewards/chosen', 'rewards/rejected', 'rewards/margins'],
    ...['logps/chosen', 'logps/rejected', 'kl'],
  ];

  constructor(private readonly settings: Settings<typeof KTO>) {
    super();
  }

  override objectiveOf<Batch>(model: Module): Objective<Batch> {
    return new KtoObjective(requireCausal(this.name, model), this.settings);
  }
}

/** Values of B answers. */
export interface KtoSums {
  /** Log-probability minus that by the reference, [B] f32. */
  readonly x: Tensor;
  /** 1 for desirable answers, 0 for others, [B] f32. */
  readonly desirable: Tensor;
  /** The estimate of the divergence from the reference, a scalar f32 without gradient. */
  readonly z: Tensor;
}

/** The loss of each answer, [B]. */
export function ktoLoss(
  { x, desirable, z }: KtoSums,
  {
    beta,
    desirableWeight,
    undesirableWeight,
  }: Pick<Settings<typeof KTO>, 'beta' | 'desirableWeight' | 'undesirableWeight'>,
): Tensor {
  const away = x.sub(z).mul(beta);
  const good = sigmoid(away).neg().add(1).mul(desirableWeight);
  const bad = sigmoid(away.neg()).neg().add(1).mul(undesirableWeight);
  return good.mul(desirable).add(bad.mul(desirable.neg().add(1)));
}

/** Further values for metrics. */
interface Measured extends KtoSums {
  readonly logps: Tensor;
}

class KtoObjective<Batch> extends AnswerObjective<Batch, UnpairedBatch, Measured> {
  private readonly reference: Reference;
  private group: ProcessGroup | null = null;

  constructor(
    model: CausalLM,
    private readonly settings: Settings<typeof KTO>,
  ) {
    super('kto', settings.disableDropout);
    this.reference = new Reference('kto', model, settings.reference);
  }

  override async opened(around: Surroundings): Promise<void> {
    await super.opened(around);
    this.group = around.dataGroup;
    await this.reference.open(around.engine, around.job);
  }

  override async closed(): Promise<void> {
    await super.closed();
    await this.reference.close();
  }

  protected read(batch: unknown): UnpairedBatch {
    const { ids, targets, desirable, mismatched } = (batch ?? {}) as Partial<UnpairedBatch>;
    const isKnown = [ids, targets, desirable].every((one) => one instanceof Tensor);
    if (isKnown && mismatched) return batch as UnpairedBatch;
    throw refused('Trainer train', 'a text.UnpairedDataset for kto()', 'other batches');
  }

  protected count({ ids, answered }: UnpairedBatch): AnswerCounts {
    return { counted: ids.size(0), tokens: totalOf(answered) };
  }

  protected sumsOf(forward: Forward, batch: UnpairedBatch): Measured {
    const { ids, targets, desirable } = batch;
    const z = this.divergence(forward, batch);
    const reference = this.reference.logProbs(forward, ids, targets);
    const logps = forward(ids, targets, { loss: { rows: true } });
    return { x: logps.sub(reference), desirable, z, logps };
  }

  /**
   * The mean over all ranks of x of prompts with the answers of other rows, at least 0. A batch of
   * one row has no other row and does not count.
   */
  private divergence(forward: Forward, { ids, mismatched }: UnpairedBatch): Tensor {
    const { device } = ids;
    if (this.settings.loss !== 'kto') return Tensor.from([0], { device }).reshape([]);
    return noGrad(() =>
      scope(() => {
        const rows = ids.size(0);
        const { ids: others, targets } = mismatched;
        const sums = (): Tensor => {
          const reference = this.reference.logProbs(forward, others, targets);
          const own = forward(others, targets, { loss: { rows: true } });
          return own.sub(reference).sum().reshape([1]);
        };
        const counted = rows > 1 ? rows : 0;
        const own = counted > 0 ? sums() : sums().mul(0);
        const total = Tensor.from([0, counted], { device }).add(
          own.mul(Tensor.from([1, 0], { device })),
        );
        if (this.group && this.group.size > 1) {
          this.group.allReduce(total, { purpose: 'divergence of kto()' }).wait();
        }
        const mean = total.narrow(0, 0, 1).div(total.narrow(0, 1, 1).clamp(1));
        return mean.reshape([]).clamp(0);
      }),
    );
  }

  protected lossOf(sums: Measured): Tensor {
    return ktoLoss(sums, this.settings);
  }

  protected metricsOf({ x, desirable, z, logps }: Measured): DeviceSums {
    const rewards = x.mul(this.settings.beta);
    const others = desirable.neg().add(1);
    const of = (values: Tensor, which: Tensor) => ({
      sum: values.mul(which).sum(),
      count: which.sum(),
    });
    return {
      'rewards/chosen': of(rewards, desirable),
      'rewards/rejected': of(rewards, others),
      'logps/chosen': of(logps, desirable),
      'logps/rejected': of(logps, others),
      kl: meanOf(z.reshape([1])),
    };
  }

  derived(means: Readonly<Record<string, number>>): Record<string, number> {
    const { 'rewards/chosen': w, 'rewards/rejected': l } = means;
    const hasBoth = Number.isFinite(w) && Number.isFinite(l);
    return hasBoth ? { ...means, 'rewards/margins': (w as number) - (l as number) } : means;
  }

  /** The rewards of the answers, [B]. */
  protected outputsOf({ x }: Measured): Tensor {
    return x.mul(this.settings.beta);
  }
}
