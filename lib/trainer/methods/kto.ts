// kto(): Kahneman-Tversky optimization. The model learns from single answers that are desirable or
// not. Sources: Ethayarajh et al. 2024, D'Oosterlinck et al. 2024 (apo_zero_unpaired), TRL's
// KTOTrainer.
import type { ProcessGroup } from '../../comm/index.js';
import type { Engine } from '../../engine/engine.js';
import type { CausalLM } from '../../models/causal-lm.js';
import type { Module } from '../../nn/index.js';
import { argumentError } from '../../runtime/input-errors.js';
import { number, type Options, oneOf, readDeclared, type Settings } from '../../runtime/option.js';
import { required } from '../../runtime/required.js';
import { concat, noGrad, scope, sigmoid, Tensor } from '../../tensor/index.js';
import type { UnpairedBatch } from '../../text/index.js';
import type { Forward, MicroBatch, Objective, SessionParts } from '../micro-batch.js';
import { type DeviceSums, meanOf } from '../step-metrics.js';
import { type AnswerCounts, AnswerObjective, sumOnHost } from './answer-objective.js';
import { AnswerReports } from './answer-reports.js';
import { requireCausal, TrainingMethod } from './method.js';
import { DROPOUT } from './no-dropout.js';
import { REFERENCE, Reference } from './reference.js';

const LOSSES = ['kto', 'apo_zero_unpaired'] as const;

/** Name of a loss of kto(), as in TRL. */
export type KtoLossName = (typeof LOSSES)[number];

/** The declared options of kto(). */
export const KTO = {
  /** Penalty for moving away from the reference. Default: 0.1. */
  beta: number('penalty for moving away from the reference; lower it to learn more from the data', {
    above: 0,
    default: 0.1,
    flag: 'beta',
  }),
  /** Name of the loss in TRL. Default: "kto". */
  loss: oneOf(LOSSES)('[loss](#losses-of-kto)', {
    default: 'kto',
    elsewhere: '`loss_type`',
  }),
  /** Weight of desirable answers. Default: 1. */
  desirableWeight: number('weight of desirable answers; raise it if there are few', {
    min: 0,
    default: 1,
    flag: 'desirable_weight',
  }),
  /** Weight of undesirable answers. Default: 1. */
  undesirableWeight: number('weight of undesirable answers; raise it if there are few', {
    min: 0,
    default: 1,
    flag: 'undesirable_weight',
  }),
  /** Whether training runs without dropout. Default: true. */
  disableDropout: DROPOUT,
  /** The reference model. Default: the model without its adapters. */
  reference: REFERENCE,
};

/** Options of kto(). */
export interface KtoOptions extends Options<typeof KTO> {}

/**
 * Returns the `method` of a Trainer that learns from the answers of a text.UnpairedDataset. Throws
 * DS_ARGUMENT for invalid options.
 */
export function kto(given: KtoOptions = {}): TrainingMethod {
  return new Kto(readDeclared('kto', given, KTO));
}

class Kto extends TrainingMethod {
  readonly name = 'kto';
  override readonly lr = 1e-6;
  readonly metrics = [
    'rewards/chosen',
    'rewards/rejected',
    'rewards/margins',
    'logps/chosen',
    'logps/rejected',
    'kl',
    'entropy',
    'logits/chosen',
    'logits/rejected',
  ];

  constructor(private readonly settings: Settings<typeof KTO>) {
    super();
  }

  override objectiveOf<Batch>(model: Module): Objective<Batch> {
    return new KtoObjective(requireCausal(this.name, model), this.settings);
  }
}

/** Values of B answers. */
interface KtoSums {
  /** Log-probability of the model minus that of the reference, [B] f32. */
  readonly x: Tensor;
  /** 1 for desirable answers, 0 for others, [B] f32. */
  readonly desirable: Tensor;
  /** The estimated divergence from the reference, a scalar f32 without a gradient. */
  readonly z: Tensor;
}

/** Returns the loss of each answer, [B]. */
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

/** Inputs of the metrics. */
interface KtoMetrics extends KtoSums {
  readonly logps: Tensor;
  /** Null if no metrics will be computed. */
  readonly reports: AnswerReports | null;
}

/** A batch, with its labels on the host. */
interface LabelledBatch extends UnpairedBatch {
  readonly isDesirable?: readonly boolean[];
}

class KtoObjective<Batch> extends AnswerObjective<Batch, LabelledBatch, KtoMetrics> {
  private readonly reference: Reference;
  private group: ProcessGroup | null = null;
  private engine: Engine | null = null;
  /** The divergence z of the current update; null between updates. */
  private baseline: Tensor | null = null;

  constructor(
    model: CausalLM,
    private readonly settings: Settings<typeof KTO>,
  ) {
    super('kto', settings.disableDropout);
    this.reference = new Reference('kto', model, settings.reference);
  }

