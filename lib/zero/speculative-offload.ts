// Offload that overlaps backward: the weights of the coming update are tried out before its verdict, the state never.
// Exact: equal to the other placements bit for bit, whatever is clipped or skipped.
import type {
  SpeculationTensors,
  SpeculativeOptimizer,
  StepGradient,
  UpdateSettings,
} from '../optim/optimizer.js';
import { hyperparameters } from '../optim/param-groups.js';
import { hostKernels, type UpdateKernels } from '../optim/update-kernels.js';
import type { Device } from '../runtime/device.js';
import * as kernels from '../runtime/kernels.generated.js';
import { Event, Stream } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';
import { ClipWindow } from './clip-window.js';
import { DepartingTensors } from './departing-tensors.js';
import { sliceFlat } from './flat.js';
import type { Piece, Range } from './layout.js';
import type { Partition } from './partition.js';
import { copyFlat, pinned, pinnedFilled, uploadRounded } from './pinned.js';
import type { Placement, Published, UpdatePlan } from './placement.js';
import {
  allocateState,
  type RangeState,
  slicePiece,
  stateSlice,
  stateTensors,
} from './range-state.js';
import { SpeculationOrder } from './speculation-order.js';
import { disposeTile, makeTiles, type Tile } from './tiles.js';

/** A partition's host side. Its two buffers, in the weights' dtype, swap roles with every speculation. */
interface HostPart {
  master: Tensor;
  ranges: readonly RangeState[];
  tiles: readonly Tile[];
  /** Takes the next gradient; until then, what was uploaded last. */
  landing: Tensor;
  /** A gradient whose step is not committed yet, or nothing. */
  held: Tensor;
  /** What `held` is: tentative until its step's verdict is known, then decided. */
  pending: 'none' | 'tentative' | 'decided';
  /** The weights in `landing` have reached the device. */
  uploaded: Event;
  /** The compute stream has not yet been told to wait for `uploaded`. */
  uploading: boolean;
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
 * Per step, ordered by events alone:
 *   d2h stream   gradient of each partition as backward completes it, tile by tile
 *   host stream  for each tile, in one pass over its state: commits the last step, whose verdict is known by now, then
 *                computes the weights that this step gives if nothing is clipped, and stores only these
 *   h2d stream   these weights, from step() on; the unit's next forward waits for them
 * step() waits for the verdict. When it is another than assumed, the weights are emitted once more from the committed
 * state, with what was decided: no state was touched, so there is nothing to roll back. While most steps miss, updates
 * wait for their verdict as in OffloadPlacement. Host memory per parameter: 12 bytes of state and two gradient elements.
 */
export class SpeculativeOffload implements Placement {
  /** Which partitions are updated during backward, and when. */
  readonly order = new SpeculationOrder<Partition>();
  private readonly parts = new Map<Partition, HostPart>();
  private readonly d2h: Stream;
  private readonly host: Stream;
  private readonly h2d: Stream;
  private readonly kernels: UpdateKernels;
  private readonly departing: DepartingTensors;
  private readonly window = new ClipWindow();
  /** [4] f32 each, written in the order of the host stream: control of decided gradients, and of the coming ones. */
  private readonly decided: Tensor;
  private readonly assumed: Tensor;
  /** [4] f32, what the device has decided. */
  private readonly fetched: Tensor;
  private readonly computed: Event;
  /** `control` has been fetched. */
  private readonly landed: Event;
  /** The early share of the speculation has ended. */
  private readonly earlyDone: Event;
  private decidedSettings: UpdateSettings | null = null;
  /** From prepare() to update(), unless updates wait for their verdict. */
  private tried: Trial | null = null;

  /** Tiles have at most `tile` elements, a multiple of 64. */
  constructor(
    private readonly device: Device,
    private readonly optimizer: SpeculativeOptimizer,
    private readonly tile: number,
  ) {
    this.d2h = Stream.create(device);
    this.host = Stream.create(device);
    this.h2d = Stream.create(device);
    this.kernels = hostKernels(this.host);
    this.departing = new DepartingTensors(device, this.d2h);
    this.decided = pinned(device, [4], 'f32');
    this.assumed = pinned(device, [4], 'f32');
    this.fetched = pinned(device, [4], 'f32');
    this.computed = new Event(device);
    this.landed = new Event(device);
    this.earlyDone = new Event(device);
  }

  adopt(partition: Partition): void {
    const { device, optimizer, tile: size } = this;
    const shape = [partition.numel];
    const allocate = pinnedFilled.bind(null, device);
    const ranges = allocateState(partition, optimizer, allocate);
    this.parts.set(partition, {
      master: pinned(device, shape, 'f32'),
      ranges,
      landing: pinned(device, shape, partition.weights.dtype),
      held: pinned(device, shape, partition.weights.dtype),
      pending: 'none',
      uploaded: new Event(device),
      uploading: false,
      readLate: false,
      tiles: makeTiles(ranges, optimizer, { device, size, allocate }),
    });
  }

