// Collects the gradients of a step: who runs the backward, what factor they carry, and when they
// are complete.
import type { Module } from '../../nn/module.js';
import { requireType } from '../../runtime/require-type.js';
import { requireEnded } from '../../runtime/synchronous.js';
import type { OptimizerState } from '../../zero/optimizer-state.js';
import type { Unit, UnitListener } from '../../zero/unit.js';
import type { ZeroStages } from '../../zero/zero-stage.js';
import {
  foreign,
  misuse,
  mixedScales,
  stepMissing,
  unfinished,
  unscaled,
  zeroedBetween,
} from '../engine-errors.js';
import type { Ranks } from '../ranks.js';
import type { StepWatch } from '../watch/step-watch.js';
import type { BatchSizes } from './batch-sizes.js';
import type { Progress } from './progress.js';
import type { StepControl } from './step-control.js';
import type { StepDecisions } from './step-decisions.js';
import type { UpdatePlanner } from './update-planner.js';

/**
 * A backward under way: engine.backward(), which streams units, or loss.backward() until its
 * epilogue.
 */
type Pass = 'engine' | 'direct';

export interface CollectorParts {
  /** The model, of which errors tell. */
  module: Module;
  ranks: Pick<Ranks, 'shards'>;
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

/** Those to whose units the engine.backward() under way has brought gradients; null outside. */
let reachedNow: Set<GradientCollector> | null = null;

export class GradientCollector implements UnitListener {
  /** Backwards since the last step, those inside noSync() aside. */
  private microSteps = 0;
  /** One of them has ended, and its step() has not come yet. */
  private awaitsStep = false;
  /** step() was called after one of them, and they were too few for an update. */
  private hasStepped = false;
  /** Samples of all data ranks in the backwards since the last step. */
  private samples = 0;
  private pass: Pass | null = null;
  private inNoSync = false;
  /** The factor that this rank's gradients carry; null before the step's first backward. */
  private carried: number | null = null;
  /** What the loss of the coming loss.backward() was multiplied with; null when nobody said. */
  private applied: number | null = null;
  /** Units whose gradients of this step are handed over, before others' are complete. */
  private readonly concluded = new Set<Unit>();
  /** The gradients of this step are complete and handed over. */
  private decided = false;
  private hasWarned = false;
  private readonly listeners = new Set<() => void>();

  constructor(private readonly parts: CollectorParts) {
    for (const unit of parts.units) unit.reportTo(this);
  }

  get inBackward(): boolean {
    return this.pass !== null;
  }

  /** Calls `body` when a backward has ended, or was given up. Returns a function that ends that. */
  whenEnded(body: () => void): () => void {
    this.listeners.add(body);
    return () => this.listeners.delete(body);
  }

  /** Whether the coming or present backward completes the gradients of a step. */
  get boundary(): boolean {
    return !this.inNoSync && this.parts.batch.accumulation.completes(this.microSteps);
  }

  /**
   * Whether the backward whose step() has not come yet, or else the coming one, completes the
   * gradients of a step. Source: DeepSpeed, whose step() counts micro-batches.
   */
  get atBoundary(): boolean {
    const done = this.awaitsStep ? this.microSteps - 1 : this.microSteps;
    return !this.inNoSync && this.parts.batch.accumulation.completes(done);
  }

  /** Whether this step's gradients are reduced and wait for step(). */
  get isDecided(): boolean {
    return this.decided;
  }

  /** The factor that this step's gradients carry once they are reduced. */
  get gradientScale(): number {
    return (this.carried as number) * this.parts.stage.gradientFactor;
  }

  /**
   * Runs `body`, which runs the backward of a loss that carries `lossScale` / divisor. Throws
   * DS_AUTOGRAD where all of its gradients were those of other engines.
   */
  run(lossScale: number, body: () => void): void {
    this.begin('engine', lossScale);
    this.endPass(() => this.requireOwn(reachedBy(body)));
  }

  /** The same of a part of a backward, which another run() ends: it does not count. */
  runPart(lossScale: number, body: () => void): void {
    this.begin('engine', lossScale);
    this.endPass(body, () => this.pause());
  }

  /** The loss of the coming loss.backward() carries `factor`. */
  expectScaled(factor: number): void {
    this.applied = factor;
  }

