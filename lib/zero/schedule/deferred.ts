// Deferred: updates after the step decision, so every clip factor is exact.
import type { Optimizer } from '../../optim/optimizer.js';
import type { Tensor } from '../../tensor/index.js';
import type { Home } from '../home/home.js';
import type { Partition } from '../partition.js';
import type { Publisher, RankError, Schedule, UpdatedPartition, UpdatePlan } from './schedule.js';

/** Common part of schedules without work before the step decision. */
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
 * Updates every range separately: for elementwise rules, and for ranks with whole parameters. On
 * the device this is one pass in the order of compute. On the host, a tile is updated while the
 * gradient of the next arrives and the weights of the last one leave.
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
