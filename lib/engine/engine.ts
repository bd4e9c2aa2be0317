// The training engine: forward(), backward(), step(), and the calls that save, load and move state.

import { requireEnded, requireNoSurplus } from '../runtime/require-type.js';
import { TensorGrowth } from '../tensor/growth.js';
import { Scope, sharingSamples, type Tensor } from '../tensor/index.js';
import { scopeInto } from '../tensor/scope.js';
import { requireFactor, requireLoss } from './calls.js';
import type { EngineParts } from './engine-parts.js';
import { EngineReports } from './engine-reports.js';
import { gatheredParameters } from './parameters/gathered-parameters.js';
import {
  type OffloadedBytes,
  OffloadedStates,
  type OffloadStatesOptions,
  type ReloadStatesOptions,
} from './parameters/offloaded-states.js';
import { claimParameters, disownParameters } from './parameters/owned-parameters.js';
import {
  Checkpointer,
  type ExportWeightsOptions,
  type SaveOptions,
} from './saving/checkpointer.js';
import type { LoadedCheckpoint, LoadOptions } from './saving/restore.js';
import { runBackward } from './step/gradient-collector.js';
import { sampleShareOf } from './step/inputs.js';
import { type EngineStepOptions, resync } from './step/step-decisions.js';
import { type RunWatch, type WatchOptions, watchRun } from './watch/run-watch.js';
import { untimed } from './watch/step-watch.js';

/**
 * Trains a model by forward(), backward() and step(). initialize() creates it. The tensors that
 * forward() returns live until the first forward() of the next step; keep() makes them live longer.
 * If a gradient is not finite, the device skips the update. The host reads this decision at the
 * next backward().
 */
export class Engine extends EngineReports {
  private readonly checkpointer: Checkpointer;
  private readonly offloaded: OffloadedStates;
  /** Owns the results of forward() in this step. */
  private readonly results = new Scope();
  private readonly growth = new TensorGrowth();
  private hasStepped = false;
  /** Whether the last step() was at the accumulation boundary. */
  private hasUpdated = false;

  /** @internal Takes ownership of the parts. Users call initialize(). */
  constructor(parts: EngineParts) {
    super(parts);
    this.checkpointer = new Checkpointer(this, parts.meeting, this.calls);
    claimParameters(this);
    parts.owned.defer(() => disownParameters(this));
    parts.owned.defer(() => this.results.release());
    parts.owned.own(this.growth);
    parts.owned.defer(() => this.checkpointer.close());
    parts.owned.defer(() => parts.state.synchronize());
    this.offloaded = parts.owned.own(new OffloadedStates(this, this.calls));
  }

  /**
   * Runs the model. Dim 0 of the first input tensor is the number of samples that this rank has in
   * the micro-batch. With several data ranks, dropout masks equal the masks of one rank with the
   * whole batch. Throws the errors of the model, DS_AUTOGRAD after destroy(), and DS_ARGUMENT if
   * the model returns a promise.
   */
  forward<Result = Tensor>(...inputs: unknown[]): Result {
    this.calls.requireReadable('engine.forward');
    return this.calls.pass(() => this.pass(inputs)) as Result;
  }

  private pass(inputs: unknown[]): unknown {
    const { module, results } = this;
    const { hooks, inputs: cast, watch, control } = this.parts;
    if (!module.training) resync(this.parts);
    if (this.hasStepped || !module.training) results.release();
    this.hasStepped = false;
    hooks.reset();
    control.addInputs(module.training ? 'inputs' : 'evaluated inputs', inputs);
    const share = sampleShareOf(inputs, this.parts.ranks.dataGroup);
    const result = (module.training ? watch : untimed).time('forward', () =>
      scopeInto(results, () => sharingSamples(share, () => module.call(...cast(inputs)))),
    );
    return requireEnded('engine.forward', result, {
      consequence: 'its tensors would be freed while it still runs',
      hint: 'Take async off the forward() of the model, and await before the call.',
    });
  }