  /**
   * Ends what loss.backward() has begun; a pass without any gradient counts as zeros. Units are
   * handed over here and not as they complete, since that a backward was the micro-batch's last is
   * known at this call alone: until then a new forward may add a loss. What was handed over cannot
   * be taken back: at the boundary stages 0 and 1 have replaced the sum of this rank by that of all
   * ranks, and offload has counted it in the norm and copied it. Nor can it be added to without
   * changing what is promised: stages 2 and 3 would sum the losses after the ranks, in other bits
   * than one loss has, and a rank whose data ask for one loss fewer would miss a collective. Until
   * here full gradients, and at stage 3 gathered weights, stay in memory.
   */
  endDirect(): void {
    if (!this.pass) this.beginDirect();
    try {
      this.endPass(() => {});
    } finally {
      this.applied = null;
    }
  }

  /**
   * Before an update: completes the gradients if need be. False when the boundary is not reached.
   */
  complete(): boolean {
    if (this.pass === 'direct') this.endDirect();
    if (this.inNoSync) throw misuse('engine.step', 'step() outside noSync()', 'step() inside it');
    if (this.microSteps === 0) {
      const got =
        this.carried === null
          ? 'no gradient since the last step'
          : 'those of noSync() alone, which do not count';
      throw misuse('engine.step', 'backward() before step()', got);
    }
    this.awaitsStep = false;
    if (!this.parts.batch.accumulation.applies(this.microSteps)) {
      this.hasStepped = true;
      return false;
    }
    if (this.decided) return true;
    const { units, stage, control } = this.parts;
    this.conclude(units);
    stage.flush();
    control.decide(this.gradientScale);
    this.decided = true;
    return true;
  }

  /**
   * No backward of this step adds to the gradients of `units` any more: they may go to the data
   * ranks.
   */
  conclude(units: readonly Unit[]): void {
    const { stage, control, state, planner } = this.parts;
    if (this.concluded.size === 0) state.prepare(planner.plan(this.gradientScale));
    for (const unit of [...units].reverse()) {
      if (this.concluded.has(unit)) continue;
      this.concluded.add(unit);
      stage.conclude(unit, control);
    }
  }

  /** After an update: the next step begins. */
  restart(): void {
    this.parts.progress.globalSamples += this.samples;
    this.reset();
  }

  private reset(): void {
    this.samples = 0;
    this.microSteps = 0;
    this.awaitsStep = false;
    this.hasStepped = false;
    this.carried = null;
    this.concluded.clear();
    this.decided = false;
  }

  /** Throws DS_AUTOGRAD where some have been collected since the last step. */
  requireNone(op: string): void {
    if (this.microSteps > 0) throw misuse(op, 'no gradients of an unfinished step', 'some');
  }

  /** Forgets the gradients since the last step(). Throws DS_AUTOGRAD for those before it. */
  drop(): void {
    if (this.decided || this.concluded.size > 0)
      throw misuse('engine.zeroGrad', 'step() first', 'gradients handed over to it');
    if (this.hasStepped) throw zeroedBetween();
    this.forget();
  }

  /**
   * Drops the gradients since the last step(), whose micro-batches stay counted: see
   * EngineOptimizer.zeroGrad. A warning says once that micro-batches have lost theirs.
   */
  zero(): void {
    if (this.decided || this.concluded.size > 0) {
      throw misuse('optimizer.zeroGrad', 'step() first', 'gradients handed over to it');
    }
    const { microSteps, samples, awaitsStep, hasStepped, carried } = this;
    if (microSteps > 0) this.warnOfZero(microSteps);
    this.forget();
    Object.assign(this, { microSteps, samples, awaitsStep, hasStepped, carried });
  }

  private warnOfZero(micros: number): void {
    if (this.hasWarned) return;
    this.hasWarned = true;
    const { divisor } = this.parts.batch.accumulation;
    const text = `optimizer.zeroGrad() drops the gradients of ${micros} of ${divisor} micro-batches of a step. Call it after a step() that updates.`;
    process.emitWarning(text, { type: 'DsWarning', code: 'DS_AUTOGRAD' });
  }

  /**
   * The engine is to go on from another state: what this step has collected, handed over or not, is
   * of none.
   */
  discard(): void {
    this.applied = null;
    this.abandon();
  }

  /**
   * A backward has thrown: the step starts afresh, and what its collectives had begun ends first.
   */
  private abandon(): void {
    try {
      this.parts.stage.flush();
    } finally {
      this.forget();
    }
  }

