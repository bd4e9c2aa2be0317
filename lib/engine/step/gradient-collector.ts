// Collects the gradients of a step: the running backward, the scale of the gradients, and
// completion.

import type { Module } from '../../nn/module.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import { backward, held, Tensor } from '../../tensor/index.js';
import type { OptimizerState } from '../../zero/optimizer-state.js';
import type { ZeroStages } from '../../zero/stage.js';
import type { Unit, UnitListener, WeightUnit } from '../../zero/unit.js';
import {
  foreignLossError,
  lateZeroGradError,
  misuseError,
  mixedScalesError,
  unfinishedError,
  unscaledError,
} from '../engine-errors.js';
import type { Ranks } from '../ranks.js';
import type { StepWatch } from '../watch/step-watch.js';
import { type BatchSizes, MicroBatches } from './batch-sizes.js';
import type { StepControl } from './step-control.js';
import type { Progress, StepDecisions, UpdatePlanner } from './step-decisions.js';

/**
 * A running backward: engine.backward(), which reduces units as they complete, or loss.backward()
 * until its epilogue.
 */
type Pass = 'engine' | 'direct';

interface CollectorParts {
  /** The model, for error messages. */
  module: Module;
  ranks: Pick<Ranks, 'shardGroup'>;
  units: readonly Unit[];
  stage: ZeroStages;
  control: StepControl;
  state: OptimizerState;
  batch: BatchSizes;
  progress: Progress;
  planner: UpdatePlanner;
  stepDecisions: StepDecisions;
  watch: StepWatch;
}

/** Collectors that received gradients in the running engine.backward(); null outside of one. */
let reachedCollectors: Set<GradientCollector> | null = null;

export class GradientCollector implements UnitListener {
  private readonly micros: MicroBatches;
  private pass: Pass | null = null;
  /** The factor of this rank's gradients; null before the step's first backward. */
  private gradientFactor: number | null = null;
  /** The factor of the next loss.backward(); null if unknown. */
  private nextFactor: number | null = null;
  /** Units with gradients of this step that were handed over before all units were complete. */
  private readonly handedOver = new Set<Unit>();
  /** Whether the gradients of this step are complete and handed over. */
  private areHandedOver = false;
  private hasWarned = false;
  private readonly listeners = new Set<() => void>();

  constructor(private readonly parts: CollectorParts) {
    this.micros = new MicroBatches(parts.batch);
    for (const unit of parts.units) unit.gradient.reportTo(this);
  }

  get inBackward(): boolean {
    return this.pass !== null;
  }

  /**
   * Calls `body` when a backward has ended or failed. Returns a function that removes the listener.
   */
  onEnd(body: () => void): () => void {
    this.listeners.add(body);
    return () => this.listeners.delete(body);
  }

  /** See MicroBatches.atBoundary. */
  get atBoundary(): boolean {
    return this.micros.atBoundary;
  }

  /** Whether the gradients of this step are reduced and wait for step(). */
  get isDecided(): boolean {
    return this.areHandedOver;
  }

  /** The factor of this step's gradients after the reduction. */
  get gradientScale(): number {
    return required(this.gradientFactor) * this.parts.stage.gradientFactor;
  }

  /**
   * Runs `body`, the backward of a loss with the factor `lossScale` / divisor. Throws DS_AUTOGRAD
   * if all gradients belong to other engines.
   */
  run(lossScale: number, body: () => void): void {
    this.begin('engine', lossScale);
    this.endPass(() => this.requireOwn(collectReached(body)));
  }

  /** Runs a part of a backward that a later run() ends. It does not count as a backward. */
  runPart(lossScale: number, body: () => void): void {
    this.begin('engine', lossScale);
    this.endPass(body, () => this.pause());
  }

  /** Announces that the next loss.backward() has the factor `factor`. */
  expectScaled(factor: number): void {
    this.nextFactor = factor;
  }

