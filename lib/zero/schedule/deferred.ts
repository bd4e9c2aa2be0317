// Deferred: updates after the step decision, so every clip factor is exact.
import type { Optimizer } from '../../optim/optimizer.js';
import type { Tensor } from '../../tensor/index.js';
import type { Partition } from '../shard.js';
import type { ShardState } from '../state/shard-state.js';
import type { Publisher, RankError, Schedule, UpdatedPartition, UpdatePlan } from './schedule.js';

/** Common part of schedules without work before the step decision. */
export abstract class AfterDecision implements Schedule {
  readonly bytes: number = 0;

  constructor(protected readonly state: ShardState) {}

  endBackward(): void {}

  begin(_partition: Partition): void {}

  abstract update(control: Tensor, plan: UpdatePlan): Generator<UpdatedPartition, void>;

  adopt(_partition: Partition): void {}

  prepare(): void {}

  gradReady(partition: Partition): void {
    this.state.receive(partition);
  }

  awaitWeights(partition: Partition): void {
    this.state.awaitWeights(partition);
  }

  gradOf(partition: Partition): Tensor | null {
    return this.state.gradOf(partition);
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
    state: ShardState,
    private readonly optimizer: Optimizer,
    private readonly partitions: readonly Partition[],
  ) {
    super(state);
  }

  *update(given: Tensor, { settings }: UpdatePlan): Generator<UpdatedPartition, void> {
    const { state, optimizer } = this;
    const control = state.takeControl(given);
    for (const partition of this.partitions) {
      for (const tile of state.tilesOf(partition)) {
        const tensors = state.acquire(partition, tile);
        optimizer.update({ ...tensors, control }, settings, state.kernels);
        state.release(partition, tensors);
        state.deliver(partition, tile);
      }
      yield [partition, state.finish(partition)];
    }
  }
}
