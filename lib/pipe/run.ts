// Runs a rank's list of actions: work of its stages, and transfers to and from other stages.
import { required } from '../runtime/required.js';
import { held, Tensor, zeros } from '../tensor/index.js';
import { type Action, rankOf, type Transfer, type Work } from './action.js';
import { toList, type Values } from './layers.js';
import type { IncomingValues, Links } from './links.js';
import type { BatchKind } from './outlines.js';

/** Inputs of the first layer, and labels of the loss. */
export type PipelineBatch = readonly [inputs: Values, labels: unknown];

/** A micro-batch in a stage. */
export type PipelinePosition = Pick<Work, 'stage' | 'micro'>;

/** Computes the work of a stage. */
export interface StageWorker {
  /** The kind of its batch: evaluation has no backward. */
  readonly kind: BatchKind;
  /** Returns the model's inputs for micro-batch `micro`; called on the rank of the first stage. */
  inputs(micro: number): Values;
  /**
   * Runs the forward of `stage`; the last stage includes the loss. The result lives until finish().
   */
  forward(stage: number, micro: number, values: Values): Values;
  /**
   * Runs the backward of `outputs`, the results of forward() that require gradients, from their
   * `gradients`; null for the loss.
   */
  backward(stage: number, outputs: readonly Tensor[], gradients: readonly Tensor[] | null): void;
  /**
   * Runs the half of backward() that computes the gradients of the stage's inputs.
   * weightGradients() computes the rest.
   */
  inputGradients(
    at: PipelinePosition,
    outputs: readonly Tensor[],
    gradients: readonly Tensor[] | null,
  ): void;
  /** Runs the other half; micro-batches run in order. */
  weightGradients(at: PipelinePosition): void;
  /** Called when no backward of `stage` follows in this batch: its gradients are complete. */
  reduce(stage: number): void;
  /** Releases the results of forward(). */
  finish(stage: number, micro: number): void;
}

/** State of a micro-batch in a stage. */
interface MicroBatchState {
  /**
   * Leaves of the stage's graph, released with it; null in the first stage, where the worker owns
   * the inputs.
   */
  inputs: Values | null;
  outputs: Values;
}

const positionKey = ({ stage, micro }: PipelinePosition): string => `${stage} ${micro}`;

/** Values between two stages: in transfer from another rank, or passed within this rank. */
class StageInbox {
  private readonly arriving = new Map<string, IncomingValues>();
  private readonly local = new Map<string, Values>();

  expect(at: PipelinePosition, arriving: IncomingValues): void {
    this.arriving.set(positionKey(at), arriving);
  }

  put(at: PipelinePosition, values: Values): void {
    this.local.set(positionKey(at), values);
  }

  /** The caller owns the tensors. */
  take(at: PipelinePosition): Values {
    const name = positionKey(at);
    const values = this.local.get(name) ?? required(this.arriving.get(name)).take();
    this.local.delete(name);
    this.arriving.delete(name);
    return values;
  }

  drop(): void {
    for (const values of this.local.values()) release(values);
    for (const arriving of this.arriving.values()) arriving.drop();
  }
}

function release(values: Values): void {
  for (const value of toList(values)) value.release();
}

/** A run of a rank's list of actions. */
export class PipelineRun {
  private readonly visits = new Map<string, MicroBatchState>();
  /** Values by the stage that takes them. */
  private readonly values = new StageInbox();
  private readonly gradients = new StageInbox();
  /** Outputs by the stage that computed them. */
  private readonly leaving = new Map<string, readonly Tensor[]>();

  constructor(
    private readonly worker: StageWorker,
    private readonly links: Links,
    private readonly position: { rank: number; ranks: number; stages: number },
  ) {}

  /** Rejects with the error of the worker or a link; the run's state is then released. */
  async run(actions: readonly Action[]): Promise<void> {
    try {
      for (const action of actions) {
        await this.perform(action);
        this.links.freeComplete();
      }
      this.links.finish();
    } catch (error) {
      this.drop();
      throw error;
    }
  }

