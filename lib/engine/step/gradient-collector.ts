// GradientCollector: runs the backwards of a step, and hands over the gradients of complete units
// to be reduced.

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
 * The kind of the running backward. "engine": engine.backward(), which reduces units as they
 * complete. "direct": loss.backward(), from its first gradient until the epilogue.
 */
type Pass = 'engine' | 'direct';

interface CollectorParts {
  /** The model, for errors. */
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

/** The collectors that got gradients in the running engine.backward(). Null outside of it. */
let reachedCollectors: Set<GradientCollector> | null = null;

export class GradientCollector implements UnitListener {
  private readonly micros: MicroBatches;
  private pass: Pass | null = null;
  /** Factor of this rank's gradients. Null before the first backward of the step. */
  private gradientFactor: number | null = null;
  /** Factor of the next loss.backward(). Null if unknown. */
  private nextFactor: number | null = null;
  /** Units that handed over their gradients of this step before all units were complete. */
  private readonly handedOver = new Set<Unit>();
  /** Whether all gradients of this step are complete and handed over. */
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
   * Adds a listener that runs when a backward has ended or failed. Returns a function that removes
   * it.
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
   * if only other engines get gradients.
   */
  run(lossScale: number, body: () => void): void {
    this.begin('engine', lossScale);
    this.endPass(() => this.requireOwn(collectReached(body)));
  }

  /** Runs a part of a backward, which a later run() completes. It does not count as a backward. */
  runPart(lossScale: number, body: () => void): void {
    this.begin('engine', lossScale);
    this.endPass(body, () => this.pause());
  }

  /** States that the loss of the next loss.backward() is multiplied by `factor`. */
  expectScaled(factor: number): void {
    this.nextFactor = factor;
  }

  /**
   * Ends loss.backward(), and hands over the gradients of all units. Without any gradient, it
   * counts as a backward with zeros. Until this call, full gradients stay in memory, and at stage 3
   * the gathered weights too.
   *
   * Units are not handed over as they complete, for these reasons:
   *
   * - Only this call marks the last backward of the micro-batch. A new forward may still add a
   *   loss.
   * - A hand-over cannot be undone. At the boundary, stages 0 and 1 replace this rank's sum by the
   *   sum of all ranks. Offload adds it to the norm and copies it.
   * - Later losses could not be added with the same bits: stages 2 and 3 would sum them after the
   *   sum over ranks. A rank with one loss fewer would miss a collective.
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
   * Hands over the gradients of `units` to the data ranks. No later backward of this step may add
   * to them.
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

  /** Begins the next step, after an update. */
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

  /** Throws DS_AUTOGRAD if a backward has run since the last step. */
  requireNone(op: string): void {
    if (this.micros.count > 0) throw misuseError(op, 'no gradients of an unfinished step', 'some');
  }

  /**
   * Drops the gradients since the last step(). Throws DS_AUTOGRAD if gradients wait for step(), or
   * if step() was already called for earlier micro-batches of this update.
   */
  drop(): void {
    this.requireUnreduced('engine.zeroGrad');
    if (this.micros.hasStepped) throw lateZeroGradError();
    this.forget();
  }

  /**
   * Drops the gradients since the last step(). The micro-batches still count: see
   * EngineOptimizer.zeroGrad(). Warns once if micro-batches lose gradients.
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
   * Drops the gradients of this step, including gradients that were handed over. Called when the
   * engine continues from another state, for example after a load.
   */
  discard(): void {
    this.nextFactor = null;
    this.abandon();
  }

  /** Restarts the step after a failed backward. First, its running collectives end. */
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
   * Throws DS_AUTOGRAD if the backward gave gradients to other engines only. It also ends the steps
   * of these engines. A backward without any gradient is allowed and counts as zeros.
   */
  private requireOwn(reached: ReadonlySet<GradientCollector>): void {
    if (reached.size === 0 || reached.has(this)) return;
    for (const other of reached) other.discard();
    throw foreignLossError([...reached].map(({ parts }) => parts.module));
  }

  /** Begins a loss.backward(), at its first gradient. */
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

  /** Runs `body`, then `end`, and ends the pass. If either throws, abandons the step. */
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

  /** Adds up the gradients so far, and releases gathered weights. */
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

  /** Called for a gradient outside of a pass of this engine: begins a loss.backward(). */
  onUnexpected(): void {
    if (!this.pass) this.beginDirect();
  }

  onComplete(unit: WeightUnit): void {
    const { stage, control } = this.parts;
    // If a parameter requires no gradient, backward may read it until its end.
    if (unit.parameters.every(({ parameter }) => parameter.requiresGrad)) stage.release(unit);
    if (this.micros.isLocal) return;
    const receiver = this.micros.completesStep ? control : null;
    this.runReduction(() => stage.reduce(unit, receiver));
  }

  /** Runs a reduction over the ranks, and measures its time inside engine.backward(). */
  private runReduction(body: () => void): void {
    const { ranks, watch } = this.parts;
    if (this.pass === 'engine' && ranks.shardGroup.size > 1) watch.time('reduce', body);
    else body();
  }
}

/** Runs `body`, a backward. Returns the collectors that got gradients. */
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

/** Runs the backward of `loss` times `factor`, which adds gradients to the leaves. */
export function runBackward(loss: Tensor, factor: number): void {
  const seed = held(() => Tensor.emptyLike(loss));
  kernels.fill({ out: seed, value: factor });
  try {
    backward(loss, [seed]);
  } finally {
    seed.release();
  }
}
