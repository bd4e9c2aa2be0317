// Updates that overlap backward: the weights of the coming update are tried out before its verdict,
// the state never. Exact: equal to the other schedules bit for bit, whatever is clipped or skipped.
import type {
  SpeculationTensors,
  SpeculativeOptimizer,
  StepGradient,
  UpdateSettings,
} from '../../optim/optimizer.js';
import { hyperparameters } from '../../optim/param-groups.js';
import type { Device } from '../../runtime/device.js';
import { Event } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import { copyAll, sliceFlat } from '../flat.js';
import type { HostHome } from '../home/host-home.js';
import type { Tile } from '../home/tiles.js';
import type { Range } from '../layout.js';
import type { Partition } from '../partition.js';
import { AdaptiveCount } from './adaptive-count.js';
import { ClipWindow } from './clip-window.js';
import type { Schedule, UpdatedPartition, UpdatePlan } from './schedule.js';
import { SpeculationOrder } from './speculation-order.js';

/** What is tried out of a partition. */
interface Attempt {
  /**
   * A gradient whose step is not committed yet, or nothing. With every speculation it changes
   * places with the memory that takes gradients, which holds, until the next one comes, what was
   * uploaded last.
   */
  held: Tensor;
  /** What `held` is: tentative until its step's verdict is known, then decided. */
  pending: 'none' | 'tentative' | 'decided';
  /** Something may read the weights on the device after their gradient was complete. */
  readLate: boolean;
}

/** A step whose weights are tried out before its verdict. */
interface Trial {
  settings: UpdateSettings;
  /** In the order of the host stream. */
  parts: Partition[];
  /** The state was changed from outside since. */
  stale: boolean;
}

/** What was decided about a step's gradients. */
interface Verdict {
  multiplier: number;
  apply: number;
}

/**
 * On the home's streams, per step:
 *   d2h stream   gradient of each partition as backward completes it, tile by tile
 *   host stream  for each tile, in one pass over its state: commits the last step, whose verdict is
 *                known by now, then computes the weights that this step gives if nothing is
 *                clipped, and stores only these
 *   h2d stream   these weights, from step() on; the unit's next forward waits for them
 * Some partitions are tried out as their gradients arrive, the others at step(): in forward order
 * and each with its upload behind it, since copies of all streams share an engine that takes them
 * as they come. step() waits for the verdict. When it is another than assumed, the weights are
 * emitted once more from the committed state, with what was decided: no state was touched, so there
 * is nothing to roll back. While most steps miss, updates wait for their verdict as in Deferred,
 * but for those of the first units in forward order: these get their weights by a pass that stores
 * nothing else, and are committed under the next forward and backward, as many as there is time
 * for: not where the home reads no state in place, since each pass brings all of it across PCIe.
 * Memory per parameter: one gradient element more than there.
 */
export class Speculative implements Schedule {
  /** Which partitions are updated during backward, and when. */
  readonly order = new SpeculationOrder<Partition>();
  /** How many are committed after their weights have left, while updates wait for their verdict. */
  readonly later = new AdaptiveCount();
  private readonly attempts = new Map<Partition, Attempt>();
  private readonly window = new ClipWindow();
  /**
   * [4] f32 each, written in the order of the host stream: control of decided gradients, and of the
   * coming ones.
   */
  private readonly decided: Tensor;
  private readonly assumed: Tensor;
  /** The device's verdict has been fetched. */
  private readonly landed: Event;
  /** The early share of the speculation has ended. */
  private readonly earlyDone: Event;
  /** What was committed later has been. */
  private readonly committed: Event;
  private commitsLater = false;
  private decidedSettings: UpdateSettings | null = null;
  /** From prepare() to update(), unless updates wait for their verdict. */
  private tried: Trial | null = null;

  /** The memory of `home` that takes gradients is read by updates, too: it has `readBefore`. */
  constructor(
    private readonly device: Device,
    private readonly home: HostHome,
    private readonly optimizer: SpeculativeOptimizer,
  ) {
    this.decided = home.allocate(4, 'f32');
    this.assumed = home.allocate(4, 'f32');
    this.landed = new Event(device);
    this.earlyDone = new Event(device);
    this.committed = new Event(device);
  }

  adopt(partition: Partition): void {
    const memory = this.home.allocate(partition.numel, partition.weights.dtype);
    const held = this.home.replaceGrad(partition, memory);
    this.attempts.set(partition, { held, pending: 'none', readLate: false });
  }

