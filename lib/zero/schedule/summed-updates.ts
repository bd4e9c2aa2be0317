// Updates by rules that need sums over whole parameters, such as LAMB's trust ratios, if each rank
// stores only a shard of them.

import type {
  MeasuringOptimizer,
  SummedOptimizer,
  UpdateSettings,
  UpdateTensors,
} from '../../optim/optimizer.js';
import { required } from '../../runtime/required.js';
import { sliceFlat } from '../../tensor/flat.js';
import { held, Tensor } from '../../tensor/index.js';
import type { GroupRange, Range } from '../layout.js';
import type { Partition } from '../partition.js';
import type { ShardState } from '../state/shard-state.js';
import type { Schedule, UpdatedPartition, UpdatePlan } from '../state/strategies.js';
import { sumSizes } from '../state/tiles.js';
import type { Collectives } from '../wire.js';

export interface SharedUpdateParts {
  state: ShardState;
  /** In the order of updates, which is equal on every rank. */
  partitions: readonly Partition[];
  group: Collectives;
}

/** The sums of one round of measurement, for the parameters of all partitions. */
interface Round {
  /** All sums, on the device, for the all-reduce. */
  readonly row: Tensor;
  /** In the memory of updates: the sums of this rank's shards, then the totals of all ranks. */
  readonly ownSums: Tensor;
  readonly totals: Tensor;
}

/**
 * Sums over whole parameters that several ranks store. In each round, every rank has one row of f64
 * with a fixed position for each parameter. Parameters of other ranks are zero in it. One
 * all-reduce sums the rows, so all ranks get the same bits.
 */
export class TensorSums {
  private readonly rounds: readonly Round[];
  /** By range of parameters: for each round, the positions of its sums in the row. */
  private readonly spans = new Map<GroupRange, readonly Range[]>();

  constructor(
    private readonly optimizer: MeasuringOptimizer,
    private readonly parts: SharedUpdateParts,
  ) {
    const { partitions, state } = parts;
    const widths: number[] = [];
    for (const partition of partitions) {
      const offsets = new Map<string, readonly number[]>();
      for (const { name, group, shape } of partition.unit.layout.entries) {
        const counts = optimizer.sumsPerRound(group, shape);
        const starts = counts.map((_, round) => widths[round] ?? 0);
        offsets.set(name, starts);
        counts.forEach((count, round) => {
          widths[round] = (widths[round] ?? 0) + count;
        });
      }
      for (const range of partition.groups) this.spans.set(range, this.spansOf(range, offsets));
    }
    const { device } = required(partitions[0]);
    this.rounds = widths.map((width) => ({
      row: held(() => Tensor.empty([width], 'f64', device)),
      ownSums: state.placement.allocate(width, 'f64'),
      totals: state.placement.allocate(width, 'f64'),
    }));
  }

  /**
   * Measures all partitions in every round, and sums over the ranks after each round. `control` is
   * in the memory of updates.
   */
  measure(control: Tensor, settings: UpdateSettings): void {
    const { partitions, state } = this.parts;
    for (const [number, round] of this.rounds.entries()) {
      for (const partition of partitions) {
        this.forEachRange(partition, control, number, (tensors) => {
          if (number >= tensors.sums.length) return;
          this.optimizer.measure(tensors, settings, state.placement.kernels, number);
        });
      }
      this.exchange(round);
    }
  }

  /** Calls `body` with the tensors of each range. `tensors.sums` has the totals of measure(). */
  forEachMeasured(
    partition: Partition,
    control: Tensor,
    body: (tensors: UpdateTensors, range: GroupRange) => void,
  ): void {
    this.forEachRange(partition, control, this.rounds.length, body);
  }

  /** Waits for running updates. */
  dispose(): void {
    this.parts.state.synchronize();
    for (const { row, ownSums, totals } of this.rounds) {
      for (const tensor of [row, ownSums, totals]) tensor.release();
    }
  }

  /**
   * Calls `body` with the tensors of each range. Sums of rounds before `round` are totals over all
   * ranks.
   */
  private forEachRange(
    partition: Partition,
    control: Tensor,
    round: number,
    body: (tensors: UpdateTensors, range: GroupRange) => void,
  ): void {
    const { state } = this.parts;
    state.update(partition, control, (tensors, { range }) => {
      const sums = (this.spans.get(range) ?? []).map((span, number) => {
        const { ownSums, totals } = required(this.rounds[number]);
        return sliceFlat(number < round ? totals : ownSums, span);
      });
      body({ ...tensors, sums }, range);
      for (const sum of sums) sum.release();
    });
  }

  private exchange({ row, ownSums, totals }: Round): void {
    const { group, state } = this.parts;
    const { compute } = row.device;
    state.placement.traffic.toDevice(row, ownSums);
    group.allReduce(row, { stream: compute, purpose: 'sums over parameters' }).wait(compute);
    state.placement.traffic.fromDevice(totals, row);
  }

  /**
   * Returns the positions of a range's sums in the rows. They are adjacent, because its parameters
   * are adjacent in the unit.
   */
  private spansOf(range: GroupRange, offsets: ReadonlyMap<string, readonly number[]>): Range[] {
    const [first] = range.places;
    if (!first) return [];
    return sumSizes(range, this.optimizer).map((numel, round) => {
      return { offset: required(offsets.get(first.name)?.[round]), numel };
    });
  }
}

/** The schedule of LAMB: measures all ranges, sums over the ranks, then updates all ranges. */
export class SummedUpdates implements Schedule {
  private readonly sums: TensorSums;

  constructor(
    private readonly optimizer: SummedOptimizer,
    private readonly parts: SharedUpdateParts,
  ) {
    this.sums = new TensorSums(optimizer, parts);
  }

  *update(control: Tensor, { settings }: UpdatePlan): Generator<UpdatedPartition, void> {
    const { state, partitions } = this.parts;
    const localControl = state.placement.traffic.takeControl(control);
    this.sums.measure(localControl, settings);
    for (const partition of partitions) {
      this.sums.forEachMeasured(partition, localControl, (tensors) =>
        this.optimizer.applySums(tensors, settings, state.placement.kernels),
      );
      yield deliverWeights(state, partition);
    }
  }

  dispose(): void {
    this.sums.dispose();
  }
}

/** Uploads the weights of a partition. Call it after the last pass of its update. */
export function deliverWeights(state: ShardState, partition: Partition): UpdatedPartition {
  state.deliver(partition);
  return [partition, state.finish(partition)];
}
