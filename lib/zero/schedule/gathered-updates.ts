// Updates by rules that transform whole matrices, such as Muon, if each rank stores only a shard of
// them. Source: DeepSpeed's Muon at stage 3, which distributes the matrices over the ranks.

import type { GatheredOptimizer, UpdateSettings } from '../../optim/optimizer.js';
import { deviceKernels } from '../../optim/update-kernels.js';
import type { DType } from '../../runtime/dtype.js';
import { required } from '../../runtime/required.js';
import { sliceFlat, zeroRange } from '../../tensor/flat.js';
import { held, Tensor } from '../../tensor/index.js';
import type { LayoutEntry, Range } from '../layout.js';
import type { Partition } from '../partition.js';
import type { Schedule, UpdatedPartition, UpdatePlan } from '../state/strategies.js';
import type { Unit } from '../unit.js';
import { deliverWeights, type SharedUpdateParts, TensorSums } from './summed-updates.js';

/** A parameter, and the rank that transforms it. */
interface Assignment {
  readonly entry: LayoutEntry;
  readonly owner: number;
}

interface BatchMember {
  readonly partition: Partition;
  /** The transformed parameters of its unit. Empty if the update of the unit is elementwise. */
  readonly assignments: readonly Assignment[];
  /** The range of its directions in the scratch tensor of its gradient's dtype. */
  readonly directions: Range;
}

type Batch = readonly BatchMember[];

/**
 * The schedule of Muon. For each batch of units:
 *
 * 1. Each rank computes the directions of its shards. An all-gather collects them on the device.
 * 2. Each rank transforms the parameters that it owns, and zeroes the others.
 * 3. A reduce-scatter returns the transformed shards. Each rank applies its shards.
 *
 * A batch contains enough units to give every rank a parameter. Device memory: the directions of a
 * batch. The device transforms even if the state is offloaded.
 */
export class GatheredUpdates implements Schedule {
  private readonly sums: TensorSums;
  private readonly batches: readonly Batch[];
  /** By dtype of the gradients: the directions of this rank's shards of one batch. */
  private readonly scratch = new Map<DType, Tensor>();
  private readonly onDevice = deviceKernels();

  constructor(
    private readonly optimizer: GatheredOptimizer,
    private readonly parts: SharedUpdateParts,
  ) {
    const { partitions, state, group } = parts;
    const isTransformed = ({ group: index, shape }: LayoutEntry): boolean =>
      optimizer.sumsPerRound(index, shape).length > 0;
    this.sums = new TensorSums(optimizer, parts);
    this.batches = makeBatches(partitions, isTransformed, group.size);
    for (const [dtype, size] of scratchSizes(this.batches)) {
      this.scratch.set(dtype, state.placement.allocate(size, optimizer.directionDType(dtype)));
    }
  }

  *update(control: Tensor, { settings }: UpdatePlan): Generator<UpdatedPartition, void> {
    const { state } = this.parts;
    const localControl = state.placement.traffic.takeControl(control);
    this.sums.measure(localControl, settings);
    for (const batch of this.batches) {
      const gathering = batch.filter(({ assignments }) => assignments.length > 0);
      const gathered = gathering.map(
        (member) => [member, this.gather(member, localControl, settings)] as const,
      );
      for (const [member, full] of gathered) this.transform(member, full);
      for (const [member, full] of gathered) this.scatter(member, full);
      for (const member of batch) {
        this.apply(member, localControl, settings);
        yield deliverWeights(state, member.partition);
      }
    }
  }

  dispose(): void {
    this.sums.dispose();
    for (const scratch of this.scratch.values()) scratch.release();
  }

  /**
   * Returns the directions of a whole unit on the device, [numel of the unit]. Elements of other
   * parameters are undefined. The caller releases it.
   */
  private gather(
    { partition, directions }: BatchMember,
    control: Tensor,
    settings: UpdateSettings,
  ): Tensor {
    const { state, group } = this.parts;
    const { unit, range } = partition;
    this.sums.forEachMeasured(partition, control, (tensors, { offset, numel }) => {
      if (tensors.sums.length === 0) return;
      const direction = this.scratchOf(unit, { offset: directions.offset + offset, numel });
      this.optimizer.direct(tensors, direction, settings, state.placement.kernels);
      direction.release();
    });
    const { compute } = unit.device;
    const scratch = this.scratchOf(unit, directions);
    const full = held(() => Tensor.empty([unit.layout.numel], scratch.dtype, unit.device));
    const ownTensor = sliceFlat(full, range);
    state.placement.traffic.toDevice(ownTensor, scratch);
    const at = { stream: compute, purpose: `directions of ${unit.name}` };
    group.allGather(full, ownTensor, at).wait(compute);
    scratch.release();
    ownTensor.release();
    return full;
  }

