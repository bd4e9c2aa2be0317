// AnswerObjective, the base of methods that compare answers: losses, metrics and outputs of
// micro-batches.
import { argumentError } from '../../runtime/input-errors.js';
import { noGrad, scope, Tensor } from '../../tensor/index.js';
import type { PairBatch } from '../../text/index.js';
import type { MetricSums } from '../evaluation-options.js';
import type { Divisor, Forward, MicroBatch, Objective, SessionParts } from '../micro-batch.js';
import { type DeviceSums, readSums, type StepMetrics } from '../step-metrics.js';
import { withoutDropout } from './no-dropout.js';

/** Numbers of items and tokens in a batch. */
export interface AnswerCounts {
  /** Number of pairs or rows for the mean loss. */
  readonly counted: number;
  /** Number of tokens of the answers. */
  readonly tokens: number;
  /** Number of tokens of the second loss. Default: 0. */
  readonly further?: number;
}

/** An objective over `Items`, a batch of pairs or answers, measured as `Sums`. */
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

  /** Returns the batch. Throws DS_ARGUMENT for a batch of other data. */
  protected abstract requireBatch(batch: unknown): Items;

  /** Counts a batch on the host. */
  protected abstract count(items: Items): AnswerCounts;

  /** Adds tensors that are computed from a batch on the host. The Trainer frees them. */
  protected prepare(items: Items): Items {
    return items;
  }

  /** Runs the models. `measures`: whether metrics are computed next. */
  protected abstract computeSums(forward: Forward, items: Items, measures: boolean): Sums;

  /** Returns the loss of each counted pair, row or token, [..] f32; 0 for others. */
  protected abstract computeLoss(sums: Sums): Tensor;

  /** Returns a second loss, summed over tokens, a scalar f32; null if there is none. */
  protected computeTokenLoss(_sums: Sums): Tensor | null {
    return null;
  }

  /** Returns the sums of the metrics, without gradients. */
  protected abstract computeDeviceSums(sums: Sums): DeviceSums;

  /** Returns the rewards, one row per pair or row. */
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

/** Sums the numbers of a tensor on the host. */
export const sumOnHost = (tensor: Tensor): number =>
  tensor.toArray().reduce((sum: number, value) => sum + Number(value), 0);

/** Returns a batch of a PairDataset. Throws DS_ARGUMENT for other batches. */
export function requirePairBatch(method: string, batch: unknown): PairBatch {
  const { ids, targets, answered } = (batch ?? {}) as Partial<PairBatch>;
  const isPairs = [ids, targets, answered].every((item) => item instanceof Tensor);
  const isRows = ids instanceof Tensor && answered?.size(0) === ids.size(0);
  if (isPairs && isRows && !('desirable' in (batch as object))) return batch as PairBatch;
  throw argumentError('Trainer train', `a text.PairDataset for ${method}()`, 'other data');
}
