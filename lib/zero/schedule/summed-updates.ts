// Updates by rules that need sums over whole parameters, such as LAMB's trust ratios, where ranks
// hold parts: sums are added up where the parts are, then over the ranks.
import type {
  MeasuringOptimizer,
  SummedOptimizer,
  UpdateSettings,
  UpdateTensors,
} from '../../optim/optimizer.js';
import { held, Tensor } from '../../tensor/index.js';
import type { Collectives } from '../collectives.js';
import { sliceFlat } from '../flat.js';
import type { Home } from '../home/home.js';
import { sumSizes } from '../home/range-state.js';
import type { GroupRange, Range } from '../layout.js';
import type { Partition } from '../partition.js';
import { AfterDecision } from './deferred.js';
import type { UpdatedPartition, UpdatePlan } from './schedule.js';

/** What an update over several ranks is made of. */
export interface SharedUpdateParts {
  home: Home;
  /** In the order of updates, the same on every rank. */
  partitions: readonly Partition[];
  group: Collectives;
}

/** The sums of one round over the parameters of all partitions. */
interface Round {
  /** On the device. */
  readonly row: Tensor;
  /** In the home's memory: this rank's row, and the totals. */
  readonly own: Tensor;
  readonly whole: Tensor;
}

/**
 * For each round of the optimizer one row of f64 per rank, with the same place for a parameter in
 * each: zeros where a rank has nothing of it. After a round the rows are added up over the ranks by
 * one all-reduce, which gives all of them the same bits. A sum of parts differs from that of the
 * whole by a rounding in f64.
 */
export class TensorSums {
  private readonly rounds: readonly Round[];
  /** Where the sums of a range lie in the rows, by round. */
  private readonly spans = new Map<GroupRange, readonly Range[]>();

  constructor(
    private readonly optimizer: MeasuringOptimizer,
    private readonly parts: SharedUpdateParts,
  ) {
    const { partitions, home } = parts;
    const widths: number[] = [];
    for (const partition of partitions) {
      const offsets = new Map<string, readonly number[]>();
      for (const { name, group, shape } of partition.unit.layout.slots) {
        const counts = optimizer.sumsPerRound(group, shape);
        offsets.set(
          name,
          counts.map((_, round) => widths[round] ?? 0),
        );
        counts.forEach((count, round) => {
          widths[round] = (widths[round] ?? 0) + count;
        });
      }
      for (const range of partition.groups) this.spans.set(range, this.spansOf(range, offsets));
    }
    const { device } = partitions[0] as Partition;
    this.rounds = widths.map((width) => ({
      row: held(() => Tensor.empty([width], 'f64', device)),
      own: home.allocate(width, 'f64'),
      whole: home.allocate(width, 'f64'),
    }));
  }

  /**
   * Every round of the optimizer over all partitions, and the exchanges. `control` is the home's.
   */
  measure(control: Tensor, settings: UpdateSettings): void {
    const { partitions, home } = this.parts;
    for (const [number, round] of this.rounds.entries()) {
      for (const partition of partitions) {
        this.eachRange(partition, control, number, (tensors) => {
          if (number >= tensors.sums.length) return;
          this.optimizer.measure(tensors, settings, home.kernels, number);
        });
      }
      this.share(round);
    }
  }

  /**
   * Calls `body` with each range of the partition, and the sums over whole parameters that
   * measure() has found.
   */
  eachMeasured(
    partition: Partition,
    control: Tensor,
    body: (tensors: UpdateTensors, range: GroupRange) => void,
  ): void {
    this.eachRange(partition, control, this.rounds.length, body);
  }

  /** Waits for updates that are under way. */
  dispose(): void {
    this.parts.home.synchronize();
    for (const { row, own, whole } of this.rounds) {
      for (const tensor of [row, own, whole]) tensor.release();
    }
  }

  /** The sums of rounds before number `round` are those over all ranks. */
  private eachRange(
    partition: Partition,
    control: Tensor,
    round: number,
    body: (tensors: UpdateTensors, range: GroupRange) => void,
  ): void {
    const { home } = this.parts;
    for (const tile of home.tilesOf(partition)) {
      const { range } = tile;
      const tensors = home.acquire(partition, tile);
      const sums = (this.spans.get(range) ?? []).map((span, number) => {
        const { own, whole } = this.rounds[number] as Round;
        return sliceFlat(number < round ? whole : own, span);
      });
      body({ ...tensors, control, sums }, range);
      for (const one of sums) one.release();
      home.release(tensors);
    }
  }

  private share({ row, own, whole }: Round): void {
    const { group, home } = this.parts;
    const { compute } = row.device;
    home.toDevice(row, own);
    group.allReduce(row, { stream: compute, purpose: 'sums over parameters' }).wait(compute);
    home.toHome(whole, row);
  }

  /** The places of a range follow each other in the rows as they do in the unit. */
  private spansOf(range: GroupRange, offsets: ReadonlyMap<string, readonly number[]>): Range[] {
    const [first] = range.places;
    if (!first) return [];
    return sumSizes(range, this.optimizer).map((numel, round) => {
      return { offset: offsets.get(first.name)?.[round] as number, numel };
    });
  }
}

/** All ranges are measured, the sums shared, then all ranges updated. */
export class SummedUpdates extends AfterDecision {
  private readonly sums: TensorSums;

  constructor(
    private readonly optimizer: SummedOptimizer,
    private readonly parts: SharedUpdateParts,
  ) {
    super(parts.home);
    this.sums = new TensorSums(optimizer, parts);
  }

  *update(control: Tensor, { settings }: UpdatePlan): Generator<UpdatedPartition, void> {
    const { home, partitions } = this.parts;
    const taken = home.takeControl(control);
    this.sums.measure(taken, settings);
    for (const partition of partitions) {
      this.sums.eachMeasured(partition, taken, (tensors) =>
        this.optimizer.applySums(tensors, settings, home.kernels),
      );
      yield deliver(home, partition);
    }
  }

  override dispose(): void {
    this.sums.dispose();
  }
}

/** The last pass over a partition has been enqueued: its weights leave. */
export function deliver(home: Home, partition: Partition): UpdatedPartition {
  for (const tile of home.tilesOf(partition)) home.deliver(partition, tile);
  return [partition, home.finish(partition)];
}