  /** Transfers in flight keep their memory until they end. */
  private drop(): void {
    for (const { inputs } of this.visits.values()) release(inputs ?? []);
    for (const gradients of this.leaving.values()) release(gradients);
    for (const mail of [this.values, this.gradients]) mail.drop();
    this.links.drop();
  }

  private async perform(action: Action): Promise<void> {
    const { links } = this;
    const { kind } = this.worker;
    switch (action.kind) {
      case 'F':
        return this.forward(action);
      case 'B':
      case 'I':
        return this.backward(action);
      case 'W':
        return this.worker.weightGradients(action);
      case 'recvF':
        return this.values.expect(action, await links.receiveValues(action, kind));
      case 'recvB': {
        const outputs = selectDifferentiable(this.visitAt(action).outputs);
        return this.gradients.expect(action, links.receiveGradients(action, outputs));
      }
      case 'sendF':
        await links.sendValues(action, this.visitAt(action).outputs, kind);
        if (kind === 'eval') this.end(action);
        return;
      case 'sendB':
        return this.sendGradients(action);
      case 'reduce':
        return this.worker.reduce(action.stage);
    }
  }

  private forward({ stage, micro }: Work): void {
    const { worker } = this;
    const at = { stage, micro };
    const inputs = stage === 0 ? null : this.values.take(at);
    const outputs = worker.forward(stage, micro, inputs ?? worker.inputs(micro));
    this.visits.set(positionKey(at), { inputs, outputs });
    const isLast = stage === this.position.stages - 1;
    if (!isLast && !this.isHere(stage + 1)) return;
    if (!isLast) this.values.put({ stage: stage + 1, micro }, detachValues(outputs, worker.kind));
    if (worker.kind === 'eval') this.end(at);
  }

  private backward({ kind, stage, micro }: Work): void {
    const at = { stage, micro };
    const isLast = stage === this.position.stages - 1;
    const gradients = isLast ? null : toList(this.gradients.take(at));
    const { inputs, outputs } = this.visitAt(at);
    if (kind === 'B') this.worker.backward(stage, selectDifferentiable(outputs), gradients);
    else this.worker.inputGradients(at, selectDifferentiable(outputs), gradients);
    for (const gradient of gradients ?? []) gradient.release();
    if (inputs !== null) {
      const inputGradients = takeGradients(inputs);
      if (this.isHere(stage - 1)) this.gradients.put({ stage: stage - 1, micro }, inputGradients);
      else this.leaving.set(positionKey(at), inputGradients);
    }
    this.end(at);
  }

  private sendGradients(transfer: Transfer): void {
    const name = positionKey(transfer);
    this.links.sendGradients(transfer, required(this.leaving.get(name)));
    this.leaving.delete(name);
  }

  private end(at: PipelinePosition): void {
    const { inputs } = this.visitAt(at);
    this.visits.delete(positionKey(at));
    this.worker.finish(at.stage, at.micro);
    release(inputs ?? []);
  }

  private visitAt(at: PipelinePosition): MicroBatchState {
    return required(this.visits.get(positionKey(at)));
  }

  private isHere(stage: number): boolean {
    return rankOf(stage, this.position.ranks) === this.position.rank;
  }
}

/** The `values` that require gradients. */
const selectDifferentiable = (values: Values): readonly Tensor[] =>
  toList(values).filter(({ requiresGrad }) => requiresGrad);

/** Returns the values as another rank would receive them: the graph ends, and a new one begins. */
function detachValues(values: Values, kind: BatchKind): Values {
  const leaves = toList(values).map((value) => {
    const leaf = held(() => value.alias(value.shape, value.strides, value.offset));
    if (kind === 'train' && value.requiresGrad) leaf.requireGrad(true);
    return leaf;
  });
  return values instanceof Tensor ? required(leaves[0]) : leaves;
}

/**
 * Returns the gradients of leaves, which the caller owns; zeros for leaves that nothing depends on.
 */
function takeGradients(inputs: Values): readonly Tensor[] {
  return selectDifferentiable(inputs).map((input) => {
    const { grad } = input;
    input.grad = null;
    return grad ?? held(() => zeros(input.shape, { dtype: input.dtype, device: input.device }));
  });
}