  writeMaster(partition: Partition, piece: Piece, values: Tensor): void {
    const { master } = this.hostOf(partition);
    copyFlat(master, piece, values, { offset: 0, numel: piece.numel }, this.device.compute);
  }

  prepare({ settings, gradientScale }: UpdatePlan): void {
    // What a backward that failed has left behind is of no step.
    for (const host of this.parts.values()) if (host.pending === 'tentative') host.pending = 'none';
    this.tried = this.window.speculate ? { settings, parts: [], stale: false } : null;
    if (!this.tried) this.commitDecided();
    this.write(this.assumed, { multiplier: unclipped(gradientScale), apply: 1 });
    this.order.start([...this.parts.keys()]);
  }

  gradReady(partition: Partition): void {
    const host = this.hostOf(partition);
    this.d2h.wait(partition.ready);
    this.d2h.wait(host.uploaded);
    const grad = partition.grad as Tensor;
    for (const { range, arrived, updated } of host.tiles) {
      this.d2h.wait(updated);
      copyFlat(host.landing, range, grad, range, this.d2h);
      arrived.record(this.d2h);
    }
    this.departing.add(grad.retain());
    partition.dropGrad();
    // A weight that wants no gradient is used until backward has ended.
    const { parameters } = partition.unit;
    host.readLate = parameters.some(({ parameter }) => !parameter.requiresGrad);
    if (!this.tried) return;
    for (const next of this.order.arrive(partition)) this.tryOut(next, this.tried);
    if (this.order.inEarlyShare) this.earlyDone.record(this.host);
  }

  update(control: Tensor, plan: UpdatePlan, published: Published): void {
    const { tried } = this;
    this.tried = null;
    this.departing.flush();
    this.computed.record(this.device.compute);
    for (const partition of tried?.parts ?? []) this.upload(partition);
    const verdict = this.awaitVerdict(control);
    if (tried) this.order.adapt(this.earlyDone.done);
    const asAssumed = verdict.multiplier === unclipped(plan.gradientScale) && verdict.apply === 1;
    this.window.record(!asAssumed);
    this.write(this.decided, verdict);
    this.decidedSettings = plan.settings;
    const holds = asAssumed && tried && !tried.stale && sameSettings(tried.settings, plan.settings);
    for (const [partition, host] of this.parts) {
      if (!tried) this.updateNow(partition, plan);
      else {
        host.pending = 'decided';
        if (!holds) this.emitAgain(partition);
      }
      published(partition, this.h2d);
    }
  }

  /** Commits what is decided and computes the weights of the gradient that has just arrived, in one pass. */
  private tryOut(partition: Partition, tried: Trial): void {
    const host = this.hostOf(partition);
    const previous = this.decidedOf(host);
    const next = { grad: host.landing, control: this.assumed, settings: tried.settings };
    for (const tile of host.tiles) {
      this.host.wait(tile.arrived);
      this.pass(host, tile, { previous, next, weight: host.held });
      tile.updated.record(this.host);
    }
    [host.landing, host.held] = [host.held, host.landing];
    host.pending = 'tentative';
    tried.parts.push(partition);
  }

  /** Weights of the decided gradient from the committed state, without committing it. */
  private emitAgain(partition: Partition): void {
    const host = this.hostOf(partition);
    // The weights that were tried out may still be on their way from where the new ones go.
    this.host.wait(host.uploaded);
    const next = this.decidedOf(host);
    for (const tile of host.tiles) {
      this.pass(host, tile, { previous: null, next, weight: host.landing });
      tile.updated.record(this.host);
    }
    this.upload(partition);
  }

  /** Updates a partition at once, from the gradient that has landed. */
  private updateNow(partition: Partition, plan: UpdatePlan): void {
    const { master, tiles, landing } = this.hostOf(partition);
    const { decided: control } = this;
    for (const { range, state, scalars, sums, starts, arrived, updated } of tiles) {
      const { group, places } = range;
      this.host.wait(arrived);
      withSlices(range, (cut) => {
        const grad = cut(landing);
        const parts = { master: cut(master), grad, weight: grad };
        plan.apply(
          { group, places, state, scalars, sums, starts, control, ...parts },
          this.kernels,
        );
      });
      updated.record(this.host);
    }
    this.upload(partition);
  }

  private upload(partition: Partition): void {
    const host = this.hostOf(partition);
    if (host.readLate) this.h2d.wait(this.computed);
    for (const { range, updated } of host.tiles) {
      this.h2d.wait(updated);
      copyFlat(partition.weights, range, host.landing, range, this.h2d);
    }
    host.uploaded.record(this.h2d);
    host.uploading = true;
  }