  prepare({ settings, gradientScale }: UpdatePlan): void {
    // What a backward that failed has left behind is of no step.
    for (const one of this.attempts.values()) if (one.pending === 'tentative') one.pending = 'none';
    this.tried = this.window.speculate ? { settings, parts: [], stale: false } : null;
    if (!this.tried) this.commit();
    this.write(this.assumed, { multiplier: unclipped(gradientScale), apply: 1 });
    this.order.start([...this.attempts.keys()]);
  }

  gradReady(partition: Partition): void {
    this.home.receive(partition);
    // A weight that wants no gradient is used until backward has ended.
    const { parameters } = partition.unit;
    const readLate = parameters.some(({ parameter }) => !parameter.requiresGrad);
    this.attemptOf(partition).readLate = readLate;
    if (!this.tried) return;
    if (this.order.arrive(partition)) this.tryOut(partition, this.tried);
    if (this.order.inEarlyShare) this.earlyDone.record(this.home.host);
  }

  endBackward(): void {
    this.home.endBackward();
    for (const partition of this.tried?.parts ?? []) this.upload(partition);
  }

  begin(partition: Partition): void {
    if (!this.tried || !this.order.isPostponed(partition)) return;
    this.tryOut(partition, this.tried);
    this.upload(partition);
  }

  *update(control: Tensor, plan: UpdatePlan): Generator<UpdatedPartition, void> {
    const { tried, home } = this;
    this.tried = null;
    const verdict = this.awaitVerdict(control);
    if (tried) this.order.adapt(this.earlyDone.done);
    if (this.commitsLater) this.later.adapt(this.attempts.size, this.committed.done);
    const asAssumed = verdict.multiplier === unclipped(plan.gradientScale) && verdict.apply === 1;
    this.window.record(!asAssumed);
    this.write(this.decided, verdict);
    this.decidedSettings = plan.settings;
    const holds = asAssumed && tried && !tried.stale && sameSettings(tried.settings, plan.settings);
    let later = tried || !home.readsInPlace ? 0 : this.later.of(this.attempts.size);
    this.commitsLater = later > 0;
    for (const [partition, attempt] of this.attempts) {
      if (tried) {
        attempt.pending = 'decided';
        if (!holds) this.emitAgain(partition, attempt);
      } else if (later-- > 0) this.emitFirst(partition, attempt, plan);
      else this.updateNow(partition, plan);
      yield [partition, home.h2d, home.partOf(partition).uploaded];
    }
    if (this.commitsLater) this.commitNow();
  }

  /**
   * Commits what is decided and computes the weights of the gradient that has just arrived, in one
   * pass.
   */
  private tryOut(partition: Partition, tried: Trial): void {
    this.emit(partition, { control: this.assumed, settings: tried.settings });
    this.attemptOf(partition).pending = 'tentative';
    tried.parts.push(partition);
  }

  /**
   * The weights of the gradient that has landed leave; its step is committed after those of others.
   */
  private emitFirst(partition: Partition, attempt: Attempt, { settings }: UpdatePlan): void {
    this.emit(partition, { control: this.decided, settings });
    attempt.pending = 'decided';
    this.upload(partition);
  }

  /**
   * The pass that commits what is decided and stores the weights that the landed gradient gives,
   * which is held from now on.
   */
  private emit(partition: Partition, step: Omit<StepGradient, 'grad'>): void {
    const { home } = this;
    const { grad, tiles } = home.partOf(partition);
    const attempt = this.attemptOf(partition);
    const previous = this.decidedOf(attempt);
    for (const tile of tiles) {
      home.host.wait(tile.arrived);
      this.pass(partition, tile, { previous, next: { grad, ...step }, weight: attempt.held });
      tile.updated.record(home.host);
    }
    attempt.held = home.replaceGrad(partition, attempt.held);
  }

  /** Under the next forward and backward. */
  private commitNow(): void {
    this.commit();
    this.committed.record(this.home.host);
  }

  /** Weights of the decided gradient from the committed state, without committing it. */
  private emitAgain(partition: Partition, attempt: Attempt): void {
    const { host } = this.home;
    const { weight, tiles, uploaded } = this.home.partOf(partition);
    // The weights that were tried out may still be on their way from where the new ones go.
    host.wait(uploaded);
    const next = this.decidedOf(attempt);
    for (const tile of tiles) {
      this.pass(partition, tile, { previous: null, next, weight });
      tile.updated.record(host);
    }
    this.upload(partition);
  }

