// Updates by rules that transform whole parameters, such as Muon's, where ranks hold parts.
// Source: DeepSpeed's Muon at stage 3, which spreads the matrices over the ranks.
import type { GatheredOptimizer, UpdateSettings } from '../../optim/optimizer.js';
import { deviceKernels } from '../../optim/update-kernels.js';
import type { DType } from '../../runtime/dtype.js';
import { held, Tensor } from '../../tensor/index.js';
import { sliceFlat, zeroRange } from '../flat.js';
import type { Range, Slot } from '../layout.js';
import type { Partition } from '../partition.js';
import type { Unit } from '../unit.js';
import { AfterDecision } from './deferred.js';
import type { UpdatedPartition, UpdatePlan } from './schedule.js';
import { deliver, type SharedUpdateParts, TensorSums } from './summed-updates.js';

/** A parameter that is transformed, and the rank that does it. */
export interface Assignment {
  readonly slot: Slot;
  readonly owner: number;
}

/** A partition in a batch. */
export interface Member {
  readonly partition: Partition;
  /** Of its unit; none where the unit is updated by element. */
  readonly assignments: readonly Assignment[];
  /** Where its directions lie in the scratch memory of its gradient's dtype. */
  readonly place: Range;
}

/** Units that are gathered together. */
export type Batch = readonly Member[];

/**
 * Per batch: each rank computes the directions of its shards, an all-gather brings them together on
 * the device, each rank transforms the parameters assigned to it, a reduce-scatter of these and of
 * zeros brings the results back to the shards: twice a direction's bytes on the wire. A batch holds
 * units until there is a parameter for every rank. Device memory: a batch's directions, once, each
 * in the dtype that its own unit asks for. Under offload the transformation, too, is the device's.
 */
export class GatheredUpdates extends AfterDecision {
  private readonly sums: TensorSums;
  private readonly batches: readonly Batch[];
  /** Directions of this rank's shards of a batch, in the home's memory, by the gradients' dtype. */
  private readonly scratch = new Map<DType, Tensor>();
  private readonly onDevice = deviceKernels();

  constructor(
    private readonly optimizer: GatheredOptimizer,
    private readonly parts: SharedUpdateParts,
  ) {
    super(parts.home);
    const { partitions, home, group } = parts;
    const isTransformed = ({ group: index, shape }: Slot): boolean =>
      optimizer.sumsPerRound(index, shape).length > 0;
    this.sums = new TensorSums(optimizer, parts);
    this.batches = makeBatches(partitions, isTransformed, group.size);
    for (const [dtype, size] of scratchSizes(this.batches)) {
      this.scratch.set(dtype, home.allocate(size, optimizer.directionDType(dtype)));
    }
  }

  *update(control: Tensor, { settings }: UpdatePlan): Generator<UpdatedPartition, void> {
    const { home } = this.parts;
    const taken = home.takeControl(control);
    this.sums.measure(taken, settings);
    for (const batch of this.batches) {
      const gathering = batch.filter(({ assignments }) => assignments.length > 0);
      const gathered = gathering.map((member) => this.gather(member, taken, settings));
      gathering.forEach((member, i) => {
        this.transform(member, gathered[i] as Tensor);
      });
      gathering.forEach((member, i) => {
        this.scatter(member, gathered[i] as Tensor);
      });
      for (const member of batch) {
        this.apply(member, taken, settings);
        yield deliver(home, member.partition);
      }
    }
  }

  override dispose(): void {
    this.sums.dispose();
    for (const scratch of this.scratch.values()) scratch.release();
  }

  /**
   * The directions of a whole unit, on every rank; undefined between the parameters that are
   * transformed.
   */
  private gather({ partition, place }: Member, control: Tensor, settings: UpdateSettings): Tensor {
    const { home, group } = this.parts;
    const { unit, range } = partition;
    this.sums.eachMeasured(partition, control, (tensors, { offset, numel }) => {
      if (tensors.sums.length === 0) return;
      const direction = this.scratchOf(unit, { offset: place.offset + offset, numel });
      this.optimizer.direct(tensors, direction, settings, home.kernels);
      direction.release();
    });
    const { compute } = unit.device;
    const scratch = this.scratchOf(unit, place);
    const full = held(() => Tensor.empty([unit.layout.numel], scratch.dtype, unit.device));
    const own = sliceFlat(full, range);
    home.toDevice(own, scratch);
    const at = { stream: compute, purpose: `directions of ${unit.name}` };
    group.allGather(full, own, at).wait(compute);
    scratch.release();
    own.release();
    return full;
  }

