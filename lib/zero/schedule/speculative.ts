// SuperOffload: computes the weights of a step during backward, before the step decision is known.
//
//   stream   backward of step n                      step n
//   ------   -------------------------------------   ----------------------------------------
//   d2h      gradient of each partition, by tile
//   host     state  = commit(step n - 1)             as assumed:  nothing
//            held n = weights(state, gradient)       clipped:     weights(state, gradient) again
//                     if nothing is clipped          skipped:     the last weights again
//   h2d                                              weights; the unit's next forward waits
//
// The state of a partition:
//
//   none --backward--> tentative --decision--> decided --next pass or commit()--> none
//                      tentative --failed backward--> none
//
// Invariant: only a commit changes optimizer state, and a commit needs the step decision. A wrong
// assumption costs one pass and no rollback. Results equal the results of other schedules bit for
// bit. Memory: one more gradient element per parameter. Source: SuperOffload (DeepSpeed).

import type {
  SpeculationTensors,
  SpeculativeOptimizer,
  StepGradient,
  UpdateSettings,
  UpdateTensors,
} from '../../optim/optimizer.js';
import { hyperparameters } from '../../optim/param-groups.js';
import type { Device } from '../../runtime/device.js';
import { required } from '../../runtime/required.js';
import { Event } from '../../runtime/stream.js';
import { copyAll, sliceFlat } from '../../tensor/flat.js';
import type { Tensor } from '../../tensor/index.js';
import type { Range } from '../layout.js';
import type { Partition } from '../partition.js';
import { type Bytes, bytesOf } from '../state/memory.js';
import type { HostState } from '../state/placement/host.js';
import type { StreamedState } from '../state/placement/streamed.js';
import type { ShardState } from '../state/shard-state.js';
import type { Schedule, UpdatedPartition, UpdatePlan } from '../state/strategies.js';
import type { StateTile } from '../state/tiles.js';
import { AdaptiveCount, ClipWindow, SpeculationOrder } from './speculation-policy.js';

interface Attempt {
  /**
   * The gradient of a step that is not committed. Each speculation exchanges this tensor for the
   * one that receives gradients. The received tensor still holds the last uploaded weights, until
   * the next gradient overwrites them.
   */
  gradient: Tensor;
  /** State of `gradient`: tentative before the step decision, decided after it. */
  pending: 'none' | 'tentative' | 'decided';
  /** Whether backward may read the weights on the device after their gradient is complete. */
  isReadLate: boolean;
}

/** A step with weights that were computed before the step decision. */
interface Speculation {
  settings: UpdateSettings;
  /** The partitions of the speculation, in the order of the host stream. */
  partitions: Partition[];
  /** Whether other code changed gradients or state after the speculation. */
  isStale: boolean;
}

interface StepDecision {
  multiplier: number;
  apply: number;
}

/**
 * The schedule of SuperOffload. It speculates on the first partitions while their gradients arrive,
 * and on the rest in step(). Each upload directly follows its partition, because copies of all
 * streams share one copy engine.
 *
 * If most steps miss, updates wait for the step decision, as in DeferredUpdates. For the first
 * units in forward order, one pass then computes the weights only. The commit follows later, and
 * the next forward and backward hide it. The number of these units adapts. It is 0 with
 * StreamedState, because a separate commit would move all state across PCIe again.
 */
export class Speculative implements Schedule {
  /** Selects the partitions to update during backward. */
  readonly order = new SpeculationOrder<Partition>();
  /**
   * Number of partitions that commit after their upload, while updates wait for the step decision.
   */
  readonly lateCommits = new AdaptiveCount();
  private readonly attempts = new Map<Partition, Attempt>();
  private readonly window = new ClipWindow();
  /** [4] f32 each, written on the host stream: the last step decision, and the assumed next one. */
  private readonly decidedControl: Tensor;
  private readonly assumedControl: Tensor;
  /** Recorded when the device's decision is in host memory. */
  private readonly decisionArrived: Event;
  /** Recorded after the partitions that are updated during backward. */
  private readonly earlyDone: Event;
  /** Recorded after the late commits. */
  private readonly committed: Event;
  private commitsLater = false;
  private decidedSettings: UpdateSettings | null = null;
  /** The speculation from prepare() to update(). Null while updates wait for the step decision. */
  private speculation: Speculation | null = null;

  /**
   * `state` must have the option `readBefore`, because updates also read the memory that receives
   * gradients.
   */
  constructor(
    private readonly device: Device,
    private readonly state: ShardState<HostState | StreamedState>,
    private readonly optimizer: SpeculativeOptimizer,
  ) {
    this.decidedControl = state.placement.allocate(4, 'f32');
    this.assumedControl = state.placement.allocate(4, 'f32');
    this.decisionArrived = new Event(device);
    this.earlyDone = new Event(device);
    this.committed = new Event(device);
  }

