// PolicyObjective: computes losses and metrics of sampled completions, for grpo() and rloo().
import { CausalLM } from '../../models/causal-lm.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { noGrad, type Tensor } from '../../tensor/index.js';
import type { Divisor, Forward, MicroBatch, Objective } from '../micro-batch.js';
import type { RolloutBatch } from '../rollouts/rollout-batch.js';
import { type DeviceSum, type DeviceSums, extremeOf, type StepMetrics } from '../step-metrics.js';
import {
  computeRatios,
  computeSequenceLosses,
  computeSequenceRatios,
  computeTokenLosses,
  countWeight,
  estimateDivergence,
  type PolicyLossOptions,
  type Ratios,
  sumLosses,
} from './policy-losses.js';
import { computeClipMetrics, computeSamplerMetrics } from './policy-metrics.js';

/** Options of the objective. */
export interface PolicySettings extends PolicyLossOptions {
  /** Name of the method in errors. */
  readonly method: string;
  /** Whether the losses are RLOO's, with one ratio per completion. */
  readonly isLeaveOneOut: boolean;
  /** Temperature of the sampling. Training divides its logits by it too. */
  readonly temperature: number;
  /** Maximum number of tokens of a completion. */
  readonly max: number;
  /** Whether training computes log-probabilities with the same bits as the sampler. */
  readonly exactRollouts: boolean;
}

/** A batch of rollouts, with the metrics of their generation. */
export interface PolicyMicroBatch extends RolloutBatch {
  /**
   * Metrics of the generation. The names are the same in all batches. `values` is null if an
   * earlier batch has reported them.
   */
  metrics: { names: readonly string[]; values: readonly number[] | null };
}

/** Computes losses of micro-batches of rollouts. */
export class PolicyObjective<Batch> implements Objective<Batch> {
  readonly hasStepMetrics = true;

  /** Throws DS_ARGUMENT if the model is not a CausalLM. */
  constructor(
    model: unknown,
    private readonly settings: PolicySettings,
  ) {
    if (model instanceof CausalLM) return;
    const got = `a ${(model as object).constructor.name}`;
    throw argumentError('Trainer model', `a CausalLM for ${settings.method}()`, got);
  }

  shorten(): Batch {
    const expected = `no curriculum_learning with ${this.settings.method}()`;
    throw argumentError('Trainer method', expected, 'a curriculum_learning section');
  }

  countBatch(given: Batch): MicroBatch<Batch> {
    const batch = this.requireBatch(given);
    const { loss, max, isLeaveOneOut } = this.settings;
    const sequences = batch.ids.size(0);
    const counted = isLeaveOneOut
      ? sequences
      : countWeight(loss, { sequences, tokens: batch.counted, max });
    return { batch: given, targets: null, counted, tokens: batch.length };
  }

  computeMeanLoss(forward: Forward, micro: MicroBatch<Batch>): Tensor {
    return this.computeSharedLoss(forward, micro, Math.max(1, micro.counted));
  }

  computeSharedLoss(
    forward: Forward,
    { batch: given }: MicroBatch<Batch>,
    divisor: Divisor,
    metrics: StepMetrics | null = null,
  ): Tensor {
    const batch = this.requireBatch(given);
    const { temperature, isLeaveOneOut, level, epsilon, loss, exactRollouts } = this.settings;
    const both = forward(batch.ids, batch.targets, {
      loss: { tokens: { temperature, entropies: true, batchInvariant: exactRollouts } },
    });
    const logp = both.narrow(0, 0, 1).squeeze(0);
    const policy = { ...batch, logp, old: batch.old ?? logp.detach() };
    if (isLeaveOneOut) {
      const ratio = computeSequenceRatios(policy);
      const losses = computeSequenceLosses(policy, ratio, epsilon);
      const ratios = { ratio, batch: policy, bySequence: ratio };
      if (metrics) noGrad(() => metrics.add(this.computeDeviceSums(ratios, batch, both)));
      return losses.sum().div(divisor);
    }
    const ratios = computeRatios(policy, level);
    const losses = computeTokenLosses(ratios, this.settings);
    if (metrics) noGrad(() => metrics.add(this.computeDeviceSums(ratios, batch, both)));
    return sumLosses(losses, batch.mask, loss).div(divisor);
  }

  computeOutputs(): Tensor {
    const hint = 'Generate with engine.module.generate().';
    throw argumentError(
      'Trainer predict',
      `a Trainer without ${this.settings.method}()`,
      'a Trainer with it',
      hint,
    );
  }

  private computeDeviceSums(
    ratios: Ratios,
    { counted, metrics: { names, values } }: PolicyMicroBatch,
    both: Tensor,
  ): DeviceSums {
    const { beta } = this.settings;
    const { batch: policy } = ratios;
    const { mask, logp, old, reference } = policy;
    const meanOverTokens = (x: Tensor): DeviceSum => ({ sum: x.mul(mask).sum(), count: counted });
    const deviceSums: Record<string, DeviceSum> = {
      entropy: meanOverTokens(both.narrow(0, 1, 1).squeeze(0)),
      ...computeSamplerMetrics(policy, this.settings, counted),
      'policy/logp_difference/max': extremeOf(logp.sub(old).abs().mul(mask).max(), 'max'),
      ...computeClipMetrics(ratios, this.settings, counted),
    };
    if (reference && beta > 0) deviceSums.kl = meanOverTokens(estimateDivergence(logp, reference));
    for (const [i, name] of names.entries()) {
      deviceSums[name] = { sum: values?.[i] ?? 0, count: values ? 1 : 0 };
    }
    return deviceSums;
  }

  private requireBatch(given: Batch): PolicyMicroBatch {
    const { ids, advantages } = (given ?? {}) as Partial<PolicyMicroBatch>;
    if (ids && advantages) return given as PolicyMicroBatch;
    const expected = `a text.PromptDataset for ${this.settings.method}()`;
    throw argumentError('Trainer train', expected, formatValue(given));
  }
}