  /** What other ranks transform becomes zero. */
  private transform({ assignments }: Member, full: Tensor): void {
    for (const { slot, owner } of assignments) {
      if (owner === this.parts.group.rank) {
        const direction = sliceFlat(full, slot);
        this.optimizer.transform(direction, slot.shape, this.onDevice);
        direction.release();
      } else zeroRange(full, slot);
    }
  }

  /** This rank's shard of all ranks' results to the scratch memory; frees `full`. */
  private scatter({ partition, place }: Member, full: Tensor): void {
    const { home, group } = this.parts;
    const { unit, range } = partition;
    const { compute } = unit.device;
    const own = sliceFlat(full, range);
    const scratch = this.scratchOf(unit, place);
    const at = { stream: compute, purpose: `transformed directions of ${unit.name}` };
    group.reduceScatter(own, full, at).wait(compute);
    home.toHome(scratch, own);
    for (const tensor of [scratch, own, full]) tensor.release();
  }

  private apply({ partition, place }: Member, control: Tensor, settings: UpdateSettings): void {
    const { kernels } = this.parts.home;
    this.sums.eachMeasured(partition, control, (tensors, { offset, numel }) => {
      const where = { offset: place.offset + offset, numel };
      const direction = tensors.sums.length > 0 ? this.scratchOf(partition.unit, where) : null;
      this.optimizer.applyDirection(tensors, direction, settings, kernels);
      direction?.release();
    });
  }

  private scratchOf({ gradDtype }: Unit, range: Range): Tensor {
    return sliceFlat(this.scratch.get(gradDtype) as Tensor, range);
  }
}

/** The most elements that a batch has, for each dtype of gradients that has any. */
function scratchSizes(batches: readonly Batch[]): Map<DType, number> {
  const sizes = new Map<DType, number>();
  for (const { partition, place } of batches.flat().filter(({ place }) => place.numel > 0)) {
    const { gradDtype } = partition.unit;
    sizes.set(gradDtype, Math.max(sizes.get(gradDtype) ?? 0, place.offset + place.numel));
  }
  return sizes;
}

/**
 * Partitions in their order, in batches that have a transformed parameter for every rank, but for
 * the last.
 */
export function makeBatches(
  partitions: readonly Partition[],
  isTransformed: (slot: Slot) => boolean,
  ranks: number,
): Batch[] {
  const batches: Batch[] = [];
  let members: { partition: Partition; slots: Slot[] }[] = [];
  const close = (): void => {
    if (members.length > 0) batches.push(assign(members, ranks));
    members = [];
  };
  for (const partition of partitions) {
    const slots = partition.unit.layout.slots.filter(
      (slot) => slot.numel > 0 && isTransformed(slot),
    );
    members.push({ partition, slots });
    if (members.flatMap((member) => member.slots).length >= ranks) close();
  }
  close();
  return batches;
}

/** The largest parameters first, each to the rank that has least to do. */
function assign(members: { partition: Partition; slots: Slot[] }[], ranks: number): Batch {
  const owners = new Map<Slot, number>();
  const load = new Array<number>(ranks).fill(0);
  const largestFirst = members.flatMap(({ slots }) => slots).sort((a, b) => b.numel - a.numel);
  for (const slot of largestFirst) {
    const owner = load.indexOf(Math.min(...load));
    owners.set(slot, owner);
    load[owner] = (load[owner] as number) + slot.numel;
  }
  const ends = new Map<DType, number>();
  return members.map(({ partition, slots }) => {
    const { gradDtype } = partition.unit;
    const place = {
      offset: ends.get(gradDtype) ?? 0,
      numel: slots.length > 0 ? partition.numel : 0,
    };
    ends.set(gradDtype, place.offset + place.numel);
    const assignments = slots.map((slot) => ({ slot, owner: owners.get(slot) as number }));
    return { partition, assignments, place };
  });
}
