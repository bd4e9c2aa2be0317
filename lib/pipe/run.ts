// PipelineRun: performs a rank's list of actions, the work of its stages and transfers between
// stages.
import { required } from '../runtime/required.js';
import { held, Tensor, zeros } from '../tensor/index.js';
import { type Action, rankOf, type Transfer, type Work } from './action.js';
import { toList, type Values } from './layers.js';
import type { IncomingValues, Links } from './links.js';
import type { BatchKind } from './outlines.js';

/** A batch: the inputs of the first layer, and the labels for the loss. */
export type PipelineBatch = readonly [inputs: Values, labels: unknown];

/** A micro-batch in a stage. */
export type PipelinePosition = Pick<Work, 'stage' | 'micro'>;

/** Computes the work of stages. The engine implements it. */
export interface StageWorker {
  /** The kind of the batch. An evaluation has no backward. */
  readonly kind: BatchKind;
  /**
   * Returns the model's inputs for micro-batch `micro`. Only called on the rank of the first stage.
   */
  inputs(micro: number): Values;
  /**
   * Returns the output of `stage`; the last stage returns the loss. The worker keeps the output
   * until finish().
   */
  forward(stage: number, micro: number, values: Values): Values;
  /**
   * Runs the backward of `outputs`, the results of forward() that require gradients. `gradients`:
   * their gradients; null for the loss.
   */
  backward(stage: number, outputs: readonly Tensor[], gradients: readonly Tensor[] | null): void;
  /**
   * Runs the half of backward() that computes the gradients of the stage's inputs.
   * weightGradients() runs the other half.
   */
  inputGradients(
    at: PipelinePosition,
    outputs: readonly Tensor[],
    gradients: readonly Tensor[] | null,
  ): void;
  /** Computes the gradients of the stage's weights. Is called for micro-batches in order. */
  weightGradients(at: PipelinePosition): void;
  /** Is called when the gradients of `stage` are complete in this batch. */
  reduce(stage: number): void;
  /** Releases the results of forward(). */
  finish(stage: number, micro: number): void;
}

/** State of a micro-batch in a stage, between its forward and its backward. */
interface MicroBatchState {
  /**
   * Leaves of the stage's graph, which are released with the graph. Null in the first stage,
   * because the worker owns the inputs.
   */
  inputs: Values | null;
  outputs: Values;
}

const positionKey = ({ stage, micro }: PipelinePosition): string => `${stage} ${micro}`;

/**
 * Values that wait for a stage: in transfer from another rank, or from another stage of this rank.
 */
class StageInbox {
  private readonly arriving = new Map<string, IncomingValues>();
  private readonly local = new Map<string, Values>();

  expect(at: PipelinePosition, arriving: IncomingValues): void {
    this.arriving.set(positionKey(at), arriving);
  }

  put(at: PipelinePosition, values: Values): void {
    this.local.set(positionKey(at), values);
  }

  /** Returns the values. The caller owns the tensors. */
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

/** One run of a rank's list of actions. */
export class PipelineRun {
  private readonly visits = new Map<string, MicroBatchState>();
  /** Values, by the stage that takes them. */
  private readonly values = new StageInbox();
  /** Gradients, by the stage that takes them. */
  private readonly gradients = new StageInbox();
  /** Gradients to send, by the stage that computed them. */
  private readonly leaving = new Map<string, readonly Tensor[]>();

  constructor(
    private readonly worker: StageWorker,
    private readonly links: Links,
    private readonly position: { rank: number; ranks: number; stages: number },
  ) {}

  /**
   * Performs the actions in order. Rejects with the error of the worker or of a link, and then
   * releases the state of the run.
   */
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

  /** Releases all state. Running transfers keep their memory until they are complete. */
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

/** Returns the `values` that require gradients. */
const selectDifferentiable = (values: Values): readonly Tensor[] =>
  toList(values).filter(({ requiresGrad }) => requiresGrad);

/** Returns the values as if another rank had received them: as leaves of a new graph. */
function detachValues(values: Values, kind: BatchKind): Values {
  const leaves = toList(values).map((value) => {
    const leaf = held(() => value.alias(value.shape, value.strides, value.offset));
    if (kind === 'train' && value.requiresGrad) leaf.requireGrad(true);
    return leaf;
  });
  return values instanceof Tensor ? required(leaves[0]) : leaves;
}

/**
 * Returns the gradients of leaves, or zeros for a leaf without a gradient. The caller owns them.
 */
function takeGradients(inputs: Values): readonly Tensor[] {
  return selectDifferentiable(inputs).map((input) => {
    const { grad } = input;
    input.grad = null;
    return grad ?? held(() => zeros(input.shape, { dtype: input.dtype, device: input.device }));
  });
}
