// AnswerObjective, the base of methods that compare answers: losses, metrics and outputs of
// micro-batches.
import { argumentError } from '../../runtime/input-errors.js';
import { noGrad, scope, Tensor } from '../../tensor/index.js';
import type { PairBatch } from '../../text/index.js';
import type { MetricSums } from '../evaluation-options.js';
import type { Divisor, Forward, MicroBatch, Objective, SessionParts } from '../micro-batch.js';
import { type DeviceSums, readSums, type StepMetrics } from '../step-metrics.js';
import { withoutDropout } from './no-dropout.js';

/** Counts of a batch on the host. */
export interface AnswerCounts {
  /** Pairs or rows, over which the mean loss is taken. */
  readonly counted: number;
  /** Tokens of the answers. */
  readonly tokens: number;
  /** Tokens of the second loss. Default: 0. */
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

  async opened({ engine }: SessionParts): Promise<void> {
    if (this.disableDropout) this.restore ??= withoutDropout(engine.module);
  }

  async closed(): Promise<void> {
    this.restore?.();
    this.restore = null;
  }

  /** Returns the batch. Throws DS_ARGUMENT for a batch of other data. */
  protected abstract read(batch: unknown): Items;

  /** Counts a batch on the host. */
  protected abstract count(items: Items): AnswerCounts;

  /** Adds tensors that follow from a batch on the host. The Trainer frees them. */
  protected prepared(items: Items): Items {
    return items;
  }

  /** Runs the models. `measures`: whether metricsOf() follows. */
  protected abstract sumsOf(forward: Forward, items: Items, measures: boolean): Sums;

  /** The loss of each pair, row or token that counts, [..] f32; 0 elsewhere. */
  protected abstract lossOf(sums: Sums): Tensor;

  /** A second loss, summed over tokens, a scalar f32; null without one. */
  protected tokenLossOf(_sums: Sums): Tensor | null {
    return null;
  }

  /** Sums of the metrics, without gradients. */
  protected abstract metricsOf(sums: Sums): DeviceSums;

  /** The rewards of each pair or row, with a row for each. */
  protected abstract outputsOf(sums: Sums): Tensor;

  shortened(): Batch {
    throw argumentError(
      'Trainer method',
      `no curriculum_learning with ${this.method}()`,
      'a curriculum_learning section',
    );
  }

  counted(batch: Batch): MicroBatch<Batch> {
    const items = this.prepared(this.read(batch));
    return { batch: items as unknown as Batch, targets: null, ...this.count(items) };
  }

  mean(forward: Forward, micro: MicroBatch<Batch>): Tensor {
    return this.whole(this.sumsOf(forward, this.read(micro.batch), false), micro);
  }

  shared(
    forward: Forward,
    { batch }: MicroBatch<Batch>,
    divisor: Divisor,
    metrics: StepMetrics | null = null,
    further: Divisor = divisor,
  ): Tensor {
    const sums = this.sumsOf(forward, this.read(batch), metrics !== null);
    if (metrics) noGrad(() => metrics.add(this.metricsOf(sums)));
    const loss = this.lossOf(sums).sum().div(divisor);
    const ofTokens = this.tokenLossOf(sums);
    return ofTokens ? loss.add(ofTokens.div(further)) : loss;
  }

  outputs(forward: Forward, { batch }: MicroBatch<Batch>): Tensor {
    return scope(() => this.outputsOf(this.sumsOf(forward, this.read(batch), false)));
  }

  judged(forward: Forward, micro: MicroBatch<Batch>): { loss: number; sums: MetricSums } {
    return scope(() => {
      const sums = this.sumsOf(forward, this.read(micro.batch), true);
      return { loss: this.whole(sums, micro).item(), sums: readSums(this.metricsOf(sums)) };
    });
  }

  private whole(sums: Sums, { counted, further = 0 }: MicroBatch<Batch>): Tensor {
    const loss = this.lossOf(sums).sum().div(Math.max(1, counted));
    const ofTokens = this.tokenLossOf(sums);
    return ofTokens ? loss.add(ofTokens.div(Math.max(1, further))) : loss;
  }
}

/** Sums the numbers of a tensor on the host. */
export const totalOf = (tensor: Tensor): number =>
  tensor.toArray().reduce((sum: number, value) => sum + Number(value), 0);

/** Returns a batch of a PairDataset. Throws DS_ARGUMENT for other batches. */
export function pairBatch(method: string, batch: unknown): PairBatch {
  const { ids, targets, answered } = (batch ?? {}) as Partial<PairBatch>;
  const isPairs = [ids, targets, answered].every((item) => item instanceof Tensor);
  const isRows = ids instanceof Tensor && answered?.size(0) === ids.size(0);
  if (isPairs && isRows && !('desirable' in (batch as object))) return batch as PairBatch;
  throw argumentError('Trainer train', `a text.PairDataset for ${method}()`, 'other data');
}