  private transform({ assignments }: BatchMember, full: Tensor): void {
    for (const { entry, owner } of assignments) {
      if (owner === this.parts.group.rank) {
        const direction = sliceFlat(full, entry);
        this.optimizer.transform(direction, entry.shape, this.onDevice);
        direction.release();
      } else zeroRange(full, entry);
    }
  }

  /**
   * Sums the results of all ranks, and writes this rank's shard of the sum to the scratch tensor.
   * Releases `full`.
   */
  private scatter({ partition, directions }: BatchMember, full: Tensor): void {
    const { state, group } = this.parts;
    const { unit, range } = partition;
    const { compute } = unit.device;
    const ownTensor = sliceFlat(full, range);
    const scratch = this.scratchOf(unit, directions);
    const at = { stream: compute, purpose: `transformed directions of ${unit.name}` };
    group.reduceScatter(ownTensor, full, at).wait(compute);
    state.placement.traffic.fromDevice(scratch, ownTensor);
    for (const tensor of [scratch, ownTensor, full]) tensor.release();
  }

  private apply(
    { partition, directions }: BatchMember,
    control: Tensor,
    settings: UpdateSettings,
  ): void {
    const { kernels } = this.parts.state.placement;
    this.sums.forEachMeasured(partition, control, (tensors, { offset, numel }) => {
      const where = { offset: directions.offset + offset, numel };
      const direction = tensors.sums.length > 0 ? this.scratchOf(partition.unit, where) : null;
      this.optimizer.applyDirection(tensors, direction, settings, kernels);
      direction?.release();
    });
  }

  private scratchOf({ gradient }: Unit, range: Range): Tensor {
    return sliceFlat(required(this.scratch.get(gradient.dtype)), range);
  }
}

/** Returns, for each dtype of gradients, the largest number of direction elements in a batch. */
function scratchSizes(batches: readonly Batch[]): Map<DType, number> {
  const sizes = new Map<DType, number>();
  for (const { partition, directions } of batches.flat()) {
    if (directions.numel === 0) continue;
    const { dtype } = partition.unit.gradient;
    sizes.set(dtype, Math.max(sizes.get(dtype) ?? 0, directions.offset + directions.numel));
  }
  return sizes;
}

/**
 * Divides partitions, in their order, into batches with at least one transformed parameter per
 * rank.
 */
export function makeBatches(
  partitions: readonly Partition[],
  isTransformed: (entry: LayoutEntry) => boolean,
  ranks: number,
): Batch[] {
  const batches: Batch[] = [];
  let members: { partition: Partition; entries: LayoutEntry[] }[] = [];
  const closeBatch = (): void => {
    if (members.length > 0) batches.push(assignOwners(members, ranks));
    members = [];
  };
  for (const partition of partitions) {
    const entries = partition.unit.layout.entries.filter(
      (entry) => entry.numel > 0 && isTransformed(entry),
    );
    members.push({ partition, entries });
    if (members.flatMap((member) => member.entries).length >= ranks) closeBatch();
  }
  closeBatch();
  return batches;
}

/** Assigns the largest parameters first. Each goes to the rank with the fewest elements so far. */
function assignOwners(
  members: { partition: Partition; entries: LayoutEntry[] }[],
  ranks: number,
): Batch {
  const owners = new Map<LayoutEntry, number>();
  const load = new Array<number>(ranks).fill(0);
  const largestFirst = members.flatMap(({ entries }) => entries).sort((a, b) => b.numel - a.numel);
  for (const entry of largestFirst) {
    const owner = load.indexOf(Math.min(...load));
    owners.set(entry, owner);
    load[owner] = required(load[owner]) + entry.numel;
  }
  const ends = new Map<DType, number>();
  return members.map(({ partition, entries }) => {
    const { dtype } = partition.unit.gradient;
    const directions = {
      offset: ends.get(dtype) ?? 0,
      numel: entries.length > 0 ? partition.numel : 0,
    };
    ends.set(dtype, directions.offset + directions.numel);
    const assignments = entries.map((entry) => ({ entry, owner: required(owners.get(entry)) }));
    return { partition, assignments, directions };
  });
}
