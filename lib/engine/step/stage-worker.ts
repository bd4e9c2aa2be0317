// Runs the stages of a pipeline on micro-batches, in training and in evaluation.

import type {
  Pipeline,
  PipelineBatch,
  PipelinePosition,
  StageWorker,
  Values,
} from '../../pipe/index.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import {
  backward,
  DeferredGradients,
  deferGradients,
  noGrad,
  Scope,
  sharingSamples,
  Tensor,
  within,
} from '../../tensor/index.js';
import { scopeInto } from '../../tensor/scope.js';
import { requireLoss } from '../calls.js';
import type { EngineParts } from '../engine-parts.js';
import { runBackward } from './gradient-collector.js';
import { sampleShareOf } from './inputs.js';

type Parts = Pick<
  EngineParts,
  | 'inputs'
  | 'ranks'
  | 'units'
  | 'zeroGroups'
  | 'gradients'
  | 'control'
  | 'batch'
  | 'stepDecisions'
  | 'watch'
>;

/** Runs the forwards of stages. Each forward has its own scope for its outputs. */
abstract class Worker implements StageWorker {
  abstract readonly kind: StageWorker['kind'];
  private readonly scopes = new Map<string, Scope>();

  constructor(
    protected readonly parts: Parts,
    protected readonly pipeline: Pipeline,
    private readonly batches: readonly PipelineBatch[],
  ) {}

  inputs(micro: number): Values {
    const [inputs] = required(this.batches[micro]);
    const cast = this.parts.inputs(inputs instanceof Tensor ? [inputs] : [...inputs]) as Tensor[];
    return inputs instanceof Tensor ? required(cast[0]) : cast;
  }

  forward(stage: number, micro: number, values: Values): Values {
    const { pipeline } = this;
    const kept = new Scope();
    this.scopes.set(`${stage} ${micro}`, kept);
    return scopeInto(kept, () => {
      const share = sampleShareOf([values], this.parts.ranks.dataGroup);
      const outputs = sharingSamples(share, () => pipeline.run(stage, micro, values));
      return stage === pipeline.stages - 1 ? this.lossOf(outputs, micro) : outputs;
    });
  }

  abstract backward(
    stage: number,
    outputs: readonly Tensor[],
    gradients: readonly Tensor[] | null,
  ): void;

  abstract inputGradients(
    at: PipelinePosition,
    outputs: readonly Tensor[],
    gradients: readonly Tensor[] | null,
  ): void;

  abstract weightGradients(at: PipelinePosition): void;

  abstract reduce(stage: number): void;

  finish(stage: number, micro: number): void {
    this.scopes.get(`${stage} ${micro}`)?.release();
    this.scopes.delete(`${stage} ${micro}`);
  }

  /** Frees the tensors of a failed batch. */
  dispose(): void {
    for (const scope of this.scopes.values()) scope.release();
    this.scopes.clear();
  }

  private lossOf(outputs: Values, micro: number): Tensor {
    const [, labels] = required(this.batches[micro]);
    const loss = this.pipeline.model.pipelineLoss(outputs, labels);
    requireLoss('the loss of a pipeline', loss);
    return loss;
  }
}

/** Runs stages in training. Gradients add up in the units, as with engine.backward(). */
export class TrainingWorker extends Worker {
  readonly kind = 'train';
  /**
   * On a rank without losses: the stage with backwards that count as micro-batches. Null on other
   * ranks.
   */
  private readonly countingStage: number | null;
  /** By stage and micro-batch: weight gradients that are computed later. */
  private readonly deferred = new Map<string, DeferredGradients>();

  constructor(parts: Parts, pipeline: Pipeline, batches: readonly PipelineBatch[]) {
    super(parts, pipeline, batches);
    const { ownStages, stages } = pipeline;
    this.countingStage = ownStages.includes(stages - 1) ? null : (ownStages[0] ?? null);
  }

  override forward(stage: number, micro: number, values: Values): Values {
    return this.parts.watch.time('forward', () => super.forward(stage, micro, values));
  }

  backward(stage: number, outputs: readonly Tensor[], gradients: readonly Tensor[] | null): void {
    const { gradients: collector, stepDecisions, watch } = this.parts;
    watch.time('backward', () =>
      collector.run(stepDecisions.lossScale, () => this.propagate(stage, outputs, gradients)),
    );
  }

  /**
   * Computes the gradients of the inputs. Matrix products of weight gradients are deferred to
   * weightGradients(). Gradients of norms and biases are computed here.
   */
  inputGradients(
    at: PipelinePosition,
    outputs: readonly Tensor[],
    gradients: readonly Tensor[] | null,
  ): void {
    const { gradients: collector, stepDecisions, watch } = this.parts;
    const pending = new DeferredGradients();
    this.deferred.set(`${at.stage} ${at.micro}`, pending);
    watch.time('backward', () =>
      collector.runPart(stepDecisions.lossScale, () =>
        deferGradients(pending, () => this.propagate(at.stage, outputs, gradients)),
      ),
    );
  }

  weightGradients({ stage, micro }: PipelinePosition): void {
    const { gradients: collector, stepDecisions, watch } = this.parts;
    const pending = required(this.deferred.get(`${stage} ${micro}`));
    this.deferred.delete(`${stage} ${micro}`);
    watch.time('backward', () => collector.run(stepDecisions.lossScale, () => pending.run()));
  }

  override dispose(): void {
    for (const pending of this.deferred.values()) pending.drop();
    this.deferred.clear();
    super.dispose();
  }

  private propagate(
    stage: number,
    outputs: readonly Tensor[],
    gradients: readonly Tensor[] | null,
  ): void {
    const { stepDecisions, batch, control } = this.parts;
    if (gradients) {
      if (outputs.length > 0) backward(outputs, gradients); // Empty: the layers below are frozen.
      if (stage === this.countingStage) control.addUnknownLoss();
      return;
    }
    const loss = required(outputs[0]);
    runBackward(loss, stepDecisions.lossScale / batch.accumulation.divisor);
    control.addLoss(loss);
  }

  /**
   * Hands over gradients before the batch ends. With several stages on a rank, the update hands
   * over all units together.
   */
  reduce(): void {
    const { units, zeroGroups, gradients } = this.parts;
    if (this.pipeline.ownStages.length > 1) return;
    // Shared units wait for other stages, which may wait for this stage.
    gradients.conclude(units.filter((unit) => !zeroGroups.ofUnit(unit).spansStages));
  }
}

/** Runs stages in evaluation, and sums the losses. */
export class EvaluatingWorker extends Worker {
  readonly kind = 'eval';
  /**
   * Sum of losses over the micro-batches. Null on ranks without the last stage. The caller owns it.
   */
  sum: Tensor | null = null;

  override forward(stage: number, micro: number, values: Values): Values {
    return noGrad(() => {
      const outputs = super.forward(stage, micro, values);
      if (stage === this.pipeline.stages - 1) this.add(outputs as Tensor);
      return outputs;
    });
  }

  backward(): void {}

  inputGradients(): void {}

  weightGradients(): void {}

  reduce(): void {}

  private add(loss: Tensor): void {
    if (this.sum)
      kernels.binary({ a: this.sum, b: loss, out: this.sum, op: 'add', accumulate: false });
    else this.sum = within(null, () => loss.clone());
  }
}