  override async open(parts: SessionParts): Promise<void> {
    await super.open(parts);
    this.group = parts.dataGroup;
    this.engine = parts.engine;
    await this.reference.open(parts.engine, parts.job);
  }

  override async close(): Promise<void> {
    await super.close();
    this.endUpdate();
    await this.reference.close();
  }

  protected requireBatch(batch: unknown): UnpairedBatch {
    const { ids, targets, desirable, mismatched } = (batch ?? {}) as Partial<UnpairedBatch>;
    const isKnown = [ids, targets, desirable].every((item) => item instanceof Tensor);
    if (isKnown && mismatched) return batch as UnpairedBatch;
    throw argumentError('Trainer train', 'a text.UnpairedDataset for kto()', 'other data');
  }

  protected count({ ids, answered }: UnpairedBatch): AnswerCounts {
    return { counted: ids.size(0), tokens: sumOnHost(answered) };
  }

  protected override prepare(batch: UnpairedBatch): LabelledBatch {
    const isDesirable = batch.desirable.toArray().map((value) => Number(value) > 0);
    return { ...batch, isDesirable };
  }

  beginUpdate(forward: Forward, group: readonly MicroBatch<Batch>[]): void {
    const batches = group.map(({ batch }) => this.requireBatch(batch));
    this.baseline = this.estimateDivergence(forward, batches).keep();
  }

  endUpdate(): void {
    this.baseline?.dispose();
    this.baseline = null;
  }

  protected computeSums(forward: Forward, batch: LabelledBatch, measures: boolean): KtoMetrics {
    const { ids, targets, desirable, isDesirable } = batch;
    const z = this.baseline ?? this.estimateDivergence(forward, [batch]);
    const reference = this.reference.computeLogProbs(forward, ids, targets);
    const reports = measures && isDesirable ? new AnswerReports(ids.device) : null;
    const measured = reports && isDesirable && { reports: reports.selectReports(isDesirable) };
    const logps = forward(ids, targets, { loss: { rows: true, ...measured } });
    return { x: logps.sub(reference), desirable, z, logps, reports };
  }

  /**
   * Estimates the divergence z from the reference: the mean of x over the batches of all ranks, but
   * at least 0. Its rows combine each prompt with the answer of another row.
   */
  private estimateDivergence(forward: Forward, batches: readonly UnpairedBatch[]): Tensor {
    const device = this.engine?.device ?? required(batches[0]).ids.device;
    if (this.settings.loss !== 'kto') return Tensor.from([0], { device }).reshape([]);
    return noGrad(() =>
      scope(() => {
        const sums = batches.map(({ mismatched: { ids, targets, counted = ids.size(0) } }) => {
          const [others, otherTargets] = [ids.to(device), targets.to(device)];
          const reference = this.reference.computeLogProbs(forward, others, otherTargets);
          const logps = forward(others, otherTargets, { loss: { rows: true } });
          const x = logps
            .sub(reference)
            .sum()
            .mul(counted > 0 ? 1 : 0);
          return concat([x.reshape([1]), Tensor.from([counted], { device }).to(x.dtype)], 0);
        });
        const total = sums.reduce((sum, tensor) => sum.add(tensor));
        if (this.group && this.group.size > 1) {
          this.group.allReduce(total, { purpose: 'divergence of kto()' }).wait();
        }
        const mean = total.narrow(0, 0, 1).div(total.narrow(0, 1, 1).clamp(1));
        return mean.reshape([]).clamp(0);
      }),
    );
  }

  protected computeLoss(sums: KtoMetrics): Tensor {
    return ktoLoss(sums, this.settings);
  }

  protected computeDeviceSums({ x, desirable, z, logps, reports }: KtoMetrics): DeviceSums {
    // TRL reports the accuracy of tokens only for pairs.
    const { mean_token_accuracy: _, ...tokenMetrics } = reports?.takeSums() ?? {};
    const rewards = x.mul(this.settings.beta);
    const others = desirable.neg().add(1);
    const meanWhere = (values: Tensor, which: Tensor) => ({
      sum: values.mul(which).sum(),
      count: which.sum(),
    });
    return {
      'rewards/chosen': meanWhere(rewards, desirable),
      'rewards/rejected': meanWhere(rewards, others),
      'logps/chosen': meanWhere(logps, desirable),
      'logps/rejected': meanWhere(logps, others),
      kl: meanOf(z.reshape([1])),
      ...tokenMetrics,
    };
  }

  deriveMetrics(means: Readonly<Record<string, number>>): Record<string, number> {
    const { 'rewards/chosen': w, 'rewards/rejected': l } = means;
    const hasBoth = Number.isFinite(w) && Number.isFinite(l);
    return hasBoth ? { ...means, 'rewards/margins': (w as number) - (l as number) } : means;
  }

  /** Returns the rewards of the answers, [B]. */
  protected computeOutputRows({ x }: KtoMetrics): Tensor {
    return x.mul(this.settings.beta);
  }
}