  /**
   * Ends loss.backward(), and hands over the gradients of all units. Without any gradient it counts
   * as a backward with zeros. Until this call, full gradients, and at stage 3 gathered weights,
   * stay in memory.
   *
   * Units are not handed over as they complete, for these reasons:
   *
   * - Only this call marks the last backward of the micro-batch. A new forward may still add a
   *   loss.
   * - A hand-over cannot be undone. At the boundary, stages 0 and 1 replace this rank's sum by
   *   the sum of all ranks. Offload adds it to the norm and copies it.
   * - Later losses cannot be added. Stages 2 and 3 would sum them after the ranks, with other
   *   bits. A rank with one loss fewer would miss a collective.
   */
  endDirect(): void {
    if (!this.pass) this.beginDirect();
    try {
      this.endPass(() => {});
    } finally {
      this.nextFactor = null;
    }
  }

  /** Completes the gradients before an update. Returns false before the accumulation boundary. */
  complete(): boolean {
    if (this.pass === 'direct') this.endDirect();
    if (!this.micros.step(this.gradientFactor === null)) return false;
    if (this.areHandedOver) return true;
    const { units, stage, control } = this.parts;
    this.conclude(units);
    stage.flush();
    control.decide(this.gradientScale);
    this.areHandedOver = true;
    return true;
  }

  /**
   * Hands over `units` to the data ranks: no later backward of this step adds to their gradients.
   */
  conclude(units: readonly Unit[]): void {
    const { stage, control, state, planner } = this.parts;
    if (this.handedOver.size === 0) state.prepare(planner.plan(this.gradientScale));
    for (const unit of [...units].reverse()) {
      if (this.handedOver.has(unit)) continue;
      this.handedOver.add(unit);
      stage.conclude(unit, control);
    }
  }

  /** Begins the next step after an update. */
  restart(): void {
    this.parts.progress.globalSamples += this.micros.samples;
    this.reset();
  }

  private reset(): void {
    this.micros.reset();
    this.gradientFactor = null;
    this.handedOver.clear();
    this.areHandedOver = false;
  }

  /** Throws DS_AUTOGRAD if gradients were collected since the last step. */
  requireNone(op: string): void {
    if (this.micros.count > 0) throw misuseError(op, 'no gradients of an unfinished step', 'some');
  }

  /**
   * Drops the gradients since the last step(). Throws DS_AUTOGRAD for gradients of earlier step()
   * calls.
   */
  drop(): void {
    this.requireUnreduced('engine.zeroGrad');
    if (this.micros.hasStepped) throw lateZeroGradError();
    this.forget();
  }

  /**
   * Drops the gradients since the last step(); micro-batches still count: see
   * EngineOptimizer.zeroGrad. Warns once if micro-batches lose gradients.
   */
  zero(): void {
    this.requireUnreduced('optimizer.zeroGrad');
    if (this.micros.count > 0) this.warnOfZero(this.micros.count);
    this.dropGradients();
  }

  private requireUnreduced(op: string): void {
    if (!this.areHandedOver && this.handedOver.size === 0) return;
    throw misuseError(op, 'step() first', 'gradients that wait for step()');
  }

  private warnOfZero(micros: number): void {
    if (this.hasWarned) return;
    this.hasWarned = true;
    const { divisor } = this.parts.batch.accumulation;
    const text = `optimizer.zeroGrad() drops the gradients of ${micros} of ${divisor} micro-batches of a step. Call it after a step() that updates.`;
    process.emitWarning(text, { type: 'DsWarning', code: 'DS_AUTOGRAD' });
  }

  /**
   * Drops the gradients of this step, including those handed over, because the engine continues
   * from another state.
   */
  discard(): void {
    this.nextFactor = null;
    this.abandon();
  }

  /** Restarts the step after a failed backward. Its collectives end first. */
  private abandon(): void {
    try {
      this.parts.stage.flush();
    } finally {
      this.forget();
    }
  }

  private forget(): void {
    this.dropGradients();
    this.reset();
  }

  private dropGradients(): void {
    const { units, stage, control } = this.parts;
    for (const partition of stage.partitions) partition.dropGrad();
    for (const unit of units) {
      unit.gradient.forget();
      stage.release(unit);
    }
    for (const { unit } of stage.frozen) stage.release(unit);
    control.dropLosses();
    this.pass = null;
  }