  /** Blocks until backward has ended: until then the device has work, and afterwards none before the weights. */
  private awaitVerdict(control: Tensor): Verdict {
    const four = { offset: 0, numel: 4 };
    const { compute } = this.device;
    copyFlat(this.fetched, four, control, four, compute);
    this.landed.record(compute).synchronize();
    const values = new Float32Array(2);
    this.fetched.buffer.read(0, values, compute);
    return { multiplier: values[0] as number, apply: values[1] as number };
  }

  private commitDecided(): void {
    for (const host of this.parts.values()) {
      const previous = this.decidedOf(host);
      if (!previous) continue;
      for (const tile of host.tiles) this.pass(host, tile, { previous, next: null, weight: null });
      host.pending = 'none';
    }
  }

  private decidedOf({ pending, held: grad }: HostPart): StepGradient | null {
    if (pending !== 'decided') return null;
    return { grad, control: this.decided, settings: this.decidedSettings as UpdateSettings };
  }

  /** Enqueues the optimizer's pass over one tile; gradients and weight are those of the partition. */
  private pass(
    { master }: HostPart,
    { range, state }: Tile,
    { previous, next, weight }: Pick<SpeculationTensors, 'previous' | 'next' | 'weight'>,
  ): void {
    withSlices(range, (cut) => {
      const parts = {
        group: range.group,
        master: cut(master),
        state,
        previous: previous && { ...previous, grad: cut(previous.grad) },
        next: next && { ...next, grad: cut(next.grad) },
        weight: weight && cut(weight),
      };
      this.optimizer.speculate(parts, this.kernels);
    });
  }

  /** Writes a control in the order of the host stream: passes enqueued before still read the old one. */
  private write(control: Tensor, { multiplier, apply }: Verdict): void {
    [multiplier, apply].forEach((value, offset) => {
      withSlices({ offset, numel: 1 }, (cut) =>
        kernels.fillOnHost({ out: cut(control), value }, this.host),
      );
    });
  }

  awaitWeights(partition: Partition): void {
    const host = this.hostOf(partition);
    host.readLate = true;
    if (!host.uploading) return;
    this.device.compute.wait(host.uploaded);
    host.uploading = false;
  }

  stateOf(partition: Partition, piece: Piece, name: string): Tensor {
    this.commitDecided();
    this.host.synchronize();
    const { master, ranges } = this.hostOf(partition);
    return name === 'master' ? slicePiece(master, piece) : stateSlice(ranges, piece, name);
  }

  gradOf(partition: Partition): Tensor {
    for (const stream of [this.d2h, this.host]) stream.synchronize();
    const { pending, held, landing } = this.hostOf(partition);
    return (pending === 'tentative' ? held : landing).retain();
  }

  changed(): void {
    if (this.tried) this.tried.stale = true;
  }

  refresh(partition: Partition): void {
    this.changed();
    uploadRounded(this.hostOf(partition).master, partition.weights);
  }

  synchronize(): void {
    this.commitDecided();
    for (const stream of [this.d2h, this.host, this.h2d, this.device.compute]) stream.synchronize();
  }

  get bytes(): { device: number; host: number } {
    const controls = [this.decided, this.assumed, this.fetched];
    const tensors = [...this.parts.values()].flatMap(tensorsOf).concat(controls);
    return { device: 0, host: tensors.reduce((sum, { bytes }) => sum + bytes, 0) };
  }

  dispose(): void {
    this.synchronize();
    for (const host of this.parts.values()) {
      for (const tile of host.tiles) disposeTile(tile);
      for (const tensor of tensorsOf(host)) tensor.release();
      host.uploaded.dispose();
    }
    this.parts.clear();
    this.departing.dispose();
    for (const control of [this.decided, this.assumed, this.fetched]) control.release();
    for (const event of [this.computed, this.landed, this.earlyDone]) event.dispose();
    for (const stream of [this.d2h, this.host, this.h2d]) stream.dispose();
  }

  private hostOf(partition: Partition): HostPart {
    return this.parts.get(partition) as HostPart;
  }
}

/** The factor that undoes the gradients' scale when nothing is clipped, as the device computes it. */
const unclipped = (gradientScale: number): number => Math.fround(1 / gradientScale);

function sameSettings(a: UpdateSettings, b: UpdateSettings): boolean {
  const written = ({ step, groups }: UpdateSettings): string =>
    JSON.stringify([step, groups.map(hyperparameters)]);
  return written(a) === written(b);
}

function tensorsOf({ master, landing, held: pending, ranges }: HostPart): Tensor[] {
  return [master, landing, pending, ...stateTensors(ranges)];
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
