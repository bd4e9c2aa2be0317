// The objective of policies: losses of sampled completions, and their metrics.
import { CausalLM } from '../../models/causal-lm.js';
import { formatValue } from '../../runtime/format-value.js';
import { refused } from '../../runtime/refused.js';
import { noGrad, type Tensor } from '../../tensor/index.js';
import type { Divisor, Forward, MicroBatch, Objective } from '../micro-batch.js';
import type { RolloutBatch } from '../rollouts/rollout-batch.js';
import type { DeviceSum, DeviceSums, StepMetrics } from '../step-metrics.js';
import {
  countOf,
  divergence,
  leaveOneOutLosses,
  type PolicyBatch,
  type PolicyLossOptions,
  ratiosOf,
  summed,
  tokenLosses,
} from './policy-losses.js';

/** Options of the objective. */
export interface PolicySettings extends PolicyLossOptions {
  /** The method, for errors. */
  readonly method: string;
  /** Leave-one-out losses, with one ratio for each sequence. */
  readonly isLeaveOneOut: boolean;
  /** Temperature of sampling, which divides the logits of training too. */
  readonly temperature: number;
  /** Most tokens of a completion. */
  readonly most: number;
  /** Computes the bits that the sampler recorded. */
  readonly exactRollouts: boolean;
}

/** Numbers of a generation by the names of metrics, for the first micro-batch of it. */
export type RolloutMetrics = Readonly<Record<string, number>>;

/** A batch of rollouts with the metrics of their generation. */
export interface PolicyMicroBatch extends RolloutBatch {
  /** The names are equal in all batches. Null: the values count in an earlier batch. */
  metrics: { names: readonly string[]; values: readonly number[] | null };
}

/** Losses of micro-batches of rollouts. */
export class PolicyObjective<Batch> implements Objective<Batch> {
  readonly hasStepMetrics = true;

  /** Throws DS_ARGUMENT for a model that is not a CausalLM. */
  constructor(
    model: unknown,
    private readonly settings: PolicySettings,
  ) {
    if (model instanceof CausalLM) return;
    const got = `a ${(model as object).constructor.name}`;
    throw refused('Trainer model', `a CausalLM for ${settings.method}()`, got);
  }

  shortened(): Batch {
    const expected = `no curriculum_learning beside ${this.settings.method}()`;
    throw refused('Trainer method', expected, 'a section');
  }

  counted(given: Batch): MicroBatch<Batch> {
    const batch = this.batchIn(given);
    const { loss, most, isLeaveOneOut } = this.settings;
    const sequences = batch.ids.size(0);
    const counted = isLeaveOneOut
      ? sequences
      : countOf(loss, { sequences, tokens: batch.counted, most });
    return { batch: given, targets: null, counted, tokens: batch.length };
  }

  mean(forward: Forward, micro: MicroBatch<Batch>): Tensor {
    return this.shared(forward, micro, Math.max(1, micro.counted));
  }

  shared(
    forward: Forward,
    { batch: given }: MicroBatch<Batch>,
    divisor: Divisor,
    metrics: StepMetrics | null = null,
  ): Tensor {
    const batch = this.batchIn(given);
    const { temperature, isLeaveOneOut, level, epsilon, loss, exactRollouts } = this.settings;
    const both = forward(batch.ids, batch.targets, {
      loss: { tokens: { temperature, entropies: true, batchInvariant: exactRollouts } },
    });
    const logp = both.narrow(0, 0, 1).squeeze(0);
    const policy = { ...batch, logp, old: batch.old ?? logp.detach() };
    if (isLeaveOneOut) {
      const losses = leaveOneOutLosses(policy, epsilon);
      if (metrics) noGrad(() => metrics.add(this.metricsOf(policy, batch, both)));
      return losses.sum().div(divisor);
    }
    const ratios = ratiosOf(policy, level);
    const losses = tokenLosses(ratios, this.settings);
    if (metrics) noGrad(() => metrics.add(this.metricsOf(policy, batch, both, ratios.ratio)));
    return summed(losses, batch.mask, loss).div(divisor);
  }

  outputs(): Tensor {
    const hint = 'Generate with engine.module.generate().';
    throw refused('Trainer predict', `no ${this.settings.method}()`, 'one', hint);
  }

  private metricsOf(
    policy: PolicyBatch,
    { mask, sampler, counted, metrics: { names, values } }: PolicyMicroBatch,
    both: Tensor,
    ratio: Tensor | null = null,
  ): DeviceSums {
    const { epsilon, epsilonHigh, loss, beta } = this.settings;
    const over = (x: Tensor): DeviceSum => ({ sum: x.mul(mask).sum(), count: counted });
    const distance = policy.old.sub(sampler).abs().mul(mask);
    const entropy = over(both.narrow(0, 1, 1).squeeze(0));
    const drift = policy.logp.sub(policy.old).abs().mul(mask);
    const own: Record<string, DeviceSum> = {
      entropy,
      'sampling/sampling_logp_difference/mean': { sum: distance.sum(), count: counted },
      'sampling/sampling_logp_difference/max': { sum: distance.max(), count: 1 },
      'policy/logp_difference/max': { sum: drift.max(), count: 1 },
    };
    if (policy.reference && beta > 0) own.kl = over(divergence(policy.logp, policy.reference));
    if (ratio) {
      const [isLoss, isGain] = [policy.advantages.lt(0), policy.advantages.gt(0)].map((one) =>
        one.to('f32'),
      ) as [Tensor, Tensor];
      const low = ratio
        .lt(1 - epsilon)
        .to('f32')
        .mul(isLoss);
      const most = loss === 'cispo' ? epsilonHigh : 1 + epsilonHigh;
      const high = ratio.gt(most).to('f32').mul(isGain);
      own['clip_ratio/low_mean'] = over(low);
      own['clip_ratio/high_mean'] = over(high);
      own['clip_ratio/region_mean'] = over(low.add(high));
    }
    for (const [i, name] of names.entries()) {
      own[name] = { sum: values?.[i] ?? 0, count: values ? 1 : 0 };
    }
    return own;
  }

  private batchIn(given: Batch): PolicyMicroBatch {
    const { ids, advantages } = (given ?? {}) as Partial<PolicyMicroBatch>;
    if (ids && advantages) return given as PolicyMicroBatch;
    const expected = `a text.PromptDataset for ${this.settings.method}()`;
    throw refused('Trainer train', expected, formatValue(given));
  }
}