  adopt(partition: Partition): void {
    const memory = this.state.placement.allocate(partition.numel, partition.weights.dtype);
    const gradient = this.state.replaceGrad(partition, memory);
    this.attempts.set(partition, { gradient, pending: 'none', isReadLate: false });
  }

  prepare({ settings, gradientScale }: UpdatePlan): void {
    // A failed backward leaves tentative gradients that belong to no step.
    for (const attempt of this.attempts.values())
      if (attempt.pending === 'tentative') attempt.pending = 'none';
    this.speculation = this.window.isSpeculative
      ? { settings, partitions: [], isStale: false }
      : null;
    if (!this.speculation) this.commit();
    this.writeControl(this.assumedControl, {
      multiplier: unclippedFactor(gradientScale),
      apply: 1,
    });
    this.order.start([...this.attempts.keys()]);
  }

  gradReady(partition: Partition): void {
    // Backward may read a frozen weight of the unit until backward ends.
    const { parameters } = partition.unit;
    const readLate = parameters.some(({ parameter }) => !parameter.requiresGrad);
    this.attemptOf(partition).isReadLate = readLate;
    if (!this.speculation) return;
    if (this.order.arrive(partition)) this.speculateOn(partition, this.speculation);
    if (this.order.isEarly) this.earlyDone.record(this.state.placement.traffic.order);
  }

  endBackward(): void {
    this.state.placement.traffic.endBackward();
    for (const partition of this.speculation?.partitions ?? []) this.upload(partition);
  }

  begin(partition: Partition): void {
    if (!this.speculation || !this.order.isPostponed(partition)) return;
    this.speculateOn(partition, this.speculation);
    this.upload(partition);
  }

  *update(control: Tensor, plan: UpdatePlan): Generator<UpdatedPartition, void> {
    const { speculation, state } = this;
    this.speculation = null;
    const decision = this.awaitDecision(control);
    if (speculation) this.order.adapt(this.earlyDone.done);
    if (this.commitsLater) this.lateCommits.adapt(this.attempts.size, this.committed.done);
    const asAssumed =
      decision.multiplier === unclippedFactor(plan.gradientScale) && decision.apply === 1;
    this.window.record(!asAssumed);
    this.writeControl(this.decidedControl, decision);
    this.decidedSettings = plan.settings;
    const isHit =
      asAssumed &&
      speculation &&
      !speculation.isStale &&
      sameSettings(speculation.settings, plan.settings);
    let commitsLeft =
      speculation || state.placement.windows ? 0 : this.lateCommits.limitedTo(this.attempts.size);
    this.commitsLater = commitsLeft > 0;
    for (const [partition, attempt] of this.attempts) {
      if (speculation) {
        attempt.pending = 'decided';
        if (!isHit) this.recomputeWeights(partition, attempt);
      } else if (commitsLeft-- > 0) this.computeWeights(partition, attempt, plan);
      else this.updateNow(partition, plan);
      yield [partition, state.placement.traffic.h2d, state.partOf(partition).uploaded];
    }
    if (this.commitsLater) this.commitLate();
  }

  /** Commits the decided step and computes weights from the new gradient, in one pass. */
  private speculateOn(partition: Partition, speculation: Speculation): void {
    this.speculateTiles(partition, {
      control: this.assumedControl,
      settings: speculation.settings,
    });
    this.attemptOf(partition).pending = 'tentative';
    speculation.partitions.push(partition);
  }

  /** Computes and uploads the weights. commitLate() commits the step later. */
  private computeWeights(partition: Partition, attempt: Attempt, { settings }: UpdatePlan): void {
    this.speculateTiles(partition, { control: this.decidedControl, settings });
    attempt.pending = 'decided';
    this.upload(partition);
  }

  /**
   * Commits the decided step, stores the new weights, and saves the new gradient for its commit, in
   * one pass.
   */
  private speculateTiles(partition: Partition, step: Omit<StepGradient, 'grad'>): void {
    const { state } = this;
    const { grad: landed, tiles } = state.partOf(partition);
    const grad = required(landed);
    const attempt = this.attemptOf(partition);
    const previous = this.decidedOf(attempt);
    for (const tile of tiles) {
      state.placement.traffic.order.wait(tile.arrived);
      this.updateTile(partition, tile, {
        previous,
        next: { grad, ...step },
        weight: attempt.gradient,
      });
      tile.updated.record(state.placement.traffic.order);
    }
    attempt.gradient = state.replaceGrad(partition, attempt.gradient);
  }

  private commitLate(): void {
    this.commit();
    this.committed.record(this.state.placement.traffic.order);
  }

  /**
   * Computes the weights again from the unchanged state and the decided gradient. Does not commit
   * the step.
   */
  private recomputeWeights(partition: Partition, attempt: Attempt): void {
    const { order } = this.state.placement.traffic;
    const { weight, tiles, uploaded } = this.state.partOf(partition);
    // The upload of the speculative weights may still read the memory of the new ones.
    order.wait(uploaded);
    const next = this.decidedOf(attempt);
    for (const tile of tiles) {
      this.updateTile(partition, tile, { previous: null, next, weight });
      tile.updated.record(order);
    }
    this.upload(partition);
  }

