// AnswerObjective: the base class of the objectives that compare answers. It computes losses,
// metrics and outputs of micro-batches.
import { argumentError } from '../../runtime/input-errors.js';
import { noGrad, scope, Tensor } from '../../tensor/index.js';
import type { PairBatch } from '../../text/index.js';
import type { MetricSums } from '../evaluation-options.js';
import type { Divisor, Forward, MicroBatch, Objective, SessionParts } from '../micro-batch.js';
import { type DeviceSums, readSums, type StepMetrics } from '../step-metrics.js';
import { withoutDropout } from './no-dropout.js';

/** Numbers of answers and tokens in a batch. */
export interface AnswerCounts {
  /** Number of pairs or rows over which the loss is averaged. */
  readonly counted: number;
  /** Number of tokens of the answers. */
  readonly tokens: number;
  /** Number of tokens over which the second loss is averaged. Default: 0. */
  readonly further?: number;
}

/** An objective. `Items`: a batch of pairs or answers. `Sums`: the results of the models for it. */
export abstract class AnswerObjective<Batch, Items, Sums> implements Objective<Batch> {
  readonly hasStepMetrics = true;

  private restore: (() => void) | null = null;

  constructor(
    private readonly method: string,
    private readonly disableDropout: boolean,
  ) {}

  async open({ engine }: SessionParts): Promise<void> {
    if (this.disableDropout) this.restore ??= withoutDropout(engine.module);
  }

  async close(): Promise<void> {
    this.restore?.();
    this.restore = null;
  }

  /** Returns the batch. Throws DS_ARGUMENT if it comes from data for another method. */
  protected abstract requireBatch(batch: unknown): Items;

  /** Counts the answers and tokens of a batch, on the host. */
  protected abstract count(items: Items): AnswerCounts;

  /** Adds tensors to a batch that the host computes from it. The Trainer frees them. */
  protected prepare(items: Items): Items {
    return items;
  }

  /** Runs the models on a batch. `measures`: whether metrics will be computed from the result. */
  protected abstract computeSums(forward: Forward, items: Items, measures: boolean): Sums;

  /** Returns the loss of each pair, row or token, [..] f32. Items that do not count have 0. */
  protected abstract computeLoss(sums: Sums): Tensor;

  /**
   * Returns a second loss, summed over tokens, a scalar f32; null for a method without a second
   * loss.
   */
  protected computeTokenLoss(_sums: Sums): Tensor | null {
    return null;
  }

  /** Returns sums and counts of the metrics, without gradients. */
  protected abstract computeDeviceSums(sums: Sums): DeviceSums;

  /** Returns the rewards as predictions, one row per pair or answer. */
  protected abstract computeOutputRows(sums: Sums): Tensor;

  shorten(): Batch {
    throw argumentError(
      'Trainer method',
      `no curriculum_learning with ${this.method}()`,
      'a curriculum_learning section',
    );
  }

  countBatch(batch: Batch): MicroBatch<Batch> {
    const items = this.prepare(this.requireBatch(batch));
    return { batch: items as unknown as Batch, targets: null, ...this.count(items) };
  }

  computeMeanLoss(forward: Forward, micro: MicroBatch<Batch>): Tensor {
    return this.meanOfSums(this.computeSums(forward, this.requireBatch(micro.batch), false), micro);
  }

  computeSharedLoss(
    forward: Forward,
    { batch }: MicroBatch<Batch>,
    divisor: Divisor,
    metrics: StepMetrics | null = null,
    further: Divisor = divisor,
  ): Tensor {
    const sums = this.computeSums(forward, this.requireBatch(batch), metrics !== null);
    if (metrics) noGrad(() => metrics.add(this.computeDeviceSums(sums)));
    const loss = this.computeLoss(sums).sum().div(divisor);
    const ofTokens = this.computeTokenLoss(sums);
    return ofTokens ? loss.add(ofTokens.div(further)) : loss;
  }

  computeOutputs(forward: Forward, { batch }: MicroBatch<Batch>): Tensor {
    return scope(() =>
      this.computeOutputRows(this.computeSums(forward, this.requireBatch(batch), false)),
    );
  }

  evaluateBatch(forward: Forward, micro: MicroBatch<Batch>): { loss: number; sums: MetricSums } {
    return scope(() => {
      const sums = this.computeSums(forward, this.requireBatch(micro.batch), true);
      return {
        loss: this.meanOfSums(sums, micro).item(),
        sums: readSums(this.computeDeviceSums(sums)),
      };
    });
  }

  private meanOfSums(sums: Sums, { counted, further = 0 }: MicroBatch<Batch>): Tensor {
    const loss = this.computeLoss(sums).sum().div(Math.max(1, counted));
    const ofTokens = this.computeTokenLoss(sums);
    return ofTokens ? loss.add(ofTokens.div(Math.max(1, further))) : loss;
  }
}

/** Returns the sum of a tensor's elements, computed on the host. */
export const sumOnHost = (tensor: Tensor): number =>
  tensor.toArray().reduce((sum: number, value) => sum + Number(value), 0);

/** Returns the batch of a PairDataset. Throws DS_ARGUMENT for any other batch. */
export function requirePairBatch(method: string, batch: unknown): PairBatch {
  const { ids, targets, answered } = (batch ?? {}) as Partial<PairBatch>;
  const isPairs = [ids, targets, answered].every((item) => item instanceof Tensor);
  const isRows = ids instanceof Tensor && answered?.size(0) === ids.size(0);
  if (isPairs && isRows && !('desirable' in (batch as object))) return batch as PairBatch;
  throw argumentError('Trainer train', `a text.PairDataset for ${method}()`, 'other data');
}