  /**
   * Computes the gradients of this micro-batch, scaled by the loss scale and 1 / accumulation
   * steps, and adds them to the gradients of the step. Throws DS_NONFINITE if the loss of the
   * previous step was not finite and the loss scale cannot shrink further.
   */
  backward(loss: Tensor): void;
  backward(loss: Tensor, ...surplus: readonly unknown[]): void {
    requireNoSurplus('engine.backward', surplus);
    this.calls.requireBackward('engine.backward');
    requireLoss('engine.backward', loss);
    const { gradients, control, batch, watch } = this.parts;
    this.calls.pass(() => {
      const { lossScale } = this.parts.stepDecisions;
      watch.time('backward', () =>
        gradients.run(lossScale, () => {
          runBackward(loss, lossScale / batch.accumulation.divisor);
          control.addLoss(loss);
        }),
      );
    });
  }

  /**
   * Updates the weights at the accumulation boundary. Before the boundary, it does nothing. The
   * update runs asynchronously: forward(), module.stateDict(), withFullWeights() and saves wait for
   * it. Call synchronize() before you read a parameter in another way.
   */
  step(given?: EngineStepOptions): void;
  step(given: EngineStepOptions = {}, ...surplus: readonly unknown[]): void {
    requireNoSurplus('engine.step', surplus);
    this.calls.requireChangeable('engine.step');
    const metrics = this.parts.planner.readMetric(given);
    this.calls.step(() => this.update());
    if (metrics !== undefined && this.hasUpdated) this.lrScheduler.observe('engine.step', metrics);
  }

  /** @internal Updates the weights if the gradients of the step are complete. */
  protected update(): void {
    const { gradients, planner, state, control, stage, stepDecisions, watch } = this.parts;
    this.hasUpdated = false;
    if (!gradients.complete()) return;
    const plan = planner.plan(gradients.gradientScale);
    watch.time('step', () => {
      state.update(control.control, plan, stage);
      stage.dispatch();
    });
    gradients.restart();
    stepDecisions.markStep();
    this.growth.endStep();
    this.hasStepped = true;
    this.hasUpdated = true;
  }

  /**
   * Returns the loss times the loss scale, for loss.backward() in fp16. Records the loss for
   * monitors. For a loss of several engines, use scaleJointLoss().
   */
  scale(loss: Tensor): Tensor {
    requireLoss('engine.scale', loss);
    const { lossScale } = this.parts.stepDecisions;
    this.expectScaled(lossScale);
    this.parts.control.addLoss(loss);
    return lossScale === 1 ? loss : loss.mul(lossScale);
  }

  /** States that the loss of the next loss.backward() is multiplied by `factor`. */
  expectScaled(factor: number): void {
    requireFactor('engine.expectScaled', factor);
    this.parts.gradients.expectScaled(factor);
  }

  /**
   * Ends a micro-batch that used loss.backward(), with any number of losses and engines. step()
   * calls it if the caller did not. The gradients are reduced here, not during backward: see
   * GradientCollector.endDirect.
   */
  backwardEpilogue(): void {
    this.calls.step(() => this.parts.gradients.endDirect());
  }

  /**
   * Runs `body`. Backwards in it add gradients, but do not count as micro-batches, and no gradients
   * are reduced. `body` must not call step(). Source: DeepSpeed's no_sync(); here it works at every
   * stage.
   */
  noSync<Result>(body: () => Result): Result {
    return this.parts.gradients.noSync(body);
  }

  /**
   * Drops the gradients since the last step(). An update drops them too. Throws DS_AUTOGRAD between
   * the micro-batches of a step, because it would drop their gradients.
   */
  zeroGrad(): void {
    this.parts.gradients.drop();
  }

  /**
   * Runs `body` with whole parameters on this rank. All ranks must call it: see
   * gatheredParameters().
   */
  withFullWeights<Result>(body: () => Result): Result {
    return gatheredParameters(this, {}, body);
  }

  /**
   * Puts the model into training mode: dropout is active, and forward() saves tensors for backward.
   */
  train(): this {
    this.module.train();
    return this;
  }

  /** Puts the model into evaluation mode. Under noGrad(), forward() saves nothing for backward. */
  eval(): this {
    this.module.eval();
    return this;
  }

