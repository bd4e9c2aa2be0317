// Updates that begin when the step decision is known to their stream: every clipping factor
// is exact.
import type { Optimizer } from '../../optim/optimizer.js';
import type { Tensor } from '../../tensor/index.js';
import type { Home } from '../home/home.js';
import type { Partition } from '../partition.js';
import type { Publisher, RankError, Schedule, UpdatedPartition, UpdatePlan } from './schedule.js';

/** What every schedule does that has nothing to do before the step decision. */
export abstract class AfterDecision implements Schedule {
  readonly bytes: number = 0;

  constructor(protected readonly home: Home) {}

  endBackward(): void {}

  begin(_partition: Partition): void {}

  abstract update(control: Tensor, plan: UpdatePlan): Generator<UpdatedPartition, void>;

  adopt(_partition: Partition): void {}

  prepare(): void {}

  gradReady(partition: Partition): void {
    this.home.receive(partition);
  }

  awaitWeights(partition: Partition): void {
    this.home.awaitWeights(partition);
  }

  gradOf(partition: Partition): Tensor | null {
    return this.home.gradOf(partition);
  }

  get isAdrift(): boolean {
    return false;
  }

  resync(_applied: number, _publisher: Publisher): void {}

  rankErrors(): Iterable<RankError> {
    return [];
  }

  get deviceBytes(): number {
    return 0;
  }

  changed(): void {}

  commit(): void {}

  dispose(): void {}
}

/**
 * Every range by itself: for rules that work by element, and for ranks that hold whole parameters.
 * On the device that is one pass in the order of compute; on the host a tile is updated while the
 * next one's gradient arrives and the last one's weights leave.
 */
export class Deferred extends AfterDecision {
  constructor(
    home: Home,
    private readonly optimizer: Optimizer,
    private readonly partitions: readonly Partition[],
  ) {
    super(home);
  }

  *update(given: Tensor, { settings }: UpdatePlan): Generator<UpdatedPartition, void> {
    const { home, optimizer } = this;
    const control = home.takeControl(given);
    for (const partition of this.partitions) {
      for (const tile of home.tilesOf(partition)) {
        const tensors = home.acquire(partition, tile);
        optimizer.update({ ...tensors, control }, settings, home.kernels);
        home.release(tensors);
        home.deliver(partition, tile);
      }
      yield [partition, home.finish(partition)];
    }
  }
}