  noSync<Result>(body: () => Result): Result {
    return this.micros.noSync(body);
  }

  /**
   * A backward without gradients counts as zeros. A backward with gradients only for other engines
   * ends the steps of those engines.
   */
  private requireOwn(reached: ReadonlySet<GradientCollector>): void {
    if (reached.size === 0 || reached.has(this)) return;
    for (const other of reached) other.discard();
    throw foreignLossError([...reached].map(({ parts }) => parts.module));
  }

  /** Begins a loss.backward() at its first gradient. */
  private beginDirect(): void {
    const { lossScale } = this.parts.stepDecisions;
    if (lossScale !== 1 && this.nextFactor === null) throw unscaledError(lossScale);
    this.begin('direct', (this.nextFactor ?? 1) * this.parts.batch.accumulation.divisor);
  }

  private begin(pass: Pass, gradientFactor: number): void {
    if (this.pass) throw unfinishedError(this.pass === 'direct');
    this.micros.requireAnother();
    if (this.gradientFactor !== null && this.gradientFactor !== gradientFactor)
      throw mixedScalesError(this.gradientFactor, gradientFactor);
    const { units, state, planner, stage } = this.parts;
    const plan = this.micros.completesStep
      ? planner.plan(gradientFactor * stage.gradientFactor)
      : null;
    this.micros.begin();
    this.gradientFactor = gradientFactor;
    this.pass = pass;
    if (plan) state.prepare(plan);
    for (const unit of units) unit.gradient.expect({ streaming: pass === 'engine' });
  }

  /** Ends the pass after `body`; abandons it if either throws. */
  private endPass(body: () => void, end = () => this.finish()): void {
    try {
      body();
      end();
    } catch (error) {
      this.abandon();
      throw error;
    } finally {
      this.pass = null;
      for (const listener of this.listeners) listener();
    }
  }

  /** Adds up the gradients so far, and releases weights. */
  private pause(): void {
    const { units, stage } = this.parts;
    for (const unit of [...units].reverse()) unit.gradient.finish();
    for (const { unit } of [...stage.partitions, ...stage.frozen]) stage.release(unit);
    this.runReduction(() => stage.flush());
  }

  private finish(): void {
    this.pause();
    const { completesStep } = this.micros;
    if (completesStep) this.parts.control.decide(this.gradientScale);
    this.areHandedOver = completesStep;
    this.micros.end();
  }

  onGradient(): void {
    reachedCollectors?.add(this);
  }

  /** Handles a gradient outside of a pass of this engine: begins a loss.backward(). */
  onUnexpected(): void {
    if (!this.pass) this.beginDirect();
  }

  onComplete(unit: WeightUnit): void {
    const { stage, control } = this.parts;
    // A weight that requires no gradient is used until the end of backward.
    if (unit.parameters.every(({ parameter }) => parameter.requiresGrad)) stage.release(unit);
    if (this.micros.isLocal) return;
    const receiver = this.micros.completesStep ? control : null;
    this.runReduction(() => stage.reduce(unit, receiver));
  }

  /** Records the time of a reduction over the ranks. It counts only inside engine.backward(). */
  private runReduction(body: () => void): void {
    const { ranks, watch } = this.parts;
    if (this.pass === 'engine' && ranks.shardGroup.size > 1) watch.time('reduce', body);
    else body();
  }
}

/** Returns the engines that receive gradients from the backward in `body`. */
function collectReached(body: () => void): ReadonlySet<GradientCollector> {
  const outer = reachedCollectors;
  const reached = new Set<GradientCollector>();
  reachedCollectors = reached;
  try {
    body();
  } finally {
    reachedCollectors = outer;
  }
  return reached;
}

/** Runs the backward of `loss` times `factor`: adds gradients to the leaves below it. */
export function runBackward(loss: Tensor, factor: number): void {
  const seed = held(() => Tensor.emptyLike(loss));
  kernels.fill({ out: seed, value: factor });
  try {
    backward(loss, [seed]);
  } finally {
    seed.release();
  }
}