  /** Updates the state and the weights in one pass, without speculation. */
  private updateNow(partition: Partition, { settings }: UpdatePlan): void {
    const { state, optimizer, decidedControl } = this;
    const { kernels, traffic } = state.placement;
    const update = (tensors: UpdateTensors): void => optimizer.update(tensors, settings, kernels);
    state.update(partition, decidedControl, update, (tile) => traffic.complete(tile));
    this.upload(partition);
  }

  private upload(partition: Partition): void {
    const { state } = this;
    const { computed } = state.placement.traffic;
    state.uploadAll(partition, computed, this.attemptOf(partition).isReadLate);
  }

  /**
   * Blocks the host until backward has ended. The device is idle from then until new weights
   * arrive.
   */
  private awaitDecision(control: Tensor): StepDecision {
    const { control: fetched } = this.state.placement.traffic;
    const { compute } = this.device;
    copyAll(fetched, control, compute);
    this.decisionArrived.record(compute).synchronize();
    const values = new Float32Array(2);
    fetched.buffer.read(0, values, compute);
    return { multiplier: required(values[0]), apply: required(values[1]) };
  }

  commit(): void {
    for (const [partition, attempt] of this.attempts) {
      const previous = this.decidedOf(attempt);
      if (!previous) continue;
      const { tiles } = this.state.partOf(partition);
      for (const tile of tiles)
        this.updateTile(partition, tile, { previous, next: null, weight: null });
      attempt.pending = 'none';
    }
  }

  private decidedOf({ pending, gradient: grad }: Attempt): StepGradient | null {
    if (pending !== 'decided') return null;
    return { grad, control: this.decidedControl, settings: required(this.decidedSettings) };
  }

  /**
   * Enqueues the optimizer's pass over one tile. `previous`, `next` and `weight` are of the whole
   * partition.
   */
  private updateTile(
    partition: Partition,
    tile: StateTile,
    { previous, next, weight }: Pick<SpeculationTensors, 'previous' | 'next' | 'weight'>,
  ): void {
    const { state } = this;
    const { range } = tile;
    const opened = state.open(partition, tile);
    withSlices(range, (cut) => {
      const parts = {
        group: range.group,
        ...opened,
        previous: previous && { ...previous, grad: cut(previous.grad) },
        next: next && { ...next, grad: cut(next.grad) },
        weight: weight && cut(weight),
      };
      this.optimizer.speculate(parts, state.placement.kernels);
    });
    state.close(partition, opened, previous !== null);
  }

  /**
   * Writes a control on the host stream, because passes on this stream may still read the old
   * values.
   */
  private writeControl(control: Tensor, { multiplier, apply }: StepDecision): void {
    [multiplier, apply].forEach((value, offset) => {
      withSlices({ offset, numel: 1 }, (cut) =>
        this.state.placement.kernels.fill({ out: cut(control), value }),
      );
    });
  }

  awaitWeights(partition: Partition): void {
    this.attemptOf(partition).isReadLate = true;
  }

  gradOf(partition: Partition): Tensor {
    const landed = required(this.state.gradOf(partition));
    const { pending, gradient } = this.attemptOf(partition);
    if (pending !== 'tentative') return landed;
    landed.release();
    return gradient.retain();
  }

  markChanged(): void {
    if (this.speculation) this.speculation.isStale = true;
  }

  get bytes(): Bytes {
    const held = Array.from(this.attempts.values(), (attempt) => attempt.gradient);
    return bytesOf([...held, this.decidedControl, this.assumedControl]);
  }

  dispose(): void {
    this.state.synchronize();
    for (const { gradient } of this.attempts.values()) gradient.release();
    this.attempts.clear();
    for (const control of [this.decidedControl, this.assumedControl]) control.release();
    for (const event of [this.decisionArrived, this.earlyDone, this.committed]) event.dispose();
  }

  private attemptOf(partition: Partition): Attempt {
    return required(this.attempts.get(partition));
  }
}

/** Returns the multiplier of an unclipped step. Rounded to f32, as the device computes it. */
const unclippedFactor = (gradientScale: number): number => Math.fround(1 / gradientScale);

function sameSettings(a: UpdateSettings, b: UpdateSettings): boolean {
  const formatSettings = ({ step, groups }: UpdateSettings): string =>
    JSON.stringify([step, groups.map(hyperparameters)]);
  return formatSettings(a) === formatSettings(b);
}

/**
 * Calls `body` with a function that slices `range` out of a tensor. Releases the slices afterwards.
 */
function withSlices(range: Range, body: (sliceOf: (flat: Tensor) => Tensor) => void): void {
  const slices: Tensor[] = [];
  try {
    body((flat) => {
      const slice = sliceFlat(flat, range);
      slices.push(slice);
      return slice;
    });
  } finally {
    for (const slice of slices) slice.release();
  }
}