  /** Updates a partition at once, from the gradient that has landed. */
  private updateNow(partition: Partition, { settings }: UpdatePlan): void {
    const { home, optimizer, decided: control } = this;
    for (const tile of home.tilesOf(partition)) {
      const tensors = home.acquire(partition, tile);
      optimizer.update({ ...tensors, control }, settings, home.kernels);
      home.release(tensors);
      tile.updated.record(home.host);
    }
    this.upload(partition);
  }

  private upload(partition: Partition): void {
    const { home } = this;
    home.uploadAll(partition, this.attemptOf(partition).readLate ? home.computed : null);
  }

  /**
   * Blocks until backward has ended: until then the device has work, and afterwards none before the
   * weights.
   */
  private awaitVerdict(control: Tensor): Verdict {
    const { control: fetched } = this.home;
    const { compute } = this.device;
    copyAll(fetched, control, compute);
    this.landed.record(compute).synchronize();
    const values = new Float32Array(2);
    fetched.buffer.read(0, values, compute);
    return { multiplier: values[0] as number, apply: values[1] as number };
  }

  commit(): void {
    for (const [partition, attempt] of this.attempts) {
      const previous = this.decidedOf(attempt);
      if (!previous) continue;
      const { tiles } = this.home.partOf(partition);
      for (const tile of tiles) this.pass(partition, tile, { previous, next: null, weight: null });
      attempt.pending = 'none';
    }
  }

  private decidedOf({ pending, held: grad }: Attempt): StepGradient | null {
    if (pending !== 'decided') return null;
    return { grad, control: this.decided, settings: this.decidedSettings as UpdateSettings };
  }

  /**
   * Enqueues the optimizer's pass over one tile; gradients and weight are those of the partition.
   */
  private pass(
    partition: Partition,
    tile: Tile,
    { previous, next, weight }: Pick<SpeculationTensors, 'previous' | 'next' | 'weight'>,
  ): void {
    const { home } = this;
    const { range } = tile;
    const opened = home.open(partition, tile);
    withSlices(range, (cut) => {
      const parts = {
        group: range.group,
        ...opened,
        previous: previous && { ...previous, grad: cut(previous.grad) },
        next: next && { ...next, grad: cut(next.grad) },
        weight: weight && cut(weight),
      };
      this.optimizer.speculate(parts, home.kernels);
    });
    home.close(opened, previous !== null);
  }

  /**
   * Writes a control in the order of the host stream: passes enqueued before still read the old
   * one.
   */
  private write(control: Tensor, { multiplier, apply }: Verdict): void {
    [multiplier, apply].forEach((value, offset) => {
      withSlices({ offset, numel: 1 }, (cut) =>
        this.home.kernels.fill({ out: cut(control), value }),
      );
    });
  }

  awaitWeights(partition: Partition): void {
    this.attemptOf(partition).readLate = true;
    this.home.awaitWeights(partition);
  }

  gradOf(partition: Partition): Tensor {
    const landed = this.home.gradOf(partition) as Tensor;
    const { pending, held } = this.attemptOf(partition);
    if (pending !== 'tentative') return landed;
    landed.release();
    return held.retain();
  }

  readonly isAdrift = false;

  settle(): void {}

  rankErrors(): [] {
    return [];
  }

  changed(): void {
    if (this.tried) this.tried.stale = true;
  }

  get bytes(): number {
    return this.bytesHeld(true);
  }

  get deviceBytes(): number {
    return this.bytesHeld(false);
  }

  private bytesHeld(pinned: boolean): number {
    const held = Array.from(this.attempts.values(), (attempt) => attempt.held);
    const there = [...held, this.decided, this.assumed].filter(
      ({ buffer }) => buffer.pinned === pinned,
    );
    return there.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  dispose(): void {
    this.home.synchronize();
    for (const { held } of this.attempts.values()) held.release();
    this.attempts.clear();
    for (const control of [this.decided, this.assumed]) control.release();
    for (const event of [this.landed, this.earlyDone, this.committed]) event.dispose();
  }

  private attemptOf(partition: Partition): Attempt {
    return this.attempts.get(partition) as Attempt;
  }
}

/**
 * The factor that undoes the gradients' scale when nothing is clipped, as the device computes it.
 */
const unclipped = (gradientScale: number): number => Math.fround(1 / gradientScale);

function sameSettings(a: UpdateSettings, b: UpdateSettings): boolean {
  const written = ({ step, groups }: UpdateSettings): string =>
    JSON.stringify([step, groups.map(hyperparameters)]);
  return written(a) === written(b);
}

/** Calls `body` with a function that cuts `range` out of flat tensors, and releases what it cut. */
function withSlices(range: Range, body: (cut: (flat: Tensor) => Tensor) => void): void {
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
