// Updates by rules that need sums over whole parameters, such as LAMB's trust ratios, where ranks hold parts: sums are
// added up where the parts are, then over the ranks.
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
import type { GroupRange, Range } from '../layout.js';
import type { Partition } from '../partition.js';
import { AfterVerdict } from './deferred.js';
import type { Publisher, UpdatePlan } from './schedule.js';

/** What an update over several ranks is made of. */
export interface SharedUpdateParts {
  home: Home;
  /** In the order of updates, the same on every rank. */
  partitions: readonly Partition[];
  group: Collectives;
}

/**
 * One row of f64 per rank, with the same place for a parameter in each: zeros where a rank has nothing of it. A step
 * adds the rows up over the ranks by one all-reduce, which gives all of them the same bits. A sum of parts differs from
 * that of the whole by a rounding in f64.
 */
export class TensorSums {
  /** [width] on the device. */
  private readonly row: Tensor;
  /** [width] each in the home's memory: this rank's row, and the totals. */
  private readonly own: Tensor;
  private readonly whole: Tensor;
  /** Where the places of a partition's range lie in a row, by group. */
  private readonly spans = new Map<Partition, Map<number, Range>>();

  constructor(
    private readonly optimizer: MeasuringOptimizer,
    private readonly parts: SharedUpdateParts,
  ) {
    const { partitions, home } = parts;
    let width = 0;
    for (const partition of partitions) {
      const offsets = new Map<string, number>();
      for (const slot of partition.unit.layout.slots) {
        offsets.set(slot.name, width);
        width += optimizer.sumsPerParameter(slot.group);
      }
      this.spans.set(partition, this.spansOf(partition, offsets));
    }
    const { device } = partitions[0] as Partition;
    this.row = held(() => Tensor.empty([width], 'f64', device));
    this.own = home.allocate(width, 'f64');
    this.whole = home.allocate(width, 'f64');
  }

  /** The optimizer's first half over all partitions, and the exchange. `control` is the home's. */
  measure(control: Tensor, settings: UpdateSettings): void {
    const { partitions, home } = this.parts;
    for (const partition of partitions) {
      this.eachRange(partition, control, this.own, (tensors) =>
        this.optimizer.measure(tensors, settings, home.kernels),
      );
    }
    this.share();
  }

  /** Calls `body` with each range of the partition, and the sums over whole parameters that measure() has found. */
  eachMeasured(
    partition: Partition,
    control: Tensor,
    body: (tensors: UpdateTensors, range: GroupRange) => void,
  ): void {
    this.eachRange(partition, control, this.whole, body);
  }

  /** Waits for updates that are under way. */
  dispose(): void {
    this.parts.home.synchronize();
    for (const tensor of [this.row, this.own, this.whole]) tensor.release();
  }

  private eachRange(
    partition: Partition,
    control: Tensor,
    row: Tensor,
    body: (tensors: UpdateTensors, range: GroupRange) => void,
  ): void {
    const { home } = this.parts;
    const spans = this.spans.get(partition);
    for (const tile of home.tilesOf(partition)) {
      const { range } = tile;
      const tensors = home.acquire(partition, tile);
      const span = spans?.get(range.group);
      const sums = span ? sliceFlat(row, span) : null;
      body({ ...tensors, control, sums }, range);
      sums?.release();
      home.release(tensors);
    }
  }

  private share(): void {
    const { group, home } = this.parts;
    const { row, own, whole } = this;
    const { compute } = row.device;
    home.toDevice(row, own);
    group.allReduce(row, { stream: compute, purpose: 'sums over parameters' }).wait(compute);
    home.toHome(whole, row);
  }

  private spansOf({ groups }: Partition, offsets: ReadonlyMap<string, number>): Map<number, Range> {
    const spans = new Map<number, Range>();
    for (const { group, places } of groups) {
      const count = this.optimizer.sumsPerParameter(group);
      const first = places[0];
      if (count === 0 || !first) continue;
      const offset = offsets.get(first.name) as number;
      spans.set(group, { offset, numel: places.length * count });
    }
    return spans;
  }
}

/** All ranges are measured, the sums shared, then all ranges updated. */
export class SummedUpdates extends AfterVerdict {
  private readonly sums: TensorSums;

  constructor(
    private readonly optimizer: SummedOptimizer,
    private readonly parts: SharedUpdateParts,
  ) {
    super(parts.home);
    this.sums = new TensorSums(optimizer, parts);
  }

  update(control: Tensor, { settings }: UpdatePlan, publisher: Publisher): void {
    const { home, partitions } = this.parts;
    const taken = home.takeControl(control);
    this.sums.measure(taken, settings);
    for (const partition of partitions) {
      this.sums.eachMeasured(partition, taken, (tensors) =>
        this.optimizer.applySums(tensors, settings, home.kernels),
      );
      deliver(home, partition, publisher);
    }
  }

  override dispose(): void {
    this.sums.dispose();
  }
}

/** The last pass over a partition has been enqueued: its weights leave, and the other ranks hear of them. */
export function deliver(home: Home, partition: Partition, publisher: Publisher): void {
  for (const tile of home.tilesOf(partition)) home.deliver(partition, tile);
  publisher.publish(partition, home.finish(partition));
}