  /** Returns whether the last step() changed the weights. Waits for the backward of the step. */
  wasStepApplied(): boolean {
    return this.hasUpdated && (this.parts.stepDecisions.last?.isApplied ?? false);
  }

  /**
   * Changes the global batch size from the next step on. The micro-batch size stays, and the number
   * of accumulation steps changes. Throws DS_ARGUMENT unless `train` is a multiple of the
   * micro-batch size over all ranks. Source: DeepSpeed's set_train_batch_size.
   */
  setTrainBatchSize(train: number): void {
    this.parts.gradients.requireNone('engine.setTrainBatchSize');
    this.parts.batch.setTrain(train);
  }

  /** Changes the micro-batch size from the next step on. The number of accumulation steps stays. */
  setTrainMicroBatchSize(microPerDevice: number): void {
    this.parts.gradients.requireNone('engine.setTrainMicroBatchSize');
    this.parts.batch.setMicro(microPerDevice);
  }

  /**
   * Sets the schedule of type "custom": a function from the global step (first: 1) to tokens. It
   * must be equal on every rank. Throws DS_CONFIG if the configuration has another type.
   */
  setCustomCurriculumLearningSchedule(schedule: (step: number) => number): void {
    this.parts.curriculum.setSchedule(schedule);
  }

  /**
   * Records the run, and serves a local page that shows it. All ranks must call it: see watchRun().
   */
  watch(options: WatchOptions = {}): Promise<RunWatch> {
    this.calls.requireOpen('engine.watch');
    return watchRun(this, options);
  }

  /**
   * Saves a checkpoint. All ranks must call it. See Checkpointer.save(). Source: DeepSpeed's
   * save_checkpoint.
   */
  saveCheckpoint(dir: string, options: SaveOptions = {}): Promise<string> {
    return this.checkpointer.save(dir, options);
  }

  /**
   * Loads a checkpoint. All ranks must call it. See restoreEngine(). Source: DeepSpeed's
   * load_checkpoint.
   */
  loadCheckpoint(dir: string, options: LoadOptions = {}): Promise<LoadedCheckpoint> {
    return this.checkpointer.load(dir, options);
  }

  /**
   * Writes the 16-bit weights. All ranks must call it. See Checkpointer.exportWeights(). Source:
   * DeepSpeed's save_16bit_model.
   */
  save16bitModel(
    dir: string,
    file = 'model.safetensors',
    options: ExportWeightsOptions = {},
  ): Promise<string> {
    return this.checkpointer.exportWeights(dir, file, options);
  }

  /**
   * Resolves after the last asynchronous save. Rejects if it failed. See Checkpointer.whenDone().
   */
  checkpointDone(): Promise<string | null> {
    return this.checkpointer.whenDone();
  }

  /**
   * Waits until the last update has written the weights of this rank, and reads its step decision.
   * Afterwards, parameters have the updated values (at stage 3, inside withFullWeights()). A rank
   * may call it alone if all ranks have called step(). If a rank never calls step(), it throws
   * DS_COMM after the timeout of the job.
   */
  synchronize(): void {
    const { stepDecisions, state, hooks, watch } = this.parts;
    stepDecisions.take();
    state.synchronize();
    hooks.awaitWeights();
    this.device.compute.synchronize();
    watch.reportTimes();
  }

  /**
   * Moves states to host memory. Returns the freed bytes by state. Until reloadStates(), calls that
   * need these states throw DS_RELEASED. Throws DS_CONFIG if the configuration already offloads
   * states, DS_ARGUMENT for an invalid option. Source: DeepSpeed's offload_states.
   */
  offloadStates(options?: OffloadStatesOptions): OffloadedBytes {
    return this.offloaded.offload(options);
  }

  /**
   * Moves the states back, with equal bits. If it throws DS_OUT_OF_MEMORY, free memory and call it
   * again.
   */
  reloadStates(options?: ReloadStatesOptions): void {
    this.offloaded.reload(options);
  }

  /**
   * Frees the memory of the engine. The model keeps its weights, unless they are sharded (stage 3
   * on several ranks) or offloaded by offload_param.
   */
  destroy(): void {
    this.calls.close(() => this.parts.owned.release());
  }
}