  private forget(): void {
    const { units, stage, control } = this.parts;
    for (const partition of stage.partitions) partition.dropGrad();
    for (const unit of units) {
      unit.forget();
      stage.release(unit);
    }
    for (const { unit } of stage.frozen) stage.release(unit);
    control.dropLosses();
    this.pass = null;
    this.reset();
  }

  noSync<Result>(body: () => Result): Result {
    if (this.inNoSync) throw misuse('engine.noSync', 'one noSync() at a time', 'a nested one');
    requireType('engine.noSync', body, 'function');
    this.inNoSync = true;
    try {
      return requireEnded('engine.noSync', body(), {
        consequence: 'its backwards would be counted and reduced',
        hint: 'Write await outside, and noSync() around each synchronous part.',
      });
    } finally {
      this.inNoSync = false;
    }
  }

  /** A backward that has reached nobody is one of zeros; one of others alone ends their steps. */
  private requireOwn(reached: ReadonlySet<GradientCollector>): void {
    if (reached.size === 0 || reached.has(this)) return;
    for (const other of reached) other.discard();
    throw foreign([...reached].map(({ parts }) => parts.module));
  }

  /** The first gradient of a loss.backward() has arrived. */
  private beginDirect(): void {
    const { lossScale } = this.parts.stepDecisions;
    if (lossScale !== 1 && this.applied === null) throw unscaled(lossScale);
    this.begin('direct', (this.applied ?? 1) * this.parts.batch.accumulation.divisor);
  }

  private begin(pass: Pass, carried: number): void {
    if (this.pass) throw unfinished(this.pass === 'direct');
    if (!this.parts.batch.accumulation.accepts(this.microSteps))
      throw stepMissing(this.parts.batch.accumulation.divisor);
    if (this.carried !== null && this.carried !== carried) throw mixedScales(this.carried, carried);
    const { units, state, planner, stage } = this.parts;
    const plan = this.boundary ? planner.plan(carried * stage.gradientFactor) : null;
    this.awaitsStep = false;
    this.carried = carried;
    this.pass = pass;
    if (plan) state.prepare(plan);
    for (const unit of units) unit.expect({ streaming: pass === 'engine' });
  }

  /** Ends the pass after `body`, or gives it up where either fails. */
  private endPass(body: () => void, end = () => this.finish()): void {
    try {
      body();
      end();
    } catch (error) {
      this.abandon();
      throw error;
    } finally {
      this.pass = null;
      for (const ended of this.listeners) ended();
    }
  }

  /** Gradients that are there have been added up; weights may go. */
  private pause(): void {
    const { units, stage } = this.parts;
    for (const unit of [...units].reverse()) unit.finish();
    for (const { unit } of [...stage.partitions, ...stage.frozen]) stage.release(unit);
    this.reduction(() => stage.flush());
  }

  private finish(): void {
    const { control, batch } = this.parts;
    const { boundary } = this;
    this.pause();
    if (boundary) control.decide(this.gradientScale);
    this.decided = boundary;
    if (!this.inNoSync) {
      this.microSteps++;
      this.awaitsStep = true;
    }
    this.samples += this.inNoSync ? batch.micros : batch.samplesOf(this.microSteps);
  }

  reached(): void {
    reachedNow?.add(this);
  }

  /** A gradient has come that no backward of this engine has announced. */
  unexpected(): void {
    if (!this.pass) this.beginDirect();
  }

  /** All gradients of a unit are complete. */
  completed(unit: Unit): void {
    const { stage, control } = this.parts;
    // A weight that wants no gradient is used until backward has ended.
    if (unit.parameters.every(({ parameter }) => parameter.requiresGrad)) stage.release(unit);
    if (this.inNoSync) return;
    const receiver = this.boundary ? control : null;
    this.reduction(() => stage.reduce(unit, receiver));
  }

  /**
   * Times what reduces over the ranks. Outside engine.backward() there is no backward that it
   * could be a part of.
   */
  private reduction(body: () => void): void {
    const { ranks, watch } = this.parts;
    if (this.pass === 'engine' && ranks.shards.size > 1) watch.time('reduce', body);
    else body();
  }
}

/** To whose units the backward that `body` runs brings gradients. */
function reachedBy(body: () => void): ReadonlySet<GradientCollector> {
  const outer = reachedNow;
  const reached = new Set<GradientCollector>();
  reachedNow = reached;
  try {
    body();
  } finally {
    reachedNow = outer;
  }
  return reached;
}
